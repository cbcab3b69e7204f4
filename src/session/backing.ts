// From a session directory seen through a mount to the same directory on the durable tree (session-abi 11).
import { closeSync, constants, openSync, statfsSync } from "node:fs"
import { CtxError } from "../abi/error.js"
import { flock, getxattr } from "../native/sys.js"
import { openDirectory } from "./entry.js"

const FUSE_MAGIC = 0x65735546
const BACKING_PATH = "user.cortexfs.backing_path"

/**
 * Opens the directory on the durable tree that `dirFd` shows: itself outside of a mount, else what
 * `user.cortexfs.backing_path` names. Undefined where that is not to be seen, as in an agent's view.
 */
export function openBacking(dirFd: number): number | undefined {
  try {
    if (statfsSync(`/proc/self/fd/${dirFd}`).type !== FUSE_MAGIC) return openDirectory(".", dirFd)
    const path = readBackingPath(dirFd)
    return path === undefined ? undefined : openDirectory(path)
  } catch {
    return undefined
  }
}

/**
 * Opens the directory on the durable tree that `path` shows, itself outside of a mount.
 * Errors: `ENOENT`, `ENOTDIR`, `EACCES`; `EPERM` where the durable tree is not to be seen, as in an agent's view.
 */
export function openDurable(path: string): number {
  const dirFd = openSync(path, constants.O_RDONLY | constants.O_DIRECTORY)
  try {
    const backingFd = openBacking(dirFd)
    if (backingFd !== undefined) return backingFd
    const hint = "run it on the host, as the owner of the sessions"
    throw new CtxError("EPERM", `${path}: the durable tree behind it is not visible from here`, { path, hint })
  } finally {
    closeSync(dirFd)
  }
}

function readBackingPath(dirFd: number): string | undefined {
  return getxattr(dirFd, BACKING_PATH).toString("utf8")
}

/** True when anyone holds the run lock of a session directory on the durable tree. */
export function isRunLocked(backingFd: number): boolean {
  if (!flock(backingFd, "sh")) return true
  flock(backingFd, "un")
  return false
}

/** Runs `work` with the backing directory of `dirFd`, if it can be seen, and closes it. */
export async function withBacking<T>(
  dirFd: number,
  work: (backingFd: number | undefined) => T | Promise<T>,
): Promise<T> {
  const backingFd = openBacking(dirFd)
  try {
    return await work(backingFd)
  } finally {
    if (backingFd !== undefined) closeSync(backingFd)
  }
}
