// One atomic replacement on the backing side: the way by which every file that a mount publishes comes to be there.
import { closeSync, constants, fchmodSync, fchownSync, fstatSync, fsync } from "node:fs"
import { promisify } from "node:util"
import * as sys from "../native/sys.js"
import { RESOLVE_STRICT, randomHex, writeAll } from "../store/file.js"
import { openDir } from "./source.js"

const { O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW } = constants
const syncFile = promisify(fsync)

/** Prefix of a file that is being made. No view shows it; a killed mount leaves it. */
export const STAGE = ".publish-"

/** What the published file is to be. */
export interface Published {
  mode: number
  uid: number
  gid: number
  /** Refuse with `EEXIST` when the name is there. */
  isNew: boolean
}

/**
 * Puts `bytes` at `name` in the directory `dirFd` in one step: a new inode, written and synced beside, then renamed;
 * then the directory is synced. `confirm` is called directly before the rename and may refuse by throwing. Killed at any
 * point, the name leads to the old or the new file. Errors: those of `confirm` and of the system calls; nothing is
 * changed then, but for a failed sync of the directory.
 */
export async function publishFile(
  dirFd: number,
  name: string,
  bytes: Buffer,
  { mode, uid, gid, isNew }: Published,
  confirm: () => void,
): Promise<void> {
  const stage = `${STAGE}${randomHex(8)}`
  const fd = sys.openat2(dirFd, stage, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600, RESOLVE_STRICT)
  try {
    try {
      writeAll(fd, bytes)
      const now = fstatSync(fd)
      if (now.uid !== uid || now.gid !== gid) fchownSync(fd, uid, gid)
      fchmodSync(fd, mode)
      await syncFile(fd)
    } finally {
      closeSync(fd)
    }
    confirm()
    sys.renameat2(dirFd, stage, dirFd, name, isNew ? sys.RENAME_NOREPLACE : 0)
  } catch (error) {
    try {
      sys.unlinkat(dirFd, stage)
    } catch {
      // The first error is the one to report; the stage is hidden and goes with its directory.
    }
    throw error
  }
  await syncDir(dirFd)
}

/** Makes the names in a directory durable; `dirFd` may be open by path only. Errors: `EIO`. */
export async function syncDir(dirFd: number): Promise<void> {
  const fd = openDir(dirFd, ".")
  try {
    await syncFile(fd)
  } finally {
    closeSync(fd)
  }
}
