// What the two files of a session prove: claims, unfinished runs, contradictions (session-abi 6.2, 11, 12).
import { type DoneStatus, showDoneStatus } from "../abi/status.js"
import { type Claim, claimOf } from "./claim.js"
import { type EventRow, isKnownEvent, type MessageRow } from "./row.js"
import { stampOf } from "./same.js"
import type { Span } from "./scan.js"

interface Run {
  claim: Claim
  /** The run whose user row comes before this one's. */
  before?: Run
  start?: Span
  done?: Span
  status?: DoneStatus
  /** The last event of the run is an `error` `EINTR`. */
  isInterrupted: boolean
  /** Stamps of the tool and assistant rows, dropped with `done`; how many of them have their event. */
  rows?: number[]
  told: number
  /** An assistant row ends the rows of a run. */
  isAnswered: boolean
  /** A repair set aside events while the run had no `done`: its rows may lack theirs. */
  isRepaired: boolean
  /** Ids of questions without a result. */
  open?: Set<string>
}

/**
 * Facts of one session, built row by row: all of `messages.jsonl` first, then `events.jsonl`; a run that is being recorded
 * adds each row before its event. Memory grows with the runs, and by eight bytes with each row of a run without `done`.
 */
export class Ledger {
  #runs = new Map<string, Run>()
  #byClient = new Map<string, Run>()
  #imported = new Set<string>()
  /** In the order of their user rows. */
  #unfinished = new Set<Run>()
  /** Whose rows may follow. */
  #current: Run | undefined
  /** Rows of `messages.jsonl` and of `events.jsonl`. The next `seq` is `events` + 1. */
  messages = 0
  events = 0
  /** Byte length of the messages before the last reset, 0 without one. */
  resetOffset = 0
  /** The last assistant row. */
  latest: Span | undefined
  /** cwd of the last user row, undefined without one. */
  cwd: string | null | undefined
  /** Latest `ts` of any row. */
  ts: string | undefined
  /** Status of the last `done`. */
  lastStatus: DoneStatus | undefined

  /** Takes in a row of `messages.jsonl`; false when it contradicts an earlier one. */
  addMessage(row: MessageRow, span: Span): boolean {
    this.messages++
    this.#see(row.ts)
    if (row.role === "assistant") this.latest = span
    if (row.role === "user") this.cwd = row.cwd
    if (row.import !== undefined) {
      if (row.role === "user" && row.run !== undefined) this.#imported.add(row.run)
      return true
    }
    if (row.role === "user") return this.#addUser(claimOf(row))
    const run = this.#current
    if (run === undefined || row.run !== run.claim.run) return this.#imported.has(row.run as string)
    if (run.isAnswered) return false
    run.isAnswered = row.role === "assistant"
    run.rows ??= []
    run.rows.push(stampOf(row))
    return true
  }

  #addUser(claim: Claim): boolean {
    if (this.#runs.has(claim.run) || this.#imported.has(claim.run) || this.#byClient.has(claim.clientId)) return false
    const run: Run = {
      claim,
      before: this.#current,
      isInterrupted: false,
      rows: undefined,
      told: 0,
      isAnswered: false,
      isRepaired: false,
    }
    this.#runs.set(claim.run, run)
    this.#byClient.set(claim.clientId, run)
    this.#unfinished.add(run)
    this.#current = run
    return true
  }

  /** Takes in a row of `events.jsonl`; false when it contradicts an earlier row of either file. */
  addEvent(row: EventRow, span: Span): boolean {
    this.events++
    this.#see(row.ts)
    if (row.type === "context_reset") this.resetOffset = row.offset as number
    if (row.type === "repair") for (const cut of this.#unfinished) cut.isRepaired = true
    if (row.run === undefined || row.import !== undefined || row.type.startsWith("import.")) return true
    const run = this.#runs.get(row.run)
    if (run === undefined) return this.#imported.has(row.run) || !isKnownEvent(row.type)
    if (run.done !== undefined) return isLateAnswer(run, row)
    if (row.type === "start") return addStart(run, row, span)
    if (run.start === undefined) return !isKnownEvent(row.type)
    if (row.type === "done" && !isWhole(run)) return false
    if (row.type === "message" && run.rows?.[run.told++] !== stampOf(row)) return false
    run.isInterrupted = row.type === "error" && row.code === "EINTR"
    if (row.type === "approval_request" || row.type === "input_request") {
      run.open ??= new Set()
      run.open.add(row.id as string)
    }
    if (row.type === "approval_result" || row.type === "input_result") run.open?.delete(row.id as string)
    if (row.type !== "done") return true
    run.done = span
    run.rows = undefined
    run.status = showDoneStatus(row.status as string)
    this.lastStatus = run.status
    this.#unfinished.delete(run)
    return true
  }

  /**
   * False when the events end earlier than any crash can have left them: an earlier run than the last is not finished, or
   * the last has rows whose events are missing. To be asked after the last row of both files.
   */
  isComplete(): boolean {
    if (this.events === 0) return this.#runs.size === 0
    for (const run of this.#unfinished) {
      if (run.isRepaired) continue
      if (run !== this.#current) return false
      if (run.rows !== undefined && (run.start === undefined || run.rows.length > run.told + 1)) return false
    }
    return true
  }

  /** The claim of a client id and where its lines lie. O(1). */
  findClient(clientId: string): (Claim & { start?: Span; done?: Span }) | undefined {
    return view(this.#byClient.get(clientId))
  }

  /** The claim of a run and where its lines lie. O(1). */
  findRun(run: string): (Claim & { start?: Span; done?: Span }) | undefined {
    return view(this.#runs.get(run))
  }

  /** Runs without `done`, in file order. */
  *unfinished(): Generator<{ claim: Claim; hasStart: boolean; isInterrupted: boolean }> {
    for (const { claim, start, isInterrupted } of this.#unfinished) {
      yield { claim, hasStart: start !== undefined, isInterrupted }
    }
  }

  get hasUnfinished(): boolean {
    return this.#unfinished.size > 0
  }

  #see(ts: string): void {
    if (this.ts === undefined || ts > this.ts) this.ts = ts
  }
}

function view(run: Run | undefined): (Claim & { start?: Span; done?: Span }) | undefined {
  return run && { ...run.claim, status: run.status, start: run.start, done: run.done }
}

// A row is durable before its event, so a crash leaves one row without, the last, in a run that recovery then ended.
function isWhole(run: Run): boolean {
  const missing = (run.rows?.length ?? 0) - run.told
  return missing === 0 || run.isRepaired || (missing === 1 && run.isInterrupted)
}

function addStart(run: Run, row: EventRow, span: Span): boolean {
  const { claim } = run
  const fits =
    row.id === row.run &&
    row.client_id === claim.clientId &&
    (row.op ?? "send") === claim.op &&
    row.scope === claim.scope &&
    row.shared === claim.shared &&
    row.cwd === claim.cwd &&
    row.resumes === claim.resumes &&
    row.pending === claim.pending
  // Recovery ends a run before the next one begins, so runs begin in the order of their user rows.
  const isNext = run.before === undefined || run.before.done !== undefined
  if (!fits || !isNext || run.start !== undefined) return false
  run.start = span
  return true
}

// A question that the run left open may be answered after its `done` (6.10); nothing else may follow it.
function isLateAnswer(run: Run, row: EventRow): boolean {
  if (row.type !== "approval_result" && row.type !== "input_result") return false
  return run.open?.delete(row.id as string) ?? false
}
