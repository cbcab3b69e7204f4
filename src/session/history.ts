// Readers of a proven or unproven history (session-abi 6.4, agent-runtime 10, ctx-coreutils 7).
import { closeSync, read } from "node:fs"
import { promisify } from "node:util"
import { CtxError } from "../abi/error.js"
import { openPlain, statFd } from "./entry.js"
import type { MessageRow } from "./row.js"
import { damageError, readLines } from "./scan.js"

const readAt = promisify(read)
const BACK_SIZE = 65536

/**
 * Stored lines in the first `size` bytes of `events.jsonl` behind a `seq` or behind the first line of an id, with LF. The
 * history has been proven. Errors: `ENOENT` no such id, before the first line; `EIO`.
 */
export async function* readStoredLines(dirFd: number, size: number, after?: number | string): AsyncGenerator<string> {
  const fd = openPlain(dirFd, "events.jsonl")
  try {
    let isReached = typeof after !== "string"
    for await (const line of readLines(fd, 0, size)) {
      if ("torn" in line) throw damageError("events.jsonl", { ...line, line: line.number, reason: line.torn })
      if (typeof after === "number" && line.number <= after) continue
      const text = line.bytes.toString("utf8")
      if (isReached) yield `${text}\n`
      else isReached = (JSON.parse(text) as { id?: unknown }).id === after
    }
    if (!isReached) throw new CtxError("ENOENT", `no event has the id ${after}`, { hint: "resume after a seq" })
  } finally {
    closeSync(fd)
  }
}

/** Which rows `readRecentRows` may give: those from byte `from` on; `total` rows are in the file. */
export interface RecentRange {
  from: number
  total: number
  maxBytes: number
}

/** The newest rows whose lines together are at most `maxBytes`, oldest first; reads the file backwards. The history has been proven. */
export async function readRecentRows(
  dirFd: number,
  range: RecentRange,
): Promise<{ rows: MessageRow[]; omitted: number }> {
  const fd = openPlain(dirFd, "messages.jsonl")
  try {
    const end = Number(statFd(fd).size)
    const start = await findRecentStart(fd, range.from, end, range.maxBytes)
    const rows: MessageRow[] = []
    for await (const line of readLines(fd, start, end)) {
      if ("torn" in line) throw new CtxError("EIO", "messages.jsonl is not as it was read", { path: "messages.jsonl" })
      rows.push(JSON.parse(line.bytes.toString("utf8")) as MessageRow)
    }
    const before = range.from === 0 ? 0 : await countLines(fd, range.from)
    return { rows, omitted: range.total - before - rows.length }
  } finally {
    closeSync(fd)
  }
}

// The lowest offset that begins a line and from which at most `maxBytes` bytes are left.
async function findRecentStart(fd: number, from: number, end: number, maxBytes: number): Promise<number> {
  const floor = Math.max(from, end - maxBytes)
  if (floor === from) return from
  // The byte before a line is the LF of another; looking one byte back finds a line that begins exactly at the floor.
  const chunk = Buffer.allocUnsafe(BACK_SIZE)
  for (let at = floor - 1; at < end; ) {
    const { bytesRead } = await readAt(fd, chunk, 0, Math.min(BACK_SIZE, end - at), at)
    if (bytesRead === 0) break
    const lf = chunk.subarray(0, bytesRead).indexOf(10)
    if (lf !== -1) return at + lf + 1
    at += bytesRead
  }
  return end
}

async function countLines(fd: number, end: number): Promise<number> {
  let lines = 0
  for await (const _ of readLines(fd, 0, end)) lines++
  return lines
}
