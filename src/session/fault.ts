// Where syncs and renames below a `session` directory happen, so that a test can end or fail the n-th one.
import { fdatasync, fsync } from "node:fs"
import { promisify } from "node:util"
import { type ErrnoName, isErrnoName } from "../abi/errno.js"
import { CtxError } from "../abi/error.js"
import { renameat2 } from "../native/sys.js"

type Point = "sync" | "rename"

interface Fault {
  point: Point
  n: number
  effect: "kill" | ErrnoName
}

const syncData = promisify(fdatasync)
const syncAll = promisify(fsync)
const passed = { sync: 0, rename: 0 }
const fault = parseFault(process.env.CORTEXFS_FAULT)

/**
 * Reads `session.<sync|rename>:<n>:<kill|ERRNO>`; undefined for an unset variable and for the faults of other parts.
 * Errors: `EINVAL` for a `session.` text of another form. session-abi 11
 */
export function parseFault(text: string | undefined): Fault | undefined {
  if (text === undefined || !text.startsWith("session.")) return undefined
  const match = /^session\.(sync|rename):([1-9][0-9]{0,8}):([A-Za-z0-9]+)$/.exec(text)
  const effect = match?.[3]
  if (match === null || (effect !== "kill" && !isErrnoName(effect))) {
    throw new CtxError("EINVAL", "CORTEXFS_FAULT has a bad form", {
      hint: "use session.<sync|rename>:<n>:<kill|ERRNO>",
    })
  }
  return { point: match[1] as Point, n: Number(match[2]), effect: effect as Fault["effect"] }
}

// Counts one operation; the returned function is to be called when it was done.
function enter(point: Point): () => void {
  passed[point]++
  if (fault === undefined || fault.point !== point || passed[point] !== fault.n) return () => {}
  if (fault.effect !== "kill")
    throw new CtxError(fault.effect, `${point} ${fault.n} fails on request`, { syscall: point })
  return () => process.kill(process.pid, "SIGKILL")
}

/** fdatasync of a file. Errors: the system call's. */
export async function syncFile(fd: number): Promise<void> {
  const leave = enter("sync")
  await syncData(fd)
  leave()
}

/** fsync of a new file or of a directory. Errors: the system call's. */
export async function syncEntry(fd: number): Promise<void> {
  const leave = enter("sync")
  await syncAll(fd)
  leave()
}

/** renameat2 within one directory. Errors: the system call's, `EEXIST` with RENAME_NOREPLACE. */
export function renameEntry(dirFd: number, from: string, to: string, flags = 0): void {
  moveEntry(dirFd, from, dirFd, to, flags)
}

/** renameat2 from one directory to another. Errors: as `renameEntry`, `EXDEV`. */
export function moveEntry(fromFd: number, from: string, toFd: number, to: string, flags = 0): void {
  const leave = enter("rename")
  renameat2(fromFd, from, toFd, to, flags)
  leave()
}
