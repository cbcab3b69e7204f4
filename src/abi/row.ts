// Rows of messages.jsonl (`session-abi.md` 7.1), fields in the order in which they are written.
import type { Part, Scope, ToolResultPart } from "./frame.js"
import type { JsonObject } from "./json.js"

/** The first row of a run. `op` is absent for `send`; `cwd` is null for model sessions. */
export interface UserRow {
  role: "user"
  ts: string
  run: string
  client_id: string
  op?: "tsh" | "answer"
  scope: Scope
  shared?: string
  cwd: string | null
  resumes?: string
  pending?: string
  sender?: string
  import?: JsonObject
  content: string
}

/** One tool result. */
export interface ToolRow {
  role: "tool"
  ts: string
  run: string
  name: string
  content: [ToolResultPart]
}

/** The answer of a run, its last row. */
export interface AssistantRow {
  role: "assistant"
  ts: string
  run: string
  import?: JsonObject
  content: Part[]
}

/** Written by an import only. */
export interface SystemRow {
  role: "system"
  ts: string
  import: JsonObject
  content: string
}

export type Row = UserRow | ToolRow | AssistantRow | SystemRow
