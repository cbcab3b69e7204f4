// Both files of a history at one moment, for commands (session-abi 11, 12; ctx-coreutils 7).
import { closeSync, constants, openSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { withBacking } from "./backing.js"
import { openDirectory, openPlain } from "./entry.js"
import type { Stamp } from "./journal.js"
import { noteSizes, type Proof, verifySession } from "./prove.js"
import type { EventRow, MessageRow } from "./row.js"
import { damageError, type HistoryFile, type Line, parseEvent, parseMessage, type Reason, readLines } from "./scan.js"

/** A session opened for reading. Rows written after the opening are not seen. */
export class HistoryReader {
  readonly dirFd: number
  readonly #messagesFd: number
  readonly #eventsFd: number
  readonly #stamp: Stamp

  private constructor(dirFd: number, messagesFd: number, eventsFd: number, stamp: Stamp) {
    this.dirFd = dirFd
    this.#messagesFd = messagesFd
    this.#eventsFd = eventsFd
    this.#stamp = stamp
  }

  /** Opens a session below a `session` directory. Errors: `ENOENT` no such session; `EIO` a link or special file; `EACCES`. */
  static async open(sessionsDir: string, name: string): Promise<HistoryReader> {
    const fds: number[] = []
    try {
      const dirFd = openSession(sessionsDir, name)
      fds.push(dirFd)
      const messagesFd = openPlain(dirFd, "messages.jsonl")
      fds.push(messagesFd)
      const eventsFd = openPlain(dirFd, "events.jsonl")
      fds.push(eventsFd)
      const stamp = await withBacking(dirFd, backingFd => noteSizes(messagesFd, eventsFd, backingFd))
      return new HistoryReader(dirFd, messagesFd, eventsFd, stamp)
    } catch (e) {
      for (const fd of fds) closeSync(fd)
      throw e
    }
  }

  /** Rows of `messages.jsonl` with their stored line without LF. Errors: `EIO` naming file and line of the first damage. */
  async *messages(): AsyncGenerator<{ row: MessageRow; line: Line }> {
    yield* readRows("messages.jsonl", this.#messagesFd, Number(this.#stamp.messages.size), parseMessage)
  }

  /** Rows of `events.jsonl`, as `messages`. */
  async *events(): AsyncGenerator<{ row: EventRow; line: Line }> {
    yield* readRows("events.jsonl", this.#eventsFd, Number(this.#stamp.events.size), parseEvent)
  }

  /** Closes every descriptor. */
  close(): void {
    for (const fd of [this.#messagesFd, this.#eventsFd, this.dirFd]) closeSync(fd)
  }
}

async function* readRows<Row>(
  file: HistoryFile,
  fd: number,
  size: number,
  parse: (line: Line) => Row | Reason,
): AsyncGenerator<{ row: Row; line: Line }> {
  for await (const line of readLines(fd, 0, size)) {
    const row = "torn" in line ? line.torn : parse(line)
    if (typeof row === "string")
      throw damageError(file, { line: line.number, offset: line.offset, reason: row as Reason })
    yield { row: row as Row, line: line as Line }
  }
}

/** Opens a session directory below a `session` directory that is named by a path. Errors: `ENOENT`, `EIO`, `EACCES`. */
export function openSession(sessionsDir: string, name: string): number {
  try {
    // The path before it is the caller's own; below it no link is followed.
    const sessionsFd = openSync(sessionsDir, constants.O_RDONLY | constants.O_DIRECTORY)
    try {
      return openDirectory(name, sessionsFd)
    } finally {
      closeSync(sessionsFd)
    }
  } catch (e) {
    if (codeOf(e) !== "ENOENT") throw e
    const hint = "run ctx agent session list"
    throw new CtxError("ENOENT", `session ${name} does not exist`, { path: `${sessionsDir}/${name}`, hint, cause: e })
  }
}

/** Verifies a session named by path and name: one report for each file (12). Errors: `ENOENT`, `EIO`, `EACCES`. */
export async function verifyNamed(sessionsDir: string, name: string): Promise<Proof[]> {
  const dirFd = openSession(sessionsDir, name)
  try {
    return await withBacking(dirFd, backingFd => verifySession(dirFd, backingFd))
  } finally {
    closeSync(dirFd)
  }
}
