// Reads a JSONL file line by line with bounded memory and says where it is damaged (session-abi 12).
import { isUtf8 } from "node:buffer"
import { closeSync, read } from "node:fs"
import { promisify } from "node:util"
import { CtxError } from "../abi/error.js"
import { isObject, type JsonObject, parseJson } from "../abi/json.js"
import { ROW_MAX } from "../abi/limit.js"
import { isUtf8Text } from "../abi/name.js"
import { openPlain } from "./entry.js"
import { type EventRow, isEventRow, isMessageRow, type MessageRow } from "./row.js"

/** Where a stored line lies: offset of its first byte and its size with LF. */
export interface Span {
  offset: number
  size: number
}

const readAt = promisify(read)
const CHUNK_SIZE = 1 << 20
const CR = 13

export type Reason =
  | "torn-tail"
  | "bad-utf8"
  | "bad-json"
  | "not-object"
  | "row-too-long"
  | "bad-field"
  | "seq-gap"
  | "contradiction"

/** The first bad line of a file: 1-based number, byte offset of its first byte, reason. */
export interface Damage {
  line: number
  offset: number
  reason: Reason
}

/** One whole line: 1-based number, offset of its first byte, bytes without LF. */
export interface Line {
  number: number
  offset: number
  bytes: Buffer
}

export type HistoryFile = "messages.jsonl" | "events.jsonl"

/** The `EIO` that names file and line of a damaged history. */
export function damageError(file: string, damage: Damage): CtxError {
  return new CtxError("EIO", `${file} line ${damage.line} is damaged: ${damage.reason}`, {
    path: file,
    hint: "run ctx agent session verify",
  })
}

/**
 * Gives each line of the first `size` bytes to `visit`, in order; `visit` returns what is wrong with it, if anything.
 * Stops at the first damage. Memory: the longest line and one chunk. Errors: `EIO` when the file ends before `size`.
 */
export async function scanFile(
  fd: number,
  size: number,
  visit: (line: Line) => Reason | undefined,
): Promise<{ rows: number; damage?: Damage }> {
  let rows = 0
  for await (const line of readLines(fd, 0, size)) {
    const reason = "torn" in line ? line.torn : visit(line)
    if (reason !== undefined) return { rows, damage: { line: line.number, offset: line.offset, reason } }
    rows++
  }
  return { rows }
}

/** A line that cannot be read whole. It is the last one given. */
export interface TornLine {
  number: number
  offset: number
  torn: Reason
}

/** The lines in bytes `from` to `size`, then a torn one if the last has no LF or is longer than a row may be. */
export async function* readLines(fd: number, from: number, size: number): AsyncGenerator<Line | TornLine> {
  let rest: Buffer[] = []
  let restSize = 0
  let offset = from
  let number = 1
  for (let at = from; at < size; ) {
    const chunk = Buffer.allocUnsafe(Math.min(CHUNK_SIZE, size - at))
    const { bytesRead } = await readAt(fd, chunk, 0, chunk.length, at)
    if (bytesRead === 0) throw new CtxError("EIO", "history file became shorter while it was read")
    at += bytesRead
    let start = 0
    for (;;) {
      const end = chunk.subarray(0, bytesRead).indexOf(10, start)
      if (end === -1) break
      const piece = chunk.subarray(start, end)
      const bytes = restSize === 0 ? piece : Buffer.concat([...rest, piece])
      rest = []
      restSize = 0
      if (bytes.length >= ROW_MAX) return yield { number, offset, torn: "row-too-long" }
      yield { number, offset, bytes }
      offset += bytes.length + 1
      number++
      start = end + 1
    }
    rest.push(chunk.subarray(start, bytesRead))
    restSize += bytesRead - start
    if (restSize >= ROW_MAX) return yield { number, offset, torn: "row-too-long" }
  }
  if (restSize > 0) yield { number, offset, torn: "torn-tail" }
}

/** The object on a line, or why there is none. */
export function parseLine(bytes: Buffer): JsonObject | Reason {
  if (!isUtf8(bytes)) return "bad-utf8"
  // JSON takes it for white space, but it is half of another system's line end: the file has been through an editor.
  if (bytes[bytes.length - 1] === CR) return "bad-json"
  let value: unknown
  try {
    value = parseJson(bytes)
  } catch {
    return "bad-json"
  }
  // Bytes that are UTF-8 can name half a character only by an escape.
  if ((bytes.includes("\\ud") || bytes.includes("\\uD")) && !isWellFormed(value)) return "bad-utf8"
  return isObject(value) ? value : "not-object"
}

function isWellFormed(value: unknown): boolean {
  if (typeof value === "string") return isUtf8Text(value)
  if (Array.isArray(value)) return value.every(isWellFormed)
  return !isObject(value) || Object.entries(value).every(([key, member]) => isUtf8Text(key) && isWellFormed(member))
}

/** The row of `messages.jsonl` on a line, or why there is none. */
export function parseMessage(line: Line): MessageRow | Reason {
  const row = parseLine(line.bytes)
  if (typeof row === "string") return row
  return isMessageRow(row) ? (row as unknown as MessageRow) : "bad-field"
}

/** The row of `events.jsonl` on a line, or why there is none; `seq` must be the line number. */
export function parseEvent(line: Line): EventRow | Reason {
  const row = parseLine(line.bytes)
  if (typeof row === "string") return row
  if (!isEventRow(row)) return "bad-field"
  return row.seq === line.number ? (row as unknown as EventRow) : "seq-gap"
}

/** The bytes of one stored line, with LF. Errors: `EIO` when they are not there. */
export async function readSpan(dirFd: number, file: HistoryFile, span: Span): Promise<Buffer> {
  const fd = openPlain(dirFd, file)
  try {
    const line = Buffer.allocUnsafe(span.size)
    const { bytesRead } = await readAt(fd, line, 0, span.size, span.offset)
    if (bytesRead === span.size && line[span.size - 1] === 10) return line
    throw new CtxError("EIO", `${file} is not as it was read`, { path: file })
  } finally {
    closeSync(fd)
  }
}
