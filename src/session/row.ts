// Shape of stored rows: what is required (session-abi 6.1, 7) and the order in which keys are written.
import { isObject, type JsonObject } from "../abi/json.js"
import { isName, isTs } from "../abi/name.js"

export type Part =
  | { type: "text"; text: string }
  | { type: "image"; path: string; media_type: string }
  | {
      type: "tool_result"
      tool_call_id: string
      content: string
      status: "ok" | "error"
      truncated?: boolean
      cached?: boolean
    }

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

type Test = (v: unknown) => boolean

const isText: Test = v => typeof v === "string"
const isWord: Test = v => isName(v)
const isCwd: Test = v => v === null || typeof v === "string"
const isCount: Test = v => Number.isSafeInteger(v) && (v as number) >= 0
const isList: Test = v => Array.isArray(v)
const isPresent: Test = v => v !== undefined
const isParts: Test = v => Array.isArray(v) && v.every(isPart)

function isPart(v: unknown): boolean {
  if (!isObject(v)) return false
  switch (v.type) {
    case "text":
      return isText(v.text)
    case "image":
      return isText(v.path) && isText(v.media_type)
    case "tool_result":
      return isText(v.tool_call_id) && isText(v.content) && (v.status === "ok" || v.status === "error")
    default:
      return isText(v.type)
  }
}

function isToolContent(v: unknown): boolean {
  return isParts(v) && (v as Part[]).length === 1 && (v as Part[])[0]?.type === "tool_result"
}

// A trailing `?` marks a field that may be absent; the order is the one in which keys are written.
const MESSAGE_FIELDS: Record<MessageRow["role"], Record<string, Test>> = {
  user: {
    run: isWord,
    client_id: isWord,
    "op?": v => v === "tsh" || v === "answer",
    scope: isText,
    "shared?": isText,
    cwd: isCwd,
    "resumes?": isText,
    "pending?": isText,
    "sender?": isPresent,
    "import?": isPresent,
    content: isText,
  },
  tool: { run: isWord, name: isText, "import?": isPresent, content: isToolContent },
  assistant: { run: isWord, "import?": isPresent, content: isParts },
  system: { import: isPresent, content: isText },
}

const EVENT_FIELDS: Record<string, Record<string, Test>> = {
  start: {
    id: isWord,
    run: isWord,
    client_id: isWord,
    "op?": v => v === "tsh" || v === "answer",
    scope: isText,
    "shared?": isText,
    cwd: isCwd,
    "model?": isText,
    "window?": isText,
    "workspace?": isText,
    "parent?": isObject,
    "resumes?": isText,
    "pending?": isText,
  },
  message: { run: isWord, role: v => v === "assistant" || v === "tool", "name?": isText, content: isParts },
  tool_call: { run: isWord, id: isText, name: isText, arguments: isObject },
  usage: {
    run: isWord,
    "model?": isText,
    step: isCount,
    input_tokens: isCount,
    output_tokens: isCount,
    "cached_tokens?": isCount,
    "cache_write_tokens?": isCount,
    "elapsed_ms?": isCount,
    "tool_calls?": isList,
    "purpose?": isText,
  },
  approval_request: { run: isWord, id: isText, name: isText, args: isList, expires_at: isText, "pending?": isPresent },
  approval_result: { run: isWord, id: isText, name: isText, decision: isText, reason: isText },
  input_request: { run: isWord, id: isText, questions: isList, expires_at: isText, "pending?": isPresent },
  input_result: { run: isWord, id: isText, status: isText, answers: isList },
  suspended: { run: isWord, pending: isText },
  error: {
    "run?": isWord,
    code: isText,
    message: isText,
    "tool?": isText,
    "recoverable?": v => typeof v === "boolean",
  },
  done: { run: isWord, status: isText },
  "agent.child.cancel": { parent: isPresent, child: isPresent, reason: isText },
  "agent.stop": { agent: isText, status: isText },
  session_created: { session: isText, scope: isText, "origin?": isText, uid: isCount },
  context_summary: { run: isWord, from: isCount, to: isCount, rows: isCount, digest: isText },
  context_reset: { offset: isCount },
  resume_miss: { run: isWord, reason: isText },
  repair: { file: isText, offset: isCount, bytes: isCount, moved: isText, reason: isText },
}

function fits(row: JsonObject, fields: Record<string, Test>, isExempt: (key: string) => boolean): boolean {
  for (const [word, test] of Object.entries(fields)) {
    const isOptional = word.endsWith("?")
    const key = isOptional ? word.slice(0, -1) : word
    const value = row[key]
    if (value === undefined ? !isOptional && !isExempt(key) : !test(value)) return false
  }
  return true
}

/** True when an object is a row of `messages.jsonl`: every required field there and of its type (session-abi 7.1). */
export function isMessageRow(row: JsonObject): boolean {
  const fields = typeof row.role === "string" && Object.hasOwn(MESSAGE_FIELDS, row.role)
  if (!fields || !isTs(row.ts)) return false
  const isImport = row.import !== undefined
  return fits(
    row,
    MESSAGE_FIELDS[row.role as MessageRow["role"]],
    key => isImport && key !== "content" && key !== "name",
  )
}

/** True when an object is a row of `events.jsonl`; unknown types need only `seq ts type` (session-abi 1, 7.2). */
export function isEventRow(row: JsonObject): boolean {
  if (!isCount(row.seq) || !isTs(row.ts) || typeof row.type !== "string") return false
  if (!Object.hasOwn(EVENT_FIELDS, row.type)) return row.run === undefined || isText(row.run)
  return fits(row, EVENT_FIELDS[row.type]!, () => row.import !== undefined)
}

/** True for the event types of session-abi 6.1; others are ignored wherever they stand. */
export function isKnownEvent(type: string): boolean {
  return Object.hasOwn(EVENT_FIELDS, type)
}

/** Type names whose rows only the recorder itself writes. */
export const OWN_TYPES: ReadonlySet<string> = new Set(["start", "message", "done", "session_created", "repair"])

/** Puts the members of a row into table order, unknown ones last; `undefined` members are left out. */
export function orderEvent(seq: number | undefined, ts: string, fields: JsonObject): JsonObject {
  const row: JsonObject = seq === undefined ? { ts, type: fields.type } : { seq, ts, type: fields.type }
  const table = EVENT_FIELDS[fields.type as string] ?? { run: isPresent }
  for (const word of Object.keys(table)) put(row, fields, word.endsWith("?") ? word.slice(0, -1) : word)
  for (const key of Object.keys(fields)) if (!Object.hasOwn(row, key)) put(row, fields, key)
  return row
}

/** Puts the members of a message row into table order. */
export function orderMessage(role: MessageRow["role"], ts: string, fields: JsonObject): JsonObject {
  const row: JsonObject = { role, ts }
  for (const word of Object.keys(MESSAGE_FIELDS[role])) put(row, fields, word.endsWith("?") ? word.slice(0, -1) : word)
  return row
}

function put(row: JsonObject, fields: JsonObject, key: string): void {
  if (fields[key] !== undefined) row[key] = fields[key]
}

/** Text parts of assistant content joined by LF. */
export function textOf(parts: readonly Part[]): string {
  const texts: string[] = []
  for (const part of parts) if (part.type === "text") texts.push(part.text)
  return texts.join("\n")
}
