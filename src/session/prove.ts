// One reading of both history files that says whether they are whole and consistent (session-abi 12).
import { closeSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { openPlain, statFd } from "./entry.js"
import { lockHistory, type Stamp } from "./journal.js"
import { checkKinds } from "./kind.js"
import { Ledger } from "./ledger.js"
import { type Damage, type HistoryFile, parseEvent, parseMessage, scanFile } from "./scan.js"

/** What a reading found in one file. `rows` counts the good rows before the damage. */
export interface Proof {
  file: HistoryFile
  rows: number
  bytes: number
  damage?: Damage
}

/**
 * Reads both files up to the sizes of `stamp`, `messages.jsonl` first, and fills the ledger. With damaged messages the
 * events are checked line by line but not against the messages. Errors: `EIO` a file cannot be read.
 */
export async function proveHistory(
  messagesFd: number,
  eventsFd: number,
  stamp: Stamp,
  ledger: Ledger,
): Promise<Proof[]> {
  const messages = await scanFile(messagesFd, Number(stamp.messages.size), line => {
    const row = parseMessage(line)
    if (typeof row === "string") return row
    return ledger.addMessage(row, { offset: line.offset, size: line.bytes.length + 1 }) ? undefined : "contradiction"
  })
  const isComparable = messages.damage === undefined
  const size = Number(stamp.events.size)
  const events = await scanFile(eventsFd, size, line => {
    const row = parseEvent(line)
    if (typeof row === "string") return row
    const isConsistent = ledger.addEvent(row, { offset: line.offset, size: line.bytes.length + 1 })
    return isConsistent || !isComparable ? undefined : "contradiction"
  })
  // What is missing would stand behind the last line.
  if (isComparable && events.damage === undefined && !ledger.isComplete()) {
    events.damage = { line: events.rows + 1, offset: size, reason: "contradiction" }
  }
  return [
    { file: "messages.jsonl", bytes: Number(stamp.messages.size), ...messages },
    { file: "events.jsonl", bytes: size, ...events },
  ]
}

/**
 * Verifies a session directory: a report for each of both files; reads only. `backingFd` is the same directory on the
 * durable tree, where the history lock is taken while the sizes are noted.
 * Errors: `ENOENT`, `EACCES`; `EIO` a link or special file stands where a plain entry of session-abi 7 belongs.
 */
export async function verifySession(dirFd: number, backingFd: number | undefined): Promise<Proof[]> {
  checkKinds(dirFd)
  const messagesFd = openPlain(dirFd, "messages.jsonl")
  try {
    const eventsFd = openPlain(dirFd, "events.jsonl")
    try {
      const stamp = await noteSizes(messagesFd, eventsFd, backingFd)
      return await proveHistory(messagesFd, eventsFd, stamp, new Ledger())
    } finally {
      closeSync(eventsFd)
    }
  } finally {
    closeSync(messagesFd)
  }
}

/**
 * Both files' facts at one moment, under the shared history lock, which is released before anything is read. Where the
 * durable tree cannot be seen the events are noted first: what they speak of is then in the messages.
 */
export async function noteSizes(messagesFd: number, eventsFd: number, backingFd: number | undefined): Promise<Stamp> {
  if (backingFd === undefined) {
    const events = statFd(eventsFd)
    return { messages: statFd(messagesFd), events }
  }
  const lockFd = openPlain(backingFd, "messages.jsonl")
  try {
    await lockHistory(lockFd, "sh")
    return { messages: statFd(messagesFd), events: statFd(eventsFd) }
  } finally {
    closeSync(lockFd)
  }
}

/**
 * Opens a history file for reading. A session is made whole, so one that is missing has been taken away.
 * Errors: `EIO` missing, a link or a special file; `EACCES`.
 */
export function openHistory(dirFd: number, name: HistoryFile): number {
  try {
    return openPlain(dirFd, name)
  } catch (e) {
    if (codeOf(e) !== "ENOENT") throw e
    throw new CtxError("EIO", `${name} is missing`, { path: name, hint: "run ctx agent session verify", cause: e })
  }
}
