// From a session directory seen through a mount to the same directory on the durable tree (session-abi 11).
import { closeSync, statfsSync } from "node:fs"
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
