// What the two files of a session prove: claims, unfinished runs, contradictions (session-abi 6.2, 11, 12).
import { type DoneStatus, showDoneStatus } from "../abi/status.js"
import { type Claim, claimOf } from "./claim.js"
import type { EventRow, MessageRow } from "./row.js"
import type { Span } from "./scan.js"

interface Run {
  claim: Claim
  start?: Span
  done?: Span
  status?: DoneStatus
  /** The last event of the run is an `error` `EINTR`. */
  isInterrupted: boolean
  /** Ids of questions without a result. */
  open?: Set<string>
}

/** Facts of one session, built row by row: all of `messages.jsonl` first, then `events.jsonl`. Memory grows with the runs. */
export class Ledger {
  #runs = new Map<string, Run>()
  #byClient = new Map<string, Run>()
  #unfinished = new Set<Run>()
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
    if (row.role !== "user") return true
    this.cwd = row.cwd
    if (row.import !== undefined) return true
    const claim = claimOf(row)
    const known = this.#runs.get(claim.run) ?? this.#byClient.get(claim.clientId)
    if (known !== undefined) return isSameClaim(known.claim, claim)
    const run: Run = { claim, isInterrupted: false }
    this.#runs.set(claim.run, run)
    this.#byClient.set(claim.clientId, run)
    this.#unfinished.add(run)
    return true
  }

  /** Takes in a row of `events.jsonl`; false when it contradicts an earlier row of either file. */
  addEvent(row: EventRow, span: Span): boolean {
    this.events++
    this.#see(row.ts)
    if (row.type === "context_reset") this.resetOffset = row.offset as number
    if (row.run === undefined || row.import !== undefined || row.type.startsWith("import.")) return true
    const run = this.#runs.get(row.run)
    if (row.type === "start") return run !== undefined && addStart(run, row, span)
    if (run === undefined) return row.type !== "done"
    if (run.done !== undefined) return isLateAnswer(run, row)
    run.isInterrupted = row.type === "error" && row.code === "EINTR"
    if (row.type === "approval_request" || row.type === "input_request") {
      run.open ??= new Set()
      run.open.add(row.id as string)
    }
    if (row.type === "approval_result" || row.type === "input_result") run.open?.delete(row.id as string)
    if (row.type !== "done") return true
    if (run.start === undefined) return false
    run.done = span
    run.status = showDoneStatus(row.status as string)
    this.lastStatus = run.status
    this.#unfinished.delete(run)
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

function isSameClaim(a: Claim, b: Claim): boolean {
  return (
    a.clientId === b.clientId &&
    a.run === b.run &&
    a.op === b.op &&
    a.scope === b.scope &&
    a.shared === b.shared &&
    a.cwd === b.cwd &&
    a.pending === b.pending &&
    a.resumes === b.resumes &&
    a.digest === b.digest
  )
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
  if (!fits || run.done !== undefined) return false
  run.start ??= span
  return true
}

// A question that the run left open may be answered after its `done` (6.10); nothing else may follow it.
function isLateAnswer(run: Run, row: EventRow): boolean {
  if (row.type !== "approval_result" && row.type !== "input_result") return false
  return run.open?.delete(row.id as string) ?? false
}
