// `debug/script`: plays a JSON script, one turn a call (`model-abi.md` 10.2).
import { setTimeout as sleep } from "node:timers/promises"
import { type ErrnoName, isErrnoName } from "../abi/errno.js"
import { CtxError, codeOf } from "../abi/error.js"
import { isObject, type JsonObject, parseJsonObject } from "../abi/json.js"
import { INPUT_DEPTH_MAX, SCRIPT_SLEEP_MAX_MS, SCRIPT_STEPS_MAX } from "../abi/limit.js"
import { isName } from "../abi/name.js"
import { SCRIPT_SCHEMA } from "../abi/product.js"
import type { Driver, ModelCall, ModelEvent } from "./driver.js"
import { countTokens, type LastTurn, playEvents, readLastTurn, usageEvent } from "./prompt.js"

/** One step of a script. */
export type Step =
  | { is: "say"; texts: string[] }
  | { is: "reason"; text: string }
  | { is: "call"; name: string; arguments: JsonObject; id?: string }
  | { is: "expect"; text: string }
  | { is: "sleep"; ms: number }
  | { is: "usage"; input: number; output: number }
  | { is: "error"; code: ErrnoName; message: string }

function refuse(at: number, why: string): never {
  throw new CtxError("EINVAL", `script step ${at}: ${why}`)
}

function isText(v: unknown): v is string {
  return typeof v === "string" && v !== ""
}

function isCount(v: unknown): v is number {
  return Number.isSafeInteger(v) && (v as number) >= 0
}

function hasKeys(o: JsonObject, ...keys: string[]): boolean {
  return Object.keys(o).sort().join() === keys.sort().join()
}

function parseStep(v: unknown, at: number): Step {
  if (!isObject(v)) refuse(at, "is not an object")
  const [key] = Object.keys(v)
  if ("call" in v) {
    const call = v.call
    if (!hasKeys(v, "call") && !hasKeys(v, "call", "id")) refuse(at, "has an unknown key")
    if (!isObject(call) || !hasKeys(call, "arguments", "name") || !isName(call.name) || !isObject(call.arguments)) {
      refuse(at, "call needs a name and an object of arguments")
    }
    if (v.id !== undefined && !isName(v.id)) refuse(at, "id is not a name")
    return { is: "call", name: call.name, arguments: call.arguments, id: v.id as string | undefined }
  }
  if (key === undefined || Object.keys(v).length !== 1) refuse(at, "must have exactly one key")
  const value = v[key]
  switch (key) {
    case "say": {
      const texts = isText(value) ? [value] : value
      if (!Array.isArray(texts) || texts.length === 0 || !texts.every(isText)) refuse(at, "say needs text")
      return { is: "say", texts }
    }
    case "reason":
    case "expect":
      return isText(value) ? { is: key, text: value } : refuse(at, `${key} needs text`)
    case "sleep_ms":
      return isCount(value) && value <= SCRIPT_SLEEP_MAX_MS
        ? { is: "sleep", ms: value }
        : refuse(at, "sleep_ms is 0 to 60000")
    case "usage":
      return isObject(value) &&
        hasKeys(value, "input_tokens", "output_tokens") &&
        isCount(value.input_tokens) &&
        isCount(value.output_tokens)
        ? { is: "usage", input: value.input_tokens, output: value.output_tokens }
        : refuse(at, "usage needs input_tokens and output_tokens")
    case "error":
      return isObject(value) && hasKeys(value, "code", "message") && isErrnoName(value.code) && isText(value.message)
        ? { is: "error", code: value.code, message: value.message }
        : refuse(at, "error needs an errno name and a message")
    default:
      return refuse(at, "has an unknown key")
  }
}

/** The turns of a script: each ends with a `call` or an `error`, or with the script. Throws `EINVAL` for what is no script. */
export function parseScript(text: string): Step[][] {
  let o: JsonObject
  try {
    o = parseJsonObject(text, INPUT_DEPTH_MAX)
  } catch (cause) {
    const why = "the model debug/script plays its input, which must be a JSON script"
    throw new CtxError("EINVAL", `${why}: {"schema":"${SCRIPT_SCHEMA}","steps":[...]}`, { cause })
  }
  if (!hasKeys(o, "schema", "steps") || o.schema !== SCRIPT_SCHEMA) {
    throw new CtxError("EINVAL", `a script is {"schema":"${SCRIPT_SCHEMA}","steps":[...]}`)
  }
  const steps = o.steps
  if (!Array.isArray(steps) || steps.length < 1 || steps.length > SCRIPT_STEPS_MAX) {
    throw new CtxError("EINVAL", `a script has 1 to ${SCRIPT_STEPS_MAX} steps`)
  }
  const turns: Step[][] = []
  let isOpen = false
  steps.forEach((v: unknown, i) => {
    const step = parseStep(v, i + 1)
    if (!isOpen) turns.push([])
    turns.at(-1)!.push(step)
    isOpen = step.is !== "call" && step.is !== "error"
  })
  return turns
}

function endEvents(
  script: string,
  said: string[],
  call?: ModelEvent & { type: "tool_call" },
  usage?: ModelEvent,
): ModelEvent[] {
  const text = said.join("")
  const events: ModelEvent[] = []
  if (text !== "") events.push({ type: "message", content: [{ type: "text", text }] })
  if (call !== undefined) events.push(call)
  events.push(usage ?? usageEvent(countTokens(script), countTokens(text), call === undefined ? [] : [call.id]))
  return events
}

async function* playTurn(turn: Step[], { text, results }: LastTurn, c: ModelCall): AsyncGenerator<ModelEvent> {
  const said: string[] = []
  let call: (ModelEvent & { type: "tool_call" }) | undefined
  let usage: ModelEvent | undefined
  for (const step of turn) {
    if (c.signal.aborted) return
    switch (step.is) {
      case "say":
        for (const piece of step.texts) {
          said.push(piece)
          yield { type: "delta", text: piece }
        }
        break
      case "reason":
        yield { type: "reasoning_delta", text: step.text }
        break
      case "call":
        call = {
          type: "tool_call",
          id: step.id ?? `c-${results.length + 1}`,
          name: step.name,
          arguments: step.arguments,
        }
        break
      case "expect":
        if (results.at(-1)?.content.includes(step.text) !== true) {
          yield { type: "error", code: "EINVAL", message: "expectation failed" }
          return
        }
        break
      case "sleep":
        // Ends early when the call is aborted; the caller then sees the aborted signal.
        await sleep(step.ms, undefined, { signal: c.signal }).catch(() => {})
        break
      case "usage":
        usage = usageEvent(step.input, step.output)
        break
      case "error":
        yield { type: "error", code: step.code, message: step.message }
        return
    }
  }
  yield* endEvents(text, said, call, usage)
}

async function* play(c: ModelCall): AsyncGenerator<ModelEvent> {
  const last = readLastTurn(c.messages)
  let turns: Step[][]
  try {
    turns = parseScript(last.text)
  } catch (e) {
    if (codeOf(e) !== "EINVAL") throw e
    yield { type: "error", code: "EINVAL", message: (e as CtxError).message }
    return
  }
  const turn = turns[last.results.length] ?? [{ is: "say", texts: ["(end of script)"] }]
  yield* playTurn(turn, last, c)
}

/** Driver of `debug/script`. */
export const script: Driver = { call: c => playEvents(c, () => play(c)) }
