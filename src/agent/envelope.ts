import { CtxError } from "../abi/error.js"
import { formatRow } from "../abi/json.js"
import { ENVELOPE_MAX, HISTORY_MAX } from "../abi/limit.js"
import { INVOCATION_SCHEMA } from "../abi/product.js"

/** The result of the preceding call, as the next step gets it. */
export interface Observation {
  tool_call_id: string
  name: string
  status: "ok" | "error"
  content: string
  truncated: boolean
}

/** What a step is about. agent-runtime 4 */
export interface Envelope {
  run: string
  step: number
  input: string
  history: string
  toolContext: string
  observation: Observation | null
}

/**
 * The envelope line of a step, with its LF. A history that would make it too long is left empty.
 * Errors: EMSGSIZE when it is too long even so. agent-runtime 4
 */
export function formatEnvelope(e: Envelope): string {
  const format = (history: string) =>
    `${formatRow({
      schema: INVOCATION_SCHEMA,
      run: e.run,
      step: e.step,
      input: e.input,
      history_messages: history,
      tool_context: e.toolContext,
      observation: e.observation,
    })}\n`
  if (Buffer.byteLength(e.history) <= HISTORY_MAX) {
    const line = format(e.history)
    if (Buffer.byteLength(line) <= ENVELOPE_MAX) return line
  }
  const line = format("")
  if (Buffer.byteLength(line) <= ENVELOPE_MAX) return line
  throw new CtxError("EMSGSIZE", `step envelope is longer than ${ENVELOPE_MAX} bytes; send less input`)
}
