export type Part =
  | { type: "text"; text: string }
  | { type: "image"; path: string; media_type: string }
  | { type: "tool_result"; tool_call_id: string; content: string; status: "ok" | "error"; truncated?: true; cached?: true }

/** One parsed row of `messages.jsonl`. */
export interface MessageRow {
  role: "user" | "tool" | "assistant" | "system"
  ts: string
  run?: string
  client_id?: string
  op?: string
  scope?: string
  shared?: string
  cwd?: string | null
  resumes?: string
  pending?: string
  name?: string
  content: string | Part[]
  [key: string]: unknown
}

/** One parsed row of `events.jsonl`. */
export interface EventRow {
  seq: number
  ts: string
  type: string
  run?: string
  id?: string
  [key: string]: unknown
}
