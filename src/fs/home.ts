// A user's home, made when that user first looks for it (root-abi 4.6).
import { closeSync, fsyncSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import * as sys from "../native/sys.js"
import { findEntry, openDir } from "./source.js"

const CLASSES = ["agent", "model", "tool"]

/**
 * Makes `<uid>` in the directory of homes with `agent`, `model` and `tool`, all 0700 and the user's. It is made beside
 * under a hidden name and shown by one rename, so that nobody ever sees half a home; a leftover of a killed process is
 * taken up again. Does nothing when the home is there. Errors: the file system's, `EIO` for a foreign thing under the
 * hidden name.
 */
export function createHome(homesFd: number, uid: number, gid: number): void {
  if (findEntry(homesFd, String(uid)) !== undefined) return
  const stage = `.new-${uid}`
  ensureDir(homesFd, stage)
  const stageFd = openDir(homesFd, stage)
  try {
    for (const name of CLASSES) {
      ensureDir(stageFd, name)
      sys.fchownat(stageFd, name, uid, gid)
    }
    // The owner comes last: until then nobody else can put anything into the stage.
    sys.fchownat(stageFd, "", uid, gid)
    fsyncSync(stageFd)
  } finally {
    closeSync(stageFd)
  }
  try {
    sys.renameat2(homesFd, stage, homesFd, String(uid), sys.RENAME_NOREPLACE)
  } catch (error) {
    if (codeOf(error) !== "EEXIST") throw error
    for (const name of CLASSES) removeDir(homesFd, `${stage}/${name}`)
    removeDir(homesFd, stage)
    return
  }
  syncDir(homesFd)
}

function ensureDir(dirFd: number, name: string): void {
  try {
    sys.mkdirat(dirFd, name, 0o700)
  } catch (error) {
    if (codeOf(error) !== "EEXIST") throw error
    if (findEntry(dirFd, name)?.type !== "dir") throw new CtxError("EIO", `${name} is not a directory: remove it`)
  }
}

function removeDir(dirFd: number, name: string): void {
  try {
    sys.unlinkat(dirFd, name, { dir: true })
  } catch (error) {
    if (codeOf(error) !== "ENOENT") throw error
  }
}

/** fsync of a directory that may be open by path only. */
function syncDir(dirFd: number): void {
  const fd = openDir(dirFd, ".")
  try {
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}
