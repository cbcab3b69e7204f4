import { closeSync, constants, fstatSync, fsyncSync, mkdirSync } from "node:fs"
import { homedir } from "node:os"
import { basename, dirname } from "node:path"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import { isCleanPath } from "../abi/name.js"
import { storagePath, userStateDir } from "../abi/path.js"
import { AT_FDCWD, flock, mkdirat, O_PATH, openat2, RESOLVE_NO_SYMLINKS } from "../native/sys.js"

const { O_RDONLY, O_RDWR, O_CREAT, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK } = constants
const UPDATE_LOCK = ".update.lock"

/** The open directories of a storage; all work of an update is relative to them. */
export interface Roots {
  /** the storage directory as it was named */
  path: string
  dataRootFd: number
  storageFd: number
  generationsFd: number
}

/**
 * The storage of the caller: the one of the system for uid 0, else in the user's state directory, whose missing
 * parents are made (rolling-upgrades.md 2). Errors: those of making them, naming the directory.
 */
export function ensureDefaultStorage(): string {
  if (process.geteuid!() === 0) return storagePath()
  const dataRoot = userStateDir({ env: process.env, home: homedir() })
  const path = dirname(dataRoot)
  try {
    mkdirSync(path, { recursive: true, mode: 0o700 })
  } catch (cause) {
    const { code } = toCtxError(cause)
    throw new CtxError(code, `${path} of uid ${process.geteuid!()} cannot be made or entered`, {
      path,
      cause,
      hint: "set HOME or XDG_STATE_HOME to directories of this user, or name the directory",
    })
  }
  return storagePath(dataRoot)
}

/** Checks the argument of an update (step 1). Errors: `EINVAL`. */
export function validateStoragePath(path: string): string {
  const hint = "name the directory by its absolute path, such as /srv/cortexfs/storage"
  if (path === "") throw new CtxError("EINVAL", "an empty path names no storage", { hint })
  if (!path.startsWith("/")) throw new CtxError("EINVAL", `${path}: not an absolute path`, { path, hint })
  if (path.endsWith("/")) throw new CtxError("EINVAL", `${path}: ends in a slash`, { path, hint })
  if (!isCleanPath(path)) throw new CtxError("EINVAL", `${path}: not a clean path (no // . or ..)`, { path, hint })
  // The source of a mount is told from a plain directory by this name (root-abi.md 8).
  if (basename(path) !== "storage") {
    throw new CtxError("EINVAL", `${path}: a storage directory is called storage`, { path, hint })
  }
  return path
}

/** Refuses a directory that others than the caller and root could change (step 2). Errors: `EACCES`. */
export function checkRoot(fd: number, path: string): void {
  const stat = fstatSync(fd)
  const hint = "chown it to the caller and chmod go-w"
  if (stat.uid !== process.geteuid!() && stat.uid !== 0) {
    throw new CtxError("EACCES", `${path}: belongs to uid ${stat.uid}`, { path, hint })
  }
  if ((stat.mode & 0o022) !== 0) throw new CtxError("EACCES", `${path}: others may write it`, { path, hint })
}

function openReal(parentFd: number, name: string, path: string): number {
  try {
    return openat2(parentFd, name, O_RDONLY | O_DIRECTORY, 0, RESOLVE_NO_SYMLINKS)
  } catch (cause) {
    const { code } = toCtxError(cause)
    throw new CtxError(code, `${path}: not a real directory`, { path, cause, hint: "put a directory there" })
  }
}

/** Opens one root, making it when it is missing. Errors: `ELOOP` for a link, `ENOTDIR`, `EACCES`. */
function openRoot(parentFd: number, name: string, path: string): number {
  const mode = process.geteuid!() === 0 ? 0o755 : 0o700
  let isMade = false
  try {
    mkdirat(parentFd, name, mode)
    isMade = true
  } catch (error) {
    if (codeOf(error) !== "EEXIST") throw error
  }
  const fd = openReal(parentFd, name, path)
  try {
    checkRoot(fd, path)
    if (isMade) fsyncDirFd(parentFd)
    return fd
  } catch (error) {
    closeSync(fd)
    throw error
  }
}

/** The directory above the data root, links followed: it is the administrator's. */
function openAbove(path: string): number {
  try {
    return openat2(AT_FDCWD, path, O_PATH | O_DIRECTORY)
  } catch (cause) {
    const { code } = toCtxError(cause)
    throw new CtxError(code, path, { path, cause, hint: "make this directory, then run again" })
  }
}

/** Makes the names in a directory durable that is open as `O_PATH`. */
function fsyncDirFd(fd: number): void {
  const again = openat2(fd, ".", O_RDONLY | O_DIRECTORY)
  try {
    fsyncSync(again)
  } finally {
    closeSync(again)
  }
}

/**
 * Opens data root, storage and `generations`, making them when they are missing (step 2). The directory above the data
 * root must be there. Errors: `ENOENT`, `ELOOP`, `ENOTDIR`, `EACCES`; nothing else was changed.
 */
export function openRoots(path: string): Roots {
  const dataRoot = dirname(path)
  const opened: number[] = []
  try {
    if (dataRoot === "/") throw new CtxError("EINVAL", `${path}: the root directory is no data root`, { path })
    opened.push(openAbove(dirname(dataRoot)))
    for (const [name, at] of [
      [basename(dataRoot), dataRoot],
      ["storage", path],
      ["generations", `${path}/generations`],
    ] as const) {
      opened.push(openRoot(opened.at(-1)!, name, at))
    }
  } catch (error) {
    for (const fd of opened) closeSync(fd)
    throw error
  }
  const [aboveFd, dataRootFd, storageFd, generationsFd] = opened as [number, number, number, number]
  closeSync(aboveFd)
  return { path, dataRootFd, storageFd, generationsFd }
}

/** Closes what `openRoots` opened. */
export function closeRoots(roots: Roots): void {
  closeSync(roots.dataRootFd)
  closeSync(roots.storageFd)
  closeSync(roots.generationsFd)
}

/**
 * Takes the lock of all updates of a storage, without waiting; held until the descriptor is closed (step 3).
 * Errors: `EBUSY`, `ELOOP`, `EINVAL` when the lock is no regular file.
 */
export function lockUpdate(roots: Roots): number {
  const fd = openat2(roots.storageFd, UPDATE_LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0o600)
  try {
    if (!fstatSync(fd).isFile()) throw new CtxError("EINVAL", `${roots.path}/${UPDATE_LOCK}: not a regular file`)
    if (flock(fd, "ex")) return fd
    throw new CtxError("EBUSY", "an update is running", { path: roots.path, hint: "wait for it, then run again" })
  } catch (error) {
    closeSync(fd)
    throw error
  }
}
