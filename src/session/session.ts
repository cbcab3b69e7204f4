import { closeSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import type { JsonObject } from "../abi/json.js"
import type { SessionState } from "../abi/status.js"
import { flock } from "../native/sys.js"
import { type Claim, isSamePayload, type Payload } from "./claim.js"
import { isSameEntry, openDirectory, statFd } from "./entry.js"
import { readRecentRows, readStoredLines } from "./history.js"
import { updateIndex } from "./indices.js"
import { isSameStamp, Journal, lockHistory, type Stamp } from "./journal.js"
import { checkKinds } from "./kind.js"
import { Ledger } from "./ledger.js"
import { readLineValue, readState } from "./meta.js"
import type { Place } from "./place.js"
import { noteSizes, openHistory, proveHistory } from "./prove.js"
import type { Recorder, RunStart } from "./recorder.js"
import { needsRecovery, recoverSession } from "./recovery.js"
import type { MessageRow } from "./row.js"
import { beginRun, type RunContext, storeEvents } from "./run.js"
import { damageError, readSpan } from "./scan.js"
import { Turn } from "./turn.js"

/** What a session holds at creation (session-abi 7, 9). */
export interface Creation {
  /** Null for model sessions (`/` is written). */
  cwd: string | null
  model?: string
  title?: string
}

/** One session directory. One object per name and process (`Sessions.find`), so that claims stay warm. */
export class Session {
  readonly name: string
  readonly dir: string
  readonly place: Place
  readonly #turn = new Turn()
  readonly #listeners = new Set<(line: string) => void>()
  #ledger: Ledger | undefined
  #stamp: Stamp | undefined
  #runLockFd: number | undefined
  #recorder: Recorder | undefined
  #journal: Journal | undefined
  #isBeginning = false
  #mustUnlock = false

  constructor(place: Place, name: string) {
    this.name = name
    this.place = place
    this.dir = `${place.dir}/${name}`
  }

  /**
   * Proves the history and loads its claims, and recovers an interrupted run when the run lock is free or held here
   * (session-abi 6.3 step 2, 11, 12). Reads nothing of the history when nobody wrote since the last call. Call it again
   * after `tryLockRun`, before `begin`. Errors: `EIO` damaged history, malformed state, special file; `ENOENT`; `ENOSPC`.
   */
  open(): Promise<void> {
    return this.#turn.take(async () => {
      // While a run is recorded here this object is the only writer, and its ledger follows every append.
      if (this.#recorder !== undefined) return
      const dirFd = this.#openDir()
      try {
        await this.#prove(dirFd)
        if (needsRecovery(dirFd, this.#provenLedger())) await this.#recover(dirFd)
      } finally {
        closeSync(dirFd)
      }
    })
  }

  /** Proves the history without recovering anything. Errors: `EIO`, `ENOENT`. */
  inspect(): Promise<void> {
    return this.#turn.take(async () => {
      if (this.#recorder !== undefined) return
      const dirFd = this.#openDir()
      try {
        await this.#prove(dirFd)
      } finally {
        closeSync(dirFd)
      }
    })
  }

  /** The claim of a client id, O(1). Only after `open`. */
  findClaim(clientId: string): Claim | undefined {
    return this.#provenLedger().findClient(clientId)
  }

  /**
   * The line that answers a repeated request: the stored `done`, else the stored `start`, with LF; undefined when the id
   * is new (6.2). Only after `open`. Errors: `EINVAL` another payload; `EIO`.
   */
  async replay(clientId: string, payload: Payload): Promise<string | undefined> {
    const claim = this.#provenLedger().findClient(clientId)
    if (claim === undefined) return undefined
    if (!isSamePayload(claim, payload)) {
      throw new CtxError("EINVAL", `id ${clientId} was used with another payload`, { hint: "use a new id" })
    }
    const span = claim.done ?? claim.start
    // A held run lock kept recovery away in the moment between user row and start.
    if (span === undefined)
      throw new CtxError("EBUSY", `run of id ${clientId} is being recorded`, { hint: "send again" })
    return this.#readLine(span)
  }

  /** The stored `done` line of a finished run, undefined for an unfinished or unknown one (6.5). Only after `open`. */
  async findDone(run: string): Promise<string | undefined> {
    const span = this.#provenLedger().findRun(run)?.done
    return span && this.#readLine(span)
  }

  /** True when the session holds the run, finished or not. Only after `open`. */
  hasRun(run: string): boolean {
    return this.#provenLedger().findRun(run) !== undefined
  }

  /** Takes the run lock without waiting; false when anyone else holds it. Errors: `ENOENT` the session is gone: find or create it again. */
  tryLockRun(): boolean {
    if (this.#runLockFd !== undefined) return false
    for (;;) {
      const fd = this.#openDir()
      if (!flock(fd, "ex")) {
        closeSync(fd)
        return false
      }
      if (this.#isNamed(fd)) {
        this.#runLockFd = fd
        return true
      }
      closeSync(fd)
      this.#forget()
    }
  }

  /** Takes over a descriptor of the session directory that holds the run lock. For the creation of sessions alone. */
  adoptLock(fd: number): void {
    this.#runLockFd = fd
  }

  /**
   * Releases the run lock; no effect when it is not held. A run that is not settled is given up; while one of its calls is
   * under way the lock stays until that has ended.
   */
  unlockRun(): void {
    this.#mustUnlock = true
    if (this.#isBeginning) return
    if (this.#recorder !== undefined) this.#recorder.abandon()
    else this.#dropLock()
  }

  #dropLock(): void {
    if (this.#runLockFd !== undefined) closeSync(this.#runLockFd)
    this.#runLockFd = undefined
    this.#mustUnlock = false
  }

  /** True while this object holds the run lock. */
  get isLocked(): boolean {
    return this.#runLockFd !== undefined
  }

  /**
   * Records a run (6.3 steps 8 and 9); the run lock must be held and `open` called under it. On return user row, start and
   * state are durable and the index is updated. When it rejects nothing of the run is stored. Errors: `EINVAL`,
   * `EMSGSIZE`, `EIO`, `ENOSPC`; `EBUSY` a run is being recorded; `internal` without the lock.
   */
  begin(start: RunStart): Promise<Recorder> {
    return this.#turn.take(async () => {
      const dirFd = this.#runLockFd
      if (dirFd === undefined) throw new CtxError("internal", "a run is recorded without the run lock")
      if (this.#recorder !== undefined) throw new CtxError("EBUSY", `session ${this.name} has an active run`)
      const ledger = this.#provenLedger()
      if (ledger.hasUnfinished)
        throw new CtxError("EIO", `session ${this.name} is not recovered`, { hint: "send again" })
      if (ledger.findClient(start.clientId) !== undefined || ledger.findRun(start.run) !== undefined) {
        throw new CtxError("EINVAL", `id ${start.clientId} is in use`, { hint: "use a new id" })
      }
      this.#isBeginning = true
      try {
        this.#recorder = await beginRun(this.#openContext(dirFd, ledger), start)
        return this.#recorder
      } finally {
        this.#isBeginning = false
        if (this.#mustUnlock) this.unlockRun()
      }
    })
  }

  /**
   * Stores an event that belongs to no run, durably, and gives its line; the run lock must be held and `open` called under
   * it. Errors: `EINVAL`, `EIO`, `ENOSPC`; `EBUSY` a run is being recorded; `internal` without the lock.
   */
  recordEvent(fields: JsonObject): Promise<string> {
    return this.#turn.take(async () => {
      const dirFd = this.#runLockFd
      if (dirFd === undefined) throw new CtxError("internal", "an event is recorded without the run lock")
      if (this.#recorder !== undefined) throw new CtxError("EBUSY", `session ${this.name} has an active run`)
      const context = this.#openContext(dirFd, this.#provenLedger())
      let isSound = false
      try {
        const [line] = await storeEvents(context, [fields], true)
        isSound = true
        context.onStored(line!)
        return line!
      } finally {
        context.onEnd(isSound)
      }
    })
  }

  // What a run works on. It is closed when the run has ended, and with it the lock if that was asked for meanwhile.
  #openContext(dirFd: number, ledger: Ledger): RunContext {
    const { name, place } = this
    const journal = this.#openJournal(dirFd)
    let sessionsFd: number
    try {
      sessionsFd = openDirectory(place.dir)
    } catch (e) {
      journal.close()
      throw e
    }
    this.#journal = journal
    const onEnd = (isSound: boolean): void => {
      if (isSound) this.#stamp = journal.stamp()
      else this.#forget()
      journal.close()
      closeSync(sessionsFd)
      this.#recorder = undefined
      this.#journal = undefined
      if (this.#mustUnlock && !this.#isBeginning) this.#dropLock()
    }
    const onStored = (line: string): void => {
      for (const listener of this.#listeners) listener(line)
    }
    return { name, place, sessionsFd, dirFd, journal, ledger, onStored, onEnd }
  }

  /** The recorder of the run in progress here, if any. */
  get recorder(): Recorder | undefined {
    return this.#recorder
  }

  /**
   * Stored event lines for `resume` (6.4), with LF: a number asks for every greater `seq`, a string for what follows the
   * first line of that id. Only after `open`. Errors: `ENOENT` no such id, before the first line; `EIO`.
   */
  async *resumeLines(after?: number | string): AsyncGenerator<string> {
    const dirFd = this.#openDir()
    try {
      // What an append under way has written counts only when that has succeeded.
      const size = this.#journal?.sizes.events ?? (await this.#noteEventsSize(dirFd))
      yield* readStoredLines(dirFd, size, after)
    } finally {
      closeSync(dirFd)
    }
  }

  /** Calls the listener, which must not throw, with each event line stored from now on; returns the function that ends it. */
  follow(listener: (line: string) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /**
   * Newest rows of `messages.jsonl` whose stored lines together are at most `maxBytes`, oldest first, none before the last
   * reset; `omitted` counts the rows between that and the first one given (agent-runtime 10). Only after `open`.
   */
  async readRecent(maxBytes: number): Promise<{ rows: MessageRow[]; omitted: number }> {
    const ledger = this.#provenLedger()
    const dirFd = this.#openDir()
    try {
      return await readRecentRows(dirFd, { from: ledger.resetOffset, total: ledger.messages, maxBytes })
    } finally {
      closeSync(dirFd)
    }
  }

  /** The state word (6.6); `idle` when it is missing or empty. Errors: `EIO` malformed; `ENOENT` no session. */
  readState(): SessionState {
    return this.#withDir(dirFd => readState(dirFd) ?? "idle")
  }

  /** `updated_at` as written, undefined when missing. Errors: `EIO`, `ENOENT`. */
  readUpdatedAt(): string | undefined {
    return this.#withDir(dirFd => readLineValue(dirFd, "updated_at"))
  }

  /** Gives up a run that is not settled and releases the run lock. */
  close(): void {
    this.unlockRun()
    this.#forget()
  }

  #openDir(): number {
    const sessionsFd = openDirectory(this.place.dir)
    try {
      return openDirectory(this.name, sessionsFd)
    } finally {
      closeSync(sessionsFd)
    }
  }

  #withDir<T>(work: (dirFd: number) => T): T {
    const dirFd = this.#openDir()
    try {
      return work(dirFd)
    } finally {
      closeSync(dirFd)
    }
  }

  #isNamed(dirFd: number): boolean {
    try {
      const sessionsFd = openDirectory(this.place.dir)
      try {
        return isSameEntry(sessionsFd, this.name, statFd(dirFd))
      } finally {
        closeSync(sessionsFd)
      }
    } catch (e) {
      if (codeOf(e) === "ENOENT") return false
      throw e
    }
  }

  #provenLedger(): Ledger {
    if (this.#ledger === undefined) throw new CtxError("internal", `session ${this.name} is used before it was opened`)
    return this.#ledger
  }

  #openJournal(dirFd: number): Journal {
    return new Journal(dirFd, this.#stamp!)
  }

  #forget(): void {
    this.#ledger = undefined
    this.#stamp = undefined
  }

  // Loads both files unless they are, to the nanosecond, those of the last time.
  async #prove(dirFd: number): Promise<void> {
    checkKinds(dirFd)
    const messagesFd = openHistory(dirFd, "messages.jsonl")
    try {
      const eventsFd = openHistory(dirFd, "events.jsonl")
      try {
        await lockHistory(messagesFd, "sh")
        const stamp = { messages: statFd(messagesFd), events: statFd(eventsFd) }
        flock(messagesFd, "un")
        if (this.#stamp !== undefined && isSameStamp(this.#stamp, stamp)) return
        this.#forget()
        const ledger = new Ledger()
        const proof = await proveHistory(messagesFd, eventsFd, stamp, ledger)
        for (const { file, damage } of proof) if (damage !== undefined) throw damageError(file, damage)
        this.#ledger = ledger
        this.#stamp = stamp
      } finally {
        closeSync(eventsFd)
      }
    } finally {
      closeSync(messagesFd)
    }
  }

  // A run lock held by somebody else means that the run is alive there: nothing to recover.
  async #recover(dirFd: number): Promise<void> {
    const isMine = this.#runLockFd !== undefined
    if (!isMine && !flock(dirFd, "ex")) return
    try {
      if (!this.#isNamed(dirFd)) throw new CtxError("ENOENT", `session ${this.name} is gone`)
      await this.#prove(dirFd)
      if (!needsRecovery(dirFd, this.#provenLedger())) return
      const journal = this.#openJournal(dirFd)
      let isMoved: boolean
      try {
        isMoved = await recoverSession(dirFd, this.place, this.#provenLedger(), journal)
        this.#stamp = journal.stamp()
      } catch (e) {
        this.#forget()
        throw e
      } finally {
        journal.close()
      }
      if (isMoved) await this.#moveToHead()
    } finally {
      if (!isMine) flock(dirFd, "un")
    }
  }

  async #noteEventsSize(dirFd: number): Promise<number> {
    const eventsFd = openHistory(dirFd, "events.jsonl")
    try {
      return Number((await noteSizes(eventsFd, eventsFd, dirFd)).events.size)
    } finally {
      closeSync(eventsFd)
    }
  }

  // A malformed index is refused by the send that needs it; recovery is complete without it.
  async #moveToHead(): Promise<void> {
    const sessionsFd = openDirectory(this.place.dir)
    try {
      await updateIndex(sessionsFd, this.name, this.place)
    } catch (e) {
      if (codeOf(e) !== "EINVAL") throw e
    } finally {
      closeSync(sessionsFd)
    }
  }

  async #readLine(span: { offset: number; size: number }): Promise<string> {
    const dirFd = this.#openDir()
    try {
      return (await readSpan(dirFd, "events.jsonl", span)).toString("utf8")
    } finally {
      closeSync(dirFd)
    }
  }
}
