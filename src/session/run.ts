// The recorder of a run in a session directory (session-abi 6.3 steps 8, 9 and 12).
import { CtxError } from "../abi/error.js"
import type { JsonObject } from "../abi/json.js"
import { CONTROL_MAX, STATE_MAX } from "../abi/limit.js"
import { formatTs } from "../abi/time.js"
import { replaceDurably, replaceEntry } from "./entry.js"
import {
  eventFields,
  formatEvent,
  formatMessage,
  isDurableType,
  type Stored,
  settleEvents,
  startFields,
  toolParts,
  userFields,
} from "./format.js"
import { updateIndex } from "./indices.js"
import { type Journal, refusalOf } from "./journal.js"
import type { Ledger } from "./ledger.js"
import { changeModel, formatSeconds, readText } from "./meta.js"
import type { Place } from "./place.js"
import type { EventFields, Recorder, RunStart, Settlement, ToolResult } from "./recorder.js"
import { stateAfter } from "./recovery.js"
import { type EventRow, type Part, textOf } from "./row.js"
import { Turn } from "./turn.js"

/** What a run works on; the session owns it. `dirFd` holds the run lock. */
export interface RunContext {
  name: string
  place: Place
  sessionsFd: number
  dirFd: number
  journal: Journal
  ledger: Ledger
  /** Told of each event line that was stored. */
  onStored: (line: string) => void
  /** Told once, when nothing more will be recorded; `isSound` false: what is in memory is no longer proven. */
  onEnd: (isSound: boolean) => void
}

/**
 * Records the beginning of a run: user row, `start` and `state` durable in this order, then the small files and the
 * index. When it rejects, everything stored for the run has been taken back. Errors: `EINVAL`, `EMSGSIZE`, `EIO`, `ENOSPC`.
 */
export async function beginRun(context: RunContext, start: RunStart): Promise<Recorder> {
  const { journal, dirFd, place, name } = context
  const before = journal.sizes
  const state = readText(dirFd, "state", STATE_MAX) ?? "idle\n"
  try {
    const user = formatMessage("user", formatTs(), userFields(start))
    const [span] = await journal.append("messages.jsonl", [user.line], true)
    context.ledger.addMessage(user.row, span!)
    const line = await storeEvents(context, [startFields(start)], true)
    await replaceDurably(dirFd, "state", "active\n", place)
    replaceChanged(context, "cwd", `${start.cwd ?? "/"}\n`)
    replaceChanged(context, "updated_at", formatSeconds(Date.now()))
    // No other file can rebuild it, so it is the one that is replaced durably.
    const meta = changeModel(dirFd, start.model)
    if (meta !== undefined) await replaceDurably(dirFd, "meta.json", meta, place)
    await updateIndex(context.sessionsFd, name, place, start)
    context.onStored(line[0]!)
    return new RunRecorder(context, start.run, line[0]!)
  } catch (e) {
    try {
      await journal.rollBack(before)
      if (readText(dirFd, "state", STATE_MAX) !== state) replaceEntry(dirFd, "state", state, place)
    } finally {
      context.onEnd(false)
    }
    throw refusalOf(e, `session ${name}`)
  }
}

class RunRecorder implements Recorder {
  readonly run: string
  readonly startLine: string
  readonly #context: RunContext
  readonly #turn = new Turn()
  #isSettled = false
  #calls = 0

  constructor(context: RunContext, run: string, startLine: string) {
    this.#context = context
    this.run = run
    this.startLine = startLine
  }

  get isSettled(): boolean {
    return this.#isSettled
  }

  event(fields: EventFields, options: { durable?: boolean } = {}): Promise<string> {
    return this.#take(async () => {
      const isDurable = options.durable === true || isDurableType(fields.type)
      const [line] = await storeEvents(this.#context, [eventFields(this.run, fields)], isDurable)
      this.#context.onStored(line!)
      return line!
    })
  }

  toolResult(result: ToolResult): Promise<string> {
    return this.#take(async () => {
      const { name } = result
      const content = toolParts(result)
      const event = { type: "message", run: this.run, role: "tool", name, content }
      const [line] = await this.#storeBoth("tool", { run: this.run, name, content }, [event])
      this.#context.onStored(line!)
      return line!
    })
  }

  settle(settlement: Settlement): Promise<string[]> {
    return this.#take(async () => {
      const { parts, status } = settlement
      const events = settleEvents(this.run, settlement)
      const hasText = parts !== undefined && parts.length > 0
      const lines = hasText
        ? await this.#storeBoth("assistant", { run: this.run, content: parts }, events)
        : await storeEvents(this.#context, events, true)
      this.#isSettled = true
      const isSound = await this.#finish(hasText ? parts : undefined, stateAfter(status))
      for (const line of lines) this.#context.onStored(line)
      this.#context.onEnd(isSound)
      return lines
    })
  }

  abandon(): void {
    if (this.#isSettled) return
    this.#isSettled = true
    // A call that is under way still uses the files.
    if (this.#calls === 0) this.#context.onEnd(false)
    else void this.#turn.take(async () => this.#context.onEnd(false))
  }

  async #take<T>(work: () => Promise<T>): Promise<T> {
    this.#calls++
    try {
      return await this.#turn.take(async () => {
        if (this.#isSettled) throw new CtxError("EALREADY", `run ${this.run} is settled`)
        return work()
      })
    } finally {
      this.#calls--
    }
  }

  // A row and the events that repeat it are stored together or not at all.
  async #storeBoth(role: "tool" | "assistant", fields: JsonObject, events: JsonObject[]): Promise<string[]> {
    const { journal, ledger } = this.#context
    const before = journal.sizes
    const stored = formatMessage(role, formatTs(), fields)
    const [span] = await journal.append("messages.jsonl", [stored.line], true)
    try {
      return await storeEvents(this.#context, events, true, () => ledger.addMessage(stored.row, span!))
    } catch (e) {
      await journal.rollBack(before)
      throw e
    }
  }

  // The run is over and durable; a small file that cannot be written now is rewritten by the recovery of the next open.
  async #finish(parts: Part[] | undefined, state: string): Promise<boolean> {
    const { dirFd, place, sessionsFd, name } = this.#context
    try {
      if (parts !== undefined) replaceEntry(dirFd, "latest.md", `${textOf(parts)}\n`, place)
      replaceEntry(dirFd, "state", `${state}\n`, place)
      replaceChanged(this.#context, "updated_at", formatSeconds(Date.now()))
      await updateIndex(sessionsFd, name, place)
      return true
    } catch {
      return false
    }
  }
}

/**
 * Stores events that belong together; `onAppended` notes the row that they repeat, which counts only when these are stored
 * too. Errors: `EINVAL`, `EMSGSIZE`, `EIO`, `ENOSPC`; then none of them is stored.
 */
export async function storeEvents(
  context: RunContext,
  events: JsonObject[],
  isDurable: boolean,
  onAppended?: () => void,
): Promise<string[]> {
  const { journal, ledger } = context
  const ts = formatTs()
  const stored: Stored<EventRow>[] = events.map((fields, i) => formatEvent(ledger.events + 1 + i, ts, fields))
  const lines = stored.map(({ line }) => line)
  const spans = await journal.append("events.jsonl", lines, isDurable)
  onAppended?.()
  for (const [i, { row }] of stored.entries()) ledger.addEvent(row, spans[i]!)
  return lines
}

function replaceChanged(context: RunContext, name: string, text: string): void {
  const { dirFd, place } = context
  if (readText(dirFd, name, CONTROL_MAX) !== text) replaceEntry(dirFd, name, text, place)
}
