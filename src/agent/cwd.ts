import { constants, fstatSync, statSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isAtOrBelow } from "../abi/path.js"
import { O_PATH, openat2, RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS } from "../native/sys.js"
import { closeQuietly } from "./host.js"

/** A directory the agent sees inside its sandbox and what is behind it on the host. */
export interface VisibleMount {
  target: string
  /** Opened, so that what is searched is what was checked. */
  source: { fd: number }
}

/**
 * Checks that the directory `cwd` exists in the agent's root, which is its visible mounts and nothing else of the
 * sandbox. The longest target that covers it decides; links are followed inside that mount only. `cwd` is lexically
 * valid already. Errors: ENOENT, ENOTDIR, EACCES, by the table of session-abi 5.
 */
export function checkCwd(cwd: string, mounts: readonly VisibleMount[]): void {
  const covering = mounts
    .filter(mount => isAtOrBelow(cwd, mount.target))
    .sort((a, b) => b.target.length - a.target.length)[0]
  if (covering === undefined) {
    throw existsOnHost(cwd)
      ? new CtxError("EACCES", `cwd ${cwd} is not mounted for this agent`)
      : new CtxError("ENOENT", `cwd ${cwd} does not exist`)
  }
  checkDirectory(covering.source.fd, cwd.slice(covering.target.length).replace(/^\//, "") || ".", cwd)
}

function checkDirectory(rootFd: number, below: string, cwd: string): void {
  let fd: number
  try {
    fd = openat2(rootFd, below, O_PATH, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
  } catch (e) {
    switch (codeOf(e)) {
      case "ENOENT":
        throw new CtxError("ENOENT", `cwd ${cwd} does not exist`)
      case "ENOTDIR":
        throw new CtxError("ENOTDIR", `cwd ${cwd} is not a directory`)
      case "EXDEV":
      case "ELOOP":
      case "EACCES":
        throw new CtxError("EACCES", `cwd ${cwd} leads out of its mount or cannot be entered`, { cause: e })
      default:
        throw e
    }
  }
  try {
    if ((fstatSync(fd).mode & constants.S_IFMT) !== constants.S_IFDIR) {
      throw new CtxError("ENOTDIR", `cwd ${cwd} is not a directory`)
    }
  } finally {
    closeQuietly(fd)
  }
}

function existsOnHost(path: string): boolean {
  try {
    statSync(path)
    return true
  } catch (e) {
    return !["ENOENT", "ENOTDIR"].includes(codeOf(e) ?? "")
  }
}
