import { type ErrnoName, isErrnoName } from "../abi/errno.js"
import { toCtxError } from "../abi/error.js"
import { formatRow } from "../abi/json.js"

/** One frame as a line with its LF. */
export function formatFrame(frame: object): string {
  return `${formatRow(frame)}\n`
}

/** Code and text of a failure as frames and rows carry them: an errno name, never an internal word. session-abi 15 */
export function describeFailure(e: unknown): { code: ErrnoName; message: string } {
  const error = toCtxError(e)
  if (isErrnoName(error.code)) return { code: error.code, message: error.message }
  if (error.code === "cancelled") return { code: "ECANCELED", message: error.message }
  return { code: "EIO", message: `internal: ${error.message}` }
}

/** The one `error` frame, without a run, that answers a request which was refused. session-abi 6.1 */
export function formatRefusal(e: unknown): string {
  return formatFrame({ type: "error", ...describeFailure(e) })
}
