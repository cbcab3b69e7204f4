// Opening, reading and replacing the entries of session directories by descriptor, without following any link.
import { type BigIntStats, closeSync, constants, fchmodSync, fchownSync, fstatSync, readdirSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { AT_FDCWD, fstatat, mkdirat, openat2, RESOLVE_NO_SYMLINKS, unlinkat } from "../native/sys.js"
import { RESOLVE_STRICT, readWhole, writeAll } from "../store/file.js"
import { renameEntry, syncEntry } from "./fault.js"
import type { Place } from "./place.js"

const { O_RDONLY, O_WRONLY, O_RDWR, O_APPEND, O_CREAT, O_EXCL, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK } = constants

/** Modes of a place: private 0700 and 0600, shared 2770 and 0660 (session-abi 7). */
export function modesOf(place: Place): { dir: number; file: number } {
  return place.scope === "shared" ? { dir: 0o2770, file: 0o660 } : { dir: 0o700, file: 0o600 }
}

/** `EIO` for an entry that is not what it must be: a link, a special file, a directory where a file belongs. */
export function wrongKind(path: string, cause?: unknown): CtxError {
  return new CtxError("EIO", `${path} is no plain entry`, { path, hint: "look at it with ls -l", cause })
}

/**
 * Opens a directory: an absolute path without any link in it, or a name below a directory.
 * Errors: `ENOENT`, `EACCES`; `EIO` when a link or another kind of entry stands there.
 */
export function openDirectory(path: string, parentFd = AT_FDCWD): number {
  try {
    const resolve = parentFd === AT_FDCWD ? RESOLVE_NO_SYMLINKS : RESOLVE_STRICT
    return openat2(parentFd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, resolve)
  } catch (e) {
    const code = codeOf(e)
    if (code === "ELOOP" || code === "ENOTDIR" || code === "EXDEV") throw wrongKind(path, e)
    throw e
  }
}

/**
 * Opens a plain file below a directory, for appending when `isWriter`. The caller closes it.
 * Errors: `ENOENT`, `EACCES`; `EIO` when a link, directory or special file stands there.
 */
export function openPlain(dirFd: number, name: string, isWriter = false): number {
  const flags = (isWriter ? O_RDWR | O_APPEND : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK
  let fd: number
  try {
    fd = openat2(dirFd, name, flags, 0, RESOLVE_STRICT)
  } catch (e) {
    const code = codeOf(e)
    if (code === "ELOOP" || code === "EISDIR" || code === "ENXIO" || code === "EXDEV") throw wrongKind(name, e)
    throw e
  }
  if (fstatSync(fd).isFile()) return fd
  closeSync(fd)
  throw wrongKind(name)
}

/**
 * Reads a small plain file; undefined when it does not exist. Errors: `EFBIG` above `maxSize`, `EIO` as `openPlain`.
 */
export function readEntry(dirFd: number, name: string, maxSize: number): Buffer | undefined {
  let fd: number
  try {
    fd = openPlain(dirFd, name)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return undefined
    throw e
  }
  try {
    return readWhole(fd, maxSize, name)
  } finally {
    closeSync(fd)
  }
}

/** Identity, size and times of an open file. */
export function statFd(fd: number): BigIntStats {
  return fstatSync(fd, { bigint: true })
}

/** True while `name` below the directory is the inode `stat`. */
export function isSameEntry(dirFd: number, name: string, stat: { dev: bigint; ino: bigint }): boolean {
  try {
    const now = fstatat(dirFd, name)
    return now.dev === stat.dev && now.ino === stat.ino
  } catch (e) {
    if (codeOf(e) === "ENOENT") return false
    throw e
  }
}

/** Names in an open directory, unsorted. */
export function listNames(dirFd: number): string[] {
  return readdirSync(`/proc/self/fd/${dirFd}`)
}

// Only root can give files away; anyone else makes them as himself, and a space's set-group-id directory has said the group.
function giveTo(fd: number, place: Place): void {
  if (process.geteuid?.() !== 0) return
  const { uid, gid } = fstatSync(fd)
  const group = place.scope === "shared" ? gid : place.gid
  if (uid !== place.uid || gid !== group) fchownSync(fd, place.uid, group)
}

/** Makes an empty directory with the place's owner and mode and opens it. Errors: `EEXIST` and the system calls'. */
export function createDirectory(dirFd: number, name: string, place: Place): number {
  mkdirat(dirFd, name, 0o700)
  const fd = openDirectory(name, dirFd)
  try {
    giveTo(fd, place)
    fchmodSync(fd, modesOf(place).dir)
    return fd
  } catch (e) {
    closeSync(fd)
    throw e
  }
}

/** Makes a new plain file with the place's owner and mode; synced when `isDurable`. Errors: `EEXIST`, `ENOSPC` … */
export async function createPlain(
  dirFd: number,
  name: string,
  data: string,
  place: Place,
  isDurable: boolean,
): Promise<void> {
  const fd = openNew(dirFd, name, data, place)
  try {
    if (isDurable) await syncEntry(fd)
  } finally {
    closeSync(fd)
  }
}

function openNew(dirFd: number, name: string, data: string, place: Place): number {
  const fd = openat2(dirFd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600, RESOLVE_STRICT)
  try {
    writeAll(fd, Buffer.from(data))
    giveTo(fd, place)
    fchmodSync(fd, modesOf(place).file)
    return fd
  } catch (e) {
    closeSync(fd)
    removeEntry(dirFd, name)
    throw e
  }
}

/** Removes a file; no error when it is gone. */
export function removeEntry(dirFd: number, name: string): void {
  try {
    unlinkat(dirFd, name)
  } catch (e) {
    if (codeOf(e) !== "ENOENT") throw e
  }
}

// One fixed name for each target: a killed replace leaves at most one leftover, which the next one clears. The caller
// holds the lock that makes it the only writer.
function stageName(name: string): string {
  return `.${name}.new`
}

/** `replace` of session-abi 1: temp and rename without any sync. The caller is the only writer. Errors: the system calls'. */
export function replaceEntry(dirFd: number, name: string, data: string, place: Place): void {
  const stage = stageName(name)
  removeEntry(dirFd, stage)
  closeSync(openNew(dirFd, stage, data, place))
  try {
    renameEntry(dirFd, stage, name)
  } catch (e) {
    removeEntry(dirFd, stage)
    throw e
  }
}

/** `atomic replace` of session-abi 1: as `replaceEntry`, with fsync of the file before and of the directory after the rename. */
export async function replaceDurably(dirFd: number, name: string, data: string, place: Place): Promise<void> {
  const stage = stageName(name)
  removeEntry(dirFd, stage)
  const fd = openNew(dirFd, stage, data, place)
  try {
    await syncEntry(fd)
    renameEntry(dirFd, stage, name)
  } catch (e) {
    removeEntry(dirFd, stage)
    throw e
  } finally {
    closeSync(fd)
  }
  await syncEntry(dirFd)
}
