import {
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  fstatSync,
  fsyncSync,
  openSync,
  readSync,
  renameSync,
  unlinkSync,
  writeSync,
} from "node:fs"
import { basename, dirname } from "node:path"
import { CtxError } from "../abi/error.js"
import { getrandom, openat2, RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS } from "../native/sys.js"

/** A file by its path, or by a name (it may hold `/`) below an open directory, which may be an `O_PATH` descriptor. */
export type FileAt = string | { dirFd: number; name: string }

/** Resolution below a directory that someone else may write: no link is followed, nothing escapes. */
export const RESOLVE_STRICT = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS

const { O_RDONLY, O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_DIRECTORY } = constants

/** What is shown as the path in an error about `file`. */
function pathOf(file: FileAt): string {
  return typeof file === "string" ? file : file.name
}

/**
 * Opens an existing regular file for reading without following a link and without waiting for the writer of a FIFO.
 * A directory descriptor variant follows no link in any component. The caller closes the descriptor.
 * Errors: `ENOENT`, `ELOOP`, `EACCES`, `EISDIR` (a directory), `EINVAL` (any other kind of file).
 */
export function openFile(file: FileAt): number {
  const flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK
  const fd = typeof file === "string" ? openSync(file, flags) : openat2(file.dirFd, file.name, flags, 0, RESOLVE_STRICT)
  const stat = fstatSync(fd)
  if (stat.isFile()) return fd
  closeSync(fd)
  if (stat.isDirectory()) throw new CtxError("EISDIR", `${pathOf(file)}: a directory where a file is needed`)
  throw new CtxError("EINVAL", `${pathOf(file)}: not a regular file`)
}

/**
 * Reads a whole file of at most `maxSize` bytes; no link is followed.
 * Errors: those of `openFile`; `EFBIG` when it is longer, also when it grows while it is read.
 */
export function readFileNofollow(file: FileAt, maxSize: number): Buffer {
  const fd = openFile(file)
  try {
    return readWhole(fd, maxSize, pathOf(file))
  } finally {
    closeSync(fd)
  }
}

/** Reads an open file from offset 0 to its end. Errors: `EFBIG` above `maxSize` bytes. */
export function readWhole(fd: number, maxSize: number, what: string): Buffer {
  const chunks: Buffer[] = []
  let size = 0
  for (;;) {
    const chunk = Buffer.allocUnsafe(Math.min(65536, maxSize + 1 - size))
    const got = readSync(fd, chunk, 0, chunk.length, size)
    if (got === 0) return Buffer.concat(chunks, size)
    chunks.push(chunk.subarray(0, got))
    size += got
    if (size > maxSize) throw new CtxError("EFBIG", `${what}: longer than ${maxSize} bytes`)
  }
}

/** Writes all of `data` at the current position. Errors: errno of write, `EIO` when the kernel takes nothing. */
export function writeAll(fd: number, data: Buffer): void {
  let offset = 0
  while (offset < data.length) {
    const wrote = writeSync(fd, data, offset, data.length - offset)
    if (wrote === 0) throw new CtxError("EIO", "write took no byte")
    offset += wrote
  }
}

/** How `replaceFile` makes the new file; `mode` is exact, whatever the umask. */
export interface ReplaceOptions {
  mode: number
  uid?: number
  gid?: number
  /** fsync of the file before and of its directory after the rename */
  isDurable?: boolean
}

/** `n` bytes from the kernel's random source as lower-case hex. */
export function randomHex(sizeBytes: number): string {
  return getrandom(sizeBytes).toString("hex")
}

/**
 * Replaces the file `path`, or makes it, in one step: a temporary with the name of fuse.md 6.1 in the same directory,
 * then a rename. A reader sees the old or the new bytes (root-abi.md 3). Killed in between, the old file stays and a
 * temporary is left. Errors: errno of the system calls; then the temporary is removed and nothing has changed.
 */
export function replaceFile(path: string, data: Buffer | string, options: ReplaceOptions): void {
  const dir = dirname(path)
  const temp = `${dir}/.${basename(path)}.tmp-${process.pid}-${randomHex(8)}-1`
  const fd = openSync(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
  try {
    try {
      writeAll(fd, typeof data === "string" ? Buffer.from(data) : data)
      // chown first: it clears set-id bits, and until chmod nobody but us can open the file.
      if (options.uid !== undefined || options.gid !== undefined) {
        const now = fstatSync(fd)
        const uid = options.uid ?? now.uid
        const gid = options.gid ?? now.gid
        if (uid !== now.uid || gid !== now.gid) fchownSync(fd, uid, gid)
      }
      fchmodSync(fd, options.mode)
      if (options.isDurable) fsyncSync(fd)
    } finally {
      closeSync(fd)
    }
    renameSync(temp, path)
  } catch (error) {
    try {
      unlinkSync(temp)
    } catch {
      // The first error is the one to report; the name is already gone after a rename.
    }
    throw error
  }
  if (options.isDurable) fsyncDir(dir)
}

/** Makes the names in a directory durable. Errors: `ENOTDIR`, `ELOOP`, `EIO`. */
export function fsyncDir(path: string): void {
  const fd = openSync(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
  try {
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}

/**
 * Appends `bytes` to a file that is open with `O_APPEND` and is `expectedSize` bytes long, in one write.
 * Errors: `EIO` when the end is not where it was left, or when the write was short; errno of write. After an error the
 * caller must not append again before it has read the file anew.
 */
export function appendWhole(fd: number, bytes: Buffer, expectedSize: number): void {
  const before = fstatSync(fd).size
  if (before !== expectedSize) throw new CtxError("EIO", `file is ${before} bytes long, not ${expectedSize}`)
  const wrote = writeSync(fd, bytes, 0, bytes.length)
  if (wrote !== bytes.length) throw new CtxError("EIO", `short append: ${wrote} of ${bytes.length} bytes`)
  const after = fstatSync(fd).size
  if (after !== expectedSize + bytes.length) throw new CtxError("EIO", "another writer appended to the file")
}
