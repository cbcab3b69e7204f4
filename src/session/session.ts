import { CtxError } from "../abi/error.js"
import type { Claim, Payload } from "./claim.js"
import type { Place } from "./place.js"
import type { Recorder, RunStart } from "./recorder.js"
import type { MessageRow } from "./row.js"

/** What a session holds at creation (session-abi 7, 9). */
export interface Creation {
  /** Null for model sessions (`/` is written). */
  cwd: string | null
  model?: string
  title?: string
}

export type StateWord = "active" | "idle" | "done" | "error"

/** One session directory. One object per name and process (`Sessions.find`), so that claims stay warm. */
export class Session {
  readonly name: string
  readonly dir: string
  readonly place: Place

  constructor(place: Place, name: string) {
    this.name = name
    this.place = place
    this.dir = `${place.dir}/${name}`
  }

  /**
   * Loads and proves the history, recovers an interrupted run when the run lock is free (session-abi 6.3 step 2, 11, 12).
   * Cheap when nothing changed since the last call. Call it again after `tryLockRun`.
   * Errors: `EIO` damaged history, malformed state, special file; `ENOENT` no such session.
   */
  async open(): Promise<void> {
    throw new CtxError("ENOSYS", "session open")
  }
  /** The claim of a client id, O(1). Only after `open`. */
  findClaim(_clientId: string): Claim | undefined {
    throw new CtxError("ENOSYS", "claim")
  }
  /**
   * The line that answers a repeated request: stored `done`, else stored `start`, with LF; undefined when the id is new
   * (6.2). Errors: `EINVAL` another payload.
   */
  async replay(_clientId: string, _payload: Payload): Promise<string | undefined> {
    throw new CtxError("ENOSYS", "replay")
  }
  /** The stored `done` line of a finished run, undefined for an unfinished or unknown one (6.5). */
  async findDone(_run: string): Promise<string | undefined> {
    throw new CtxError("ENOSYS", "done")
  }
  /** Takes the run lock without waiting; false when anyone holds it. Errors: `ENOENT` the session is gone: find or create it again. */
  tryLockRun(): boolean {
    throw new CtxError("ENOSYS", "run lock")
  }
  /** Releases the run lock; no effect when it is not held. */
  unlockRun(): void {
    throw new CtxError("ENOSYS", "run lock")
  }
  /** True while this object holds the run lock. */
  get isLocked(): boolean {
    return false
  }
  /**
   * Records a run (6.3 steps 8 and 9); the run lock must be held and `open` called under it. On return user row, start and
   * state are durable and the index is updated. When it rejects nothing is stored.
   */
  async begin(_start: RunStart): Promise<Recorder> {
    throw new CtxError("ENOSYS", "begin")
  }
  /** The recorder of the run in progress here, if any. */
  get recorder(): Recorder | undefined {
    return undefined
  }
  /** Stored event lines for `resume` (6.4), with LF: number = seq greater, string = after the first line of that id. Errors: `ENOENT`. */
  resumeLines(_after?: number | string): AsyncIterable<string> {
    throw new CtxError("ENOSYS", "resume")
  }
  /** Calls the listener with each line stored from now on; returns the function that ends it. */
  follow(_listener: (line: string) => void): () => void {
    throw new CtxError("ENOSYS", "follow")
  }
  /** Newest rows of `messages.jsonl` whose stored lines fit `maxBytes`, oldest first, none before the last reset; `omitted` rows before them (agent-runtime 10). */
  async readRecent(_maxBytes: number): Promise<{ rows: MessageRow[]; omitted: number }> {
    throw new CtxError("ENOSYS", "recent rows")
  }
  /** The state word (6.6). Missing file: `idle`. Errors: `EIO` malformed. */
  readState(): StateWord {
    throw new CtxError("ENOSYS", "state")
  }
  /** `updated_at` as written, undefined when missing. */
  readUpdatedAt(): string | undefined {
    throw new CtxError("ENOSYS", "updated_at")
  }
  /** Closes descriptors and releases the run lock. */
  close(): void {
    throw new CtxError("ENOSYS", "close")
  }
}
