import type { Part } from "./row.js"

export type DoneStatus = "ok" | "error" | "cancelled"

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

/**
 * Records exactly one run. Calls are carried out in the order they are made. Every promise resolves only when what
 * session-abi 6.3 demands of that fact is durable; every returned line ends in LF and is, byte for byte, what is stored
 * and what is to be sent. After a rejection with `EIO` or `ENOSPC` nothing of that call is stored.
 */
export interface Recorder {
  readonly run: string
  /** The stored `start` line. */
  readonly startLine: string
  /** True once `done` is stored or the recorder gave up; nothing more can be recorded. */
  readonly isSettled: boolean
  /**
   * Stores one event. `seq` and `ts` are put before `type`, `run` behind it when absent; `undefined` members are left out.
   * `tool_call`, `approval_*`, `input_*` and `suspended` are durable on return, others when `durable` is true.
   * Errors: `EMSGSIZE` (row > 8 MiB), `EINVAL` (type the recorder itself owns: start, message, done), `EIO`, `ENOSPC`.
   */
  event(fields: { type: string; [key: string]: unknown }, options?: { durable?: boolean }): Promise<string>
  /** Stores a tool row and its `message` event, both durable. Returns the event's line. */
  toolResult(result: ToolResult): Promise<string>
  /** Settles the run (6.3 step 12): assistant row, then message?, error?, done in one append. Returns these lines. The run lock stays held. */
  settle(settlement: Settlement): Promise<string[]>
}
