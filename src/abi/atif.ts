// Shape of an ATIF-v1.7 document (`session-abi.md` 14): checked before its first byte is printed.
import { isObject, type JsonObject } from "./json.js"
import { TRAJECTORY_VERSION } from "./product.js"

/** Issue lines shown of one document, and characters of one line. */
export const ATIF_LINES_MAX = 16
export const ATIF_LINE_MAX = 256

/** What is wrong with a document: the first lines, and how many there are in all. */
export interface TrajectoryIssues {
  lines: string[]
  count: number
}

type Check = (v: unknown, at: string, say: (line: string) => void) => void
interface Shape {
  [key: string]: { check: Check; isRequired: boolean }
}

const value =
  (is: (v: unknown) => boolean, rule: string): Check =>
  (v, at, say) => {
    if (!is(v)) say(`${at}: must be ${rule}`)
  }

const text = value(v => typeof v === "string", "a string")
const flag = value(v => typeof v === "boolean", "true or false")
const number = value(v => typeof v === "number" && Number.isFinite(v), "a number")
const count = value(v => Number.isSafeInteger(v) && (v as number) >= 0, "a whole number from 0")
const object = value(isObject, "an object")
const time = value(isIsoTime, "an ISO 8601 time")
const effort = value(v => typeof v === "string" || typeof v === "number", "a string or a number")

function isIsoTime(v: unknown): boolean {
  const form = /^\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?$/
  return typeof v === "string" && form.test(v) && !Number.isNaN(Date.parse(v))
}

const must = (check: Check) => ({ check, isRequired: true })
const may = (check: Check) => ({ check, isRequired: false })

function quoted(key: string): string {
  return JSON.stringify(key).replace(/[^\x20-\x7e]/g, c => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`)
}

const listOf =
  (check: Check): Check =>
  (v, at, say) => {
    if (!Array.isArray(v)) return say(`${at}: must be a list`)
    v.forEach((item, i) => {
      check(item, `${at}[${i}]`, say)
    })
  }

const objectOf =
  (shape: Shape): Check =>
  (v, at, say) => {
    if (!isObject(v)) return say(`${at || "document"}: must be an object`)
    const inner = (key: string) => (at === "" ? key : `${at}.${key}`)
    for (const key of Object.keys(v)) {
      if (!Object.hasOwn(shape, key)) say(`${at || "document"}: unknown key ${quoted(key)}`)
    }
    for (const [key, { check, isRequired }] of Object.entries(shape)) {
      if (Object.hasOwn(v, key)) check(v[key], inner(key), say)
      else if (isRequired) say(`${inner(key)}: is missing`)
    }
  }

const part: Check = (v, at, say) => {
  const type = isObject(v) ? v.type : undefined
  if (type === "text") objectOf({ type: must(text), text: must(text) })(v, at, say)
  else if (type === "image") objectOf({ type: must(text), source: must(IMAGE_SOURCE) })(v, at, say)
  else say(`${at}: must be a text or image part`)
}

const IMAGE_SOURCE = objectOf({ media_type: must(text), path: must(text) })

const content: Check = (v, at, say) => {
  if (typeof v !== "string") listOf(part)(v, at, say)
}

const CALL = objectOf({
  tool_call_id: must(text),
  function_name: must(text),
  arguments: must(object),
  extra: may(object),
})

const RESULT = objectOf({
  source_call_id: may(text),
  content: may(content),
  subagent_trajectory_ref: may(listOf(object)),
  extra: may(object),
})

const METRICS = objectOf({
  prompt_tokens: may(count),
  completion_tokens: may(count),
  cached_tokens: may(count),
  cost_usd: may(number),
  prompt_token_ids: may(listOf(count)),
  completion_token_ids: may(listOf(count)),
  logprobs: may(listOf(number)),
  extra: may(object),
})

const STEP = objectOf({
  step_id: must(count),
  timestamp: may(time),
  source: must(value(v => v === "user" || v === "system" || v === "agent", "user, system or agent")),
  model_name: may(text),
  reasoning_effort: may(effort),
  message: must(content),
  reasoning_content: may(text),
  tool_calls: may(listOf(CALL)),
  observation: may(objectOf({ results: must(listOf(RESULT)) })),
  metrics: may(METRICS),
  is_copied_context: may(flag),
  llm_call_count: may(count),
  extra: may(object),
})

const AGENT_ONLY = ["model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics", "llm_call_count"]

function checkStep(step: JsonObject, i: number, say: (line: string) => void): void {
  const at = `steps[${i}]`
  if (step.step_id !== i + 1) say(`${at}.step_id: must be ${i + 1}`)
  if (step.source !== "agent") {
    for (const key of AGENT_ONLY) if (Object.hasOwn(step, key)) say(`${at}.${key}: belongs to agent steps only`)
  }
  const calls = Array.isArray(step.tool_calls) ? step.tool_calls : []
  const ids = new Set(calls.map(call => (isObject(call) ? call.tool_call_id : undefined)))
  const results = isObject(step.observation) ? step.observation.results : undefined
  if (!Array.isArray(results)) return
  results.forEach((result: unknown, j) => {
    const id = isObject(result) ? result.source_call_id : undefined
    if (id !== undefined && !ids.has(id))
      say(`${at}.observation.results[${j}].source_call_id: names no call of this step`)
  })
}

const STEPS: Check = (v, at, say) => {
  listOf(STEP)(v, at, say)
  if (!Array.isArray(v)) return
  if (v.length === 0) say(`${at}: must have at least one step`)
  v.forEach((step: unknown, i) => {
    if (isObject(step)) checkStep(step, i, say)
  })
}

const DOCUMENT = objectOf({
  schema_version: must(value(v => v === TRAJECTORY_VERSION, TRAJECTORY_VERSION)),
  session_id: may(text),
  trajectory_id: may(text),
  agent: must(
    objectOf({
      name: must(text),
      version: must(text),
      model_name: may(text),
      tool_definitions: may(listOf(object)),
      extra: may(object),
    }),
  ),
  steps: must(STEPS),
  notes: may(text),
  final_metrics: may(
    objectOf({
      total_prompt_tokens: may(count),
      total_completion_tokens: may(count),
      total_cached_tokens: may(count),
      total_cost_usd: may(number),
      total_steps: may(count),
      extra: may(object),
    }),
  ),
  continued_trajectory_ref: may(text),
  subagent_trajectories: may(listOf(object)),
  extra: may(object),
})

/**
 * What is wrong with an ATIF-v1.7 document: no line when nothing is. Exact version, no unknown key and no null where a value stands, at
 * least one step, `step_id` = position, ISO times, agent-only fields on agent steps only, every `source_call_id` among the calls of its
 * step. Never throws; at most 16 lines of at most 256 printable characters are kept.
 */
export function checkTrajectory(document: unknown): TrajectoryIssues {
  const issues: TrajectoryIssues = { lines: [], count: 0 }
  DOCUMENT(document, "", line => {
    if (issues.count++ < ATIF_LINES_MAX) issues.lines.push(line.slice(0, ATIF_LINE_MAX))
  })
  return issues
}
