// ATIF-v1.7 projection of a history, as a stream of steps (session-abi 14).
import { CtxError } from "../abi/error.js"
import type { JsonObject } from "../abi/json.js"
import type { HistoryReader } from "./reader.js"
import { type EventRow, type MessageRow, type Part, textOf } from "./row.js"
import { damageError } from "./scan.js"

/** One step of a trajectory; `step_id` counts from 1. */
export type Step = JsonObject & { step_id: number }

/** Sums over `usage` events. */
export interface Usage {
  events: number
  prompt: number
  completion: number
  cached?: number
  cacheWrite?: number
}

/** What one pass over a history finds besides its steps. */
export interface Totals {
  usage: Usage
  steps: number
  /** Tool results without a call. */
  dropped: number
}

/** Totals before a pass. */
export function startTotals(): Totals {
  return { usage: startUsage(), steps: 0, dropped: 0 }
}

function startUsage(): Usage {
  return { events: 0, prompt: 0, completion: 0 }
}

/** Events of one run that a trajectory needs. */
interface RunEvents {
  run: string
  calls: EventRow[]
  usage: Usage
  /** Line and offset of its `start`. */
  line: number
  offset: number
}

/** Rows of one run that belong to its agent step. */
interface RunRows {
  run: string | undefined
  /** `ts` of the first tool or assistant row. */
  firstTs?: string
  assistantTs?: string
  texts: string[]
  results: { id: string; content: string }[]
  events?: RunEvents
}

/**
 * The steps of a history in order, memory bounded by the longest run; `totals` is complete after the last one. Both files
 * are read side by side: runs begin in the same order in each. Errors: `EIO` naming file and line of a damage.
 */
export async function* readSteps(reader: HistoryReader, totals: Totals): AsyncGenerator<Step> {
  const groups = readRunEvents(reader, totals)
  let next = await groups.next()
  let current: RunRows | undefined
  const number = (step: JsonObject): Step => ({ step_id: ++totals.steps, ...step })
  const enter = async (run: string | undefined): Promise<RunRows> => {
    const rows: RunRows = { run, texts: [], results: [] }
    if (next.done !== true && next.value.run === run) {
      rows.events = next.value
      next = await groups.next()
    }
    return rows
  }
  for await (const { row } of reader.messages()) {
    if (row.role === "user" || row.role === "system" || current === undefined || row.run !== current.run) {
      const step = current && agentStep(current, totals)
      if (step !== undefined) yield number(step)
      current = row.role === "system" ? undefined : await enter(row.run)
    }
    if (row.role === "user" || row.role === "system") {
      yield number({ timestamp: row.ts, source: row.role, message: row.content })
    } else {
      addRow(current as RunRows, row)
    }
  }
  const step = current && agentStep(current, totals)
  if (step !== undefined) yield number(step)
  if (next.done !== true) {
    const { line, offset } = next.value
    throw damageError("events.jsonl", { line, offset, reason: "contradiction" })
  }
}

function addRow(rows: RunRows, row: MessageRow): void {
  rows.firstTs ??= row.ts
  const parts = row.content as Part[]
  if (row.role === "assistant") {
    rows.assistantTs ??= row.ts
    const text = textOf(parts)
    if (text !== "") rows.texts.push(text)
  } else {
    for (const part of parts) {
      if (part.type === "tool_result") rows.results.push({ id: part.tool_call_id, content: part.content })
    }
  }
}

function agentStep(rows: RunRows, totals: Totals): JsonObject | undefined {
  const calls = rows.events?.calls ?? []
  const first = calls[0]
  if (rows.firstTs === undefined && first === undefined) return undefined
  const step: JsonObject = {
    timestamp: rows.assistantTs ?? rows.firstTs ?? first?.ts,
    source: "agent",
    message: rows.texts.join("\n"),
  }
  if (calls.length > 0) {
    step.tool_calls = calls.map(({ id, name, arguments: args }) => ({
      tool_call_id: id,
      function_name: name,
      arguments: args,
    }))
  }
  const results = matchResults(calls, rows.results, totals)
  if (results.length > 0) step.observation = { results }
  const usage = rows.events?.usage
  if (usage !== undefined && usage.events > 0) {
    step.metrics = metricsOf(usage)
    step.llm_call_count = usage.events
  }
  if (rows.run !== undefined) step.extra = { run: rows.run }
  return step
}

// Each call takes at most one result, in the order of the calls; what is left belongs to no call.
function matchResults(calls: EventRow[], results: RunRows["results"], totals: Totals): JsonObject[] {
  const byId = new Map<string, string>()
  for (const { id, content } of results) if (!byId.has(id)) byId.set(id, content)
  const matched: JsonObject[] = []
  for (const { id } of calls) {
    const content = byId.get(id as string)
    if (content === undefined) continue
    matched.push({ source_call_id: id, content })
    byId.delete(id as string)
  }
  totals.dropped += results.length - matched.length
  return matched
}

function metricsOf(usage: Usage): JsonObject {
  const metrics: JsonObject = { prompt_tokens: usage.prompt, completion_tokens: usage.completion }
  if (usage.cached !== undefined) metrics.cached_tokens = usage.cached
  if (usage.cacheWrite !== undefined) metrics.extra = { cache_write_tokens: usage.cacheWrite }
  return metrics
}

function addUsage(usage: Usage, row: EventRow): void {
  const cached = row.cached_tokens as number | undefined
  const cacheWrite = row.cache_write_tokens as number | undefined
  usage.events++
  usage.prompt += (row.input_tokens as number) + (cached ?? 0)
  usage.completion += row.output_tokens as number
  if (cached !== undefined) usage.cached = (usage.cached ?? 0) + cached
  if (cacheWrite !== undefined) usage.cacheWrite = (usage.cacheWrite ?? 0) + cacheWrite
}

// The events of each run, one run at a time: a session has at most one active run, so they lie together.
async function* readRunEvents(reader: HistoryReader, totals: Totals): AsyncGenerator<RunEvents> {
  let current: RunEvents | undefined
  let isOpen = false
  for await (const { row, line } of reader.events()) {
    if (row.run === undefined || row.import !== undefined || row.type.startsWith("import.")) continue
    if (row.type === "start") {
      if (current !== undefined) yield current
      current = { run: row.run, calls: [], usage: startUsage(), line: line.number, offset: line.offset }
      isOpen = true
      continue
    }
    // A question that an earlier run left open may be answered later.
    if (row.type === "approval_result" || row.type === "input_result") continue
    if (current === undefined || row.run !== current.run || !isOpen) {
      throw damageError("events.jsonl", { line: line.number, offset: line.offset, reason: "contradiction" })
    }
    if (row.type === "done") isOpen = false
    if (row.type === "tool_call") current.calls.push(row)
    if (row.type === "usage") {
      addUsage(current.usage, row)
      addUsage(totals.usage, row)
    }
  }
  if (current !== undefined) yield current
}

/** `final_metrics` of a document; tokens only when there was a `usage` event. */
export function finalMetrics({ usage, steps }: Totals): JsonObject {
  const metrics: JsonObject = {}
  if (usage.events > 0) {
    metrics.total_prompt_tokens = usage.prompt
    metrics.total_completion_tokens = usage.completion
  }
  if (usage.cached !== undefined) metrics.total_cached_tokens = usage.cached
  metrics.total_steps = steps
  return metrics
}

/** The error for a history without rows. */
export function emptyTrajectory(session: string): CtxError {
  return new CtxError("ENODATA", `session ${session} has no rows`, { hint: "send something first" })
}
