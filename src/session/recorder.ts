import type { DoneStatus } from "../abi/status.js"
import type { Part } from "./row.js"

/** The facts of a new run. The key order of the stored rows is the recorder's business. */
export interface RunStart {
  /** `ctx-` + 32 hex digits, minted by the runtime. */
  run: string
  clientId: string
  /** `tsh` or `answer`; absent for `send`. */
  op?: "tsh" | "answer"
  scope: "private" | "shared" | "temp"
  shared?: string
  /** The effective cwd; null for model sessions. */
  cwd: string | null
  model?: string
  /** The stored text: `input`, or `:tsh ` + JSON of the args. */
  content: string
  window?: string
  workspace?: string
  parent?: { agent: string; session: string; run: string }
  resumes?: string
  pending?: string
  /** External keys for `index/by-hash` and `index/by-uuid`. */
  hash?: string
  uuid?: string
}

export interface ToolResult {
  name: string
  callId: string
  content: string
  status: "ok" | "error"
  truncated?: boolean
  cached?: boolean
}

export interface Settlement {
  status: DoneStatus
  /** Assistant content. Absent or empty: no assistant row and no `message`. */
  parts?: Part[]
  /** Stored as an `error` event before `done`. */
  error?: { code: string; message: string; tool?: string }
}

/** Members of an event as the caller gives them: `type`, then any others but `seq` and `ts`. */
export interface EventFields {
  type: string
  [key: string]: unknown
}

/**
 * Records exactly one run. Calls are carried out in the order they are made. Every promise resolves only when what
 * session-abi 6.3 demands of that fact is durable; every returned line ends in LF and is, byte for byte, what is stored
 * and what is to be sent. After a rejection nothing of that call is stored. Errors of every method: `EMSGSIZE` (row
 * longer than 8 MiB), `EINVAL` (not a row), `EIO`, `ENOSPC`; `EALREADY` after `settle` or `abandon`.
 */
export interface Recorder {
  readonly run: string
  /** The stored `start` line. */
  readonly startLine: string
  /** True once `done` is stored or the run was given up; nothing more can be recorded. */
  readonly isSettled: boolean
  /**
   * Stores one event; `seq`, `ts` and `run` are set here, keys are put into table order, `undefined` members left out.
   * `tool_call`, `approval_*`, `input_*` and `suspended` are durable on return, others when `durable` is true.
   * `EINVAL` also for a type that only the recorder writes: start, message, done, session_created, repair.
   */
  event(fields: EventFields, options?: { durable?: boolean }): Promise<string>
  /** Stores a tool row and its `message` event, both durable. Returns the event's line. */
  toolResult(result: ToolResult): Promise<string>
  /**
   * Settles the run (6.3 step 12): assistant row, then message?, error?, done in one append, all durable; then by replace
   * latest.md, state, updated_at and the index. Returns the lines. The run lock stays held. When it rejects it may be
   * called again, without parts for example; else call `abandon`.
   */
  settle(settlement: Settlement): Promise<string[]>
  /** Gives the run up without an end, when settling is impossible. The next `open` of the session recovers it. */
  abandon(): void
}
