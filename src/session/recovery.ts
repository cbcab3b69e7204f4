// Recovery of what a killed process left (session-abi 11). The caller holds the run lock and has proven both files.
import { closeSync } from "node:fs"
import { codeOf } from "../abi/error.js"
import { formatRow } from "../abi/json.js"
import { ROW_MAX } from "../abi/limit.js"
import type { DoneStatus, SessionState } from "../abi/status.js"
import { formatTs, parseTs } from "../abi/time.js"
import type { Claim } from "./claim.js"
import { openPlain, replaceEntry, statFd } from "./entry.js"
import type { Journal } from "./journal.js"
import type { Ledger } from "./ledger.js"
import { formatSeconds, readLineValue, readState } from "./meta.js"
import type { Place } from "./place.js"
import { type EventRow, type MessageRow, orderEvent, type Part, textOf } from "./row.js"
import { readSpan, type Span } from "./scan.js"

/** The state that a finished run leaves (session-abi 8). */
export function stateAfter(status: DoneStatus): SessionState {
  return status === "ok" ? "done" : status === "error" ? "error" : "idle"
}

/** True when a session's files say that a run was cut off or a small file was lost; reads only. Errors: `EIO` malformed state. */
export function needsRecovery(dirFd: number, ledger: Ledger): boolean {
  const state = readState(dirFd)
  if (ledger.hasUnfinished || state === undefined || state === "active") return true
  if (readLineValue(dirFd, "updated_at") === undefined) return true
  if (readLineValue(dirFd, "cwd") === undefined && ledger.cwd !== undefined) return true
  return isLatestLost(dirFd, ledger)
}

// Assistant text can be longer than any control, so only the size is looked at; it is never longer than the row it is from.
function isLatestLost(dirFd: number, ledger: Ledger): boolean {
  let fd: number
  try {
    fd = openPlain(dirFd, "latest.md")
  } catch (e) {
    if (codeOf(e) === "ENOENT") return true
    throw e
  }
  try {
    const { size } = statFd(fd)
    return size > ROW_MAX || (size === 0n && ledger.latest !== undefined)
  } finally {
    closeSync(fd)
  }
}

/**
 * Ends every unfinished run with `EINTR`, in file order, durably; then rewrites `state`, `latest.md` and what a power cut
 * emptied. Nothing is executed. A second recovery appends nothing. True when `updated_at` moved, so that the session belongs
 * at the head of the list. Errors: `EIO`, `ENOSPC`.
 */
export async function recoverSession(dirFd: number, place: Place, ledger: Ledger, journal: Journal): Promise<boolean> {
  const lines: string[] = []
  const rows: Record<string, unknown>[] = []
  const add = (fields: Record<string, unknown>): void => {
    const row = orderEvent(ledger.events + rows.length + 1, formatTs(), fields)
    rows.push(row)
    lines.push(`${formatRow(row)}\n`)
  }
  for (const { claim, hasStart, isInterrupted } of ledger.unfinished()) {
    const { run } = claim
    if (!hasStart) add(startOf(claim))
    if (!isInterrupted) add({ type: "error", run, code: "EINTR", message: "run was interrupted" })
    add({ type: "done", run, status: "error" })
  }
  if (lines.length > 0) {
    const spans = await journal.append("events.jsonl", lines, true)
    for (const [i, row] of rows.entries()) ledger.addEvent(row as unknown as EventRow, spans[i]!)
  }
  return rewriteControls(dirFd, place, ledger, lines.length > 0)
}

/** The fields of a `start` event, from what the user row proves. */
function startOf(claim: Claim): Record<string, unknown> {
  const { run, clientId, op, scope, shared, cwd, resumes, pending } = claim
  return {
    type: "start",
    id: run,
    run,
    client_id: clientId,
    op: op === "send" ? undefined : op,
    scope,
    shared,
    cwd,
    resumes,
    pending,
  }
}

// `state` comes last of what depends on it: killed before, the next recovery starts over.
async function rewriteControls(dirFd: number, place: Place, ledger: Ledger, wasUnfinished: boolean): Promise<boolean> {
  const state = readState(dirFd)
  const isMoved = wasUnfinished || state === "active" || state === undefined
  if (isMoved || isLatestLost(dirFd, ledger)) {
    replaceEntry(dirFd, "latest.md", await readLatest(dirFd, ledger.latest), place)
  }
  if (readLineValue(dirFd, "cwd") === undefined && ledger.cwd !== undefined) {
    replaceEntry(dirFd, "cwd", `${ledger.cwd ?? "/"}\n`, place)
  }
  if (isMoved || readLineValue(dirFd, "updated_at") === undefined) {
    const time = ledger.ts === undefined ? Date.now() : parseTs(ledger.ts)
    replaceEntry(dirFd, "updated_at", formatSeconds(time), place)
  }
  const proven = ledger.lastStatus === undefined ? "idle" : stateAfter(ledger.lastStatus)
  if (isMoved && state !== proven) replaceEntry(dirFd, "state", `${proven}\n`, place)
  return isMoved
}

async function readLatest(dirFd: number, span: Span | undefined): Promise<string> {
  if (span === undefined) return ""
  const row = JSON.parse((await readSpan(dirFd, "messages.jsonl", span)).toString("utf8")) as MessageRow
  return `${textOf(row.content as Part[])}\n`
}
