import { isUtf8 } from "node:buffer"
import { closeSync, constants, fstatSync, openSync, readSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"

const FILE_MAX = 64 * 1024 * 1024
/** Bytes of text that one result of a file tool carries. */
export const TEXT_MAX = 15_360
const LF = 0x0a

/** Input of `fs.read`, defaults filled in. */
export interface ReadInput {
  path: string
  line: number
  lines: number
}

/** Opens what is there without waiting for a writer or reader, and takes only a regular file. */
function openText(path: string): number {
  let fd: number
  try {
    fd = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOCTTY)
  } catch (e) {
    // A socket, or a device nobody serves.
    if (codeOf(e) === "ENXIO" || codeOf(e) === "ENODEV") throw new CtxError("EINVAL", `${path}: not a regular file`)
    throw e
  }
  const facts = fstatSync(fd)
  if (facts.isFile() && facts.size <= FILE_MAX) return fd
  closeSync(fd)
  if (facts.isDirectory()) throw new CtxError("EISDIR", path)
  if (facts.isFile()) throw new CtxError("EFBIG", `${path}: more than ${FILE_MAX} bytes`)
  throw new CtxError("EINVAL", `${path}: not a regular file`)
}

function readText(path: string): Buffer {
  const fd = openText(path)
  try {
    // One byte more than the size tells whether the file has grown; /proc files say 0 and are read to their end.
    let bytes = Buffer.allocUnsafe(Math.max(fstatSync(fd).size + 1, 4096))
    let size = 0
    for (;;) {
      const got = readSync(fd, bytes, size, bytes.length - size, null)
      if (got === 0) break
      size += got
      if (size > FILE_MAX) throw new CtxError("EFBIG", `${path}: more than ${FILE_MAX} bytes`)
      if (size === bytes.length) bytes = Buffer.concat([bytes], Math.min(size * 2, FILE_MAX + 1))
    }
    return bytes.subarray(0, size)
  } finally {
    closeSync(fd)
  }
}

/** Where the wanted lines begin, where the ones that fit end, and how many lines there are. */
interface Span {
  start: number
  end: number
  /** Number of the last line that fits whole; below the first one when not even that fits. */
  last: number
  /** End of the first wanted line. */
  firstEnd: number
  count: number
}

function findSpan(bytes: Buffer, first: number, lines: number): Span {
  const span: Span = { start: -1, end: -1, last: first - 1, firstEnd: -1, count: 0 }
  let isFull = false
  for (let start = 0; start < bytes.length; ) {
    const lf = bytes.indexOf(LF, start)
    const end = lf === -1 ? bytes.length : lf + 1
    const number = ++span.count
    if (number === first) {
      span.start = span.end = start
      span.firstEnd = end
    }
    if (number >= first && !isFull) {
      if (number - first < lines && end - span.start <= TEXT_MAX) {
        span.end = end
        span.last = number
      } else isFull = true
    }
    start = end
  }
  return span
}

/**
 * The result text of `fs.read`: whole lines from `line` on, at most `lines` of them and 15,360 bytes, and where to go
 * on. Links are followed. Errors: ENOENT, ENOTDIR, EACCES, EISDIR, EFBIG (over 64 MiB), EINVAL (special file, no UTF-8
 * text, `line` beyond the end). tool-policy-abi 5.3
 */
export function readLines({ path, line, lines }: ReadInput): string {
  const bytes = readText(path)
  if (bytes.includes(0) || !isUtf8(bytes)) throw new CtxError("EINVAL", `${path}: not UTF-8 text`)
  const span = findSpan(bytes, line, lines)
  if (line > Math.max(span.count, 1)) throw new CtxError("EINVAL", `${path}: line ${line} of ${span.count}`)
  if (span.count === 0) return ""
  if (span.last < line) {
    let end = span.start + TEXT_MAX
    while ((bytes[end]! & 0xc0) === 0x80) end--
    const text = bytes.toString("utf8", span.start, end)
    return `${text}\n[cut: line ${line} at byte ${end - span.start} of ${span.firstEnd - span.start}]\n`
  }
  const text = bytes.toString("utf8", span.start, span.end)
  if (span.last === span.count) return text
  return `${text}[cut: lines ${line}-${span.last} of ${span.count}; next line=${span.last + 1}]\n`
}
