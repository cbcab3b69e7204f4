// Stored lines from the facts of a run: key order, seq and ts (session-abi 6.1, 7).
import { CtxError } from "../abi/error.js"
import { formatRow, type JsonObject } from "../abi/json.js"
import type { EventFields, RunStart, Settlement, ToolResult } from "./recorder.js"
import {
  type EventRow,
  isEventRow,
  isMessageRow,
  type MessageRow,
  OWN_TYPES,
  orderEvent,
  orderMessage,
  type Part,
} from "./row.js"

/** A row and its line, LF included. */
export interface Stored<Row> {
  row: Row
  line: string
}

/** Formats a row of `messages.jsonl`. Errors: `EINVAL` when a field is missing or of the wrong type. */
export function formatMessage(role: MessageRow["role"], ts: string, fields: JsonObject): Stored<MessageRow> {
  const row = orderMessage(role, ts, fields)
  if (!isMessageRow(row)) throw new CtxError("EINVAL", `no ${role} row can be made of these fields`)
  return { row: row as unknown as MessageRow, line: `${formatRow(row)}\n` }
}

/** Formats a row of `events.jsonl`, or with `seq` undefined a frame of a temp run. Errors: `EINVAL` as `formatMessage`. */
export function formatEvent(seq: number | undefined, ts: string, fields: JsonObject): Stored<EventRow> {
  const row = orderEvent(seq, ts, fields)
  if (!isEventRow({ ...row, seq: seq ?? 1 }))
    throw new CtxError("EINVAL", `no ${String(fields.type)} event can be made of these fields`)
  return { row: row as unknown as EventRow, line: `${formatRow(row)}\n` }
}

/** Members of the user row of a run. */
export function userFields(start: RunStart): JsonObject {
  const { run, clientId, op, scope, shared, cwd, resumes, pending, content } = start
  return { run, client_id: clientId, op, scope, shared, cwd, resumes, pending, content }
}

/** Members of the `start` event of a run. */
export function startFields(start: RunStart): JsonObject {
  const { run, clientId, op, scope, shared, cwd, model, window, workspace, parent, resumes, pending } = start
  return {
    type: "start",
    id: run,
    run,
    client_id: clientId,
    op,
    scope,
    shared,
    cwd,
    model,
    window,
    workspace,
    parent,
    resumes,
    pending,
  }
}

/** Members of a caller's event. Errors: `EINVAL` for a type that only the recorder writes, or another run. */
export function eventFields(run: string, fields: EventFields): JsonObject {
  if (OWN_TYPES.has(fields.type)) throw new CtxError("EINVAL", `event ${fields.type} is written by the recorder alone`)
  if (fields.seq !== undefined || fields.ts !== undefined)
    throw new CtxError("EINVAL", "seq and ts are set by the recorder")
  const isOther = fields.run !== undefined && fields.run !== run
  // Only the answer to a question that an earlier run left open belongs to another run (6.10).
  if (isOther && fields.type !== "approval_result" && fields.type !== "input_result") {
    throw new CtxError("EINVAL", `event ${fields.type} belongs to another run`)
  }
  return { ...fields, run: fields.run ?? run }
}

/** True for events whose effect must wait for the disk (session-abi 6.3). */
export function isDurableType(type: string): boolean {
  return /^(tool_call|suspended|approval_.*|input_.*)$/.test(type)
}

/** The one part of a tool row. */
export function toolParts(result: ToolResult): Part[] {
  const { callId, content, status, truncated, cached } = result
  const part: Part = { type: "tool_result", tool_call_id: callId, content, status }
  if (truncated) part.truncated = true
  if (cached) part.cached = true
  return [part]
}

/** Events that settle a run, in order: message?, error?, done. */
export function settleEvents(run: string, settlement: Settlement): JsonObject[] {
  const { status, parts, error } = settlement
  const events: JsonObject[] = []
  if (parts !== undefined && parts.length > 0) events.push({ type: "message", run, role: "assistant", content: parts })
  if (error !== undefined) events.push({ type: "error", run, ...error })
  events.push({ type: "done", run, status })
  return events
}
