// The hosted step protocol `sdk-envelope-v1` (`agent-runtime.md` 4): the envelope line to a program and the frames it may print.
import { isErrnoName } from "../abi/errno.js"
import { CtxError } from "../abi/error.js"
import type {
  DeltaFrame,
  ErrorFrame,
  ImagePart,
  ReasoningDeltaFrame,
  ReasoningMessageFrame,
  TextPart,
  Tokens,
  ToolCallFrame,
} from "../abi/frame.js"
import { formatRow, isObject, type JsonObject, parseFrameObject, parseJsonObject } from "../abi/json.js"
import {
  CALL_ARGUMENTS_MAX,
  ENVELOPE_MAX,
  HISTORY_MAX,
  INPUT_DEPTH_MAX,
  OBSERVATION_MAX,
  PROGRAM_FRAME_MAX,
  STEPS_MAX,
  TOOL_CONTEXT_MAX,
} from "../abi/limit.js"
import { isName, isRunId, isUtf8Text } from "../abi/name.js"
import { INVOCATION_SCHEMA } from "../abi/product.js"

/** The tool result given to the next step. */
export interface Observation {
  tool_call_id: string
  name: string
  status: "ok" | "error"
  content: string
  truncated: boolean
}

/** What a step starts with; keys in the order in which they are written. */
export interface Envelope {
  schema: typeof INVOCATION_SCHEMA
  run: string
  step: number
  input: string
  history_messages: string
  tool_context: string
  observation: Observation | null
}

/** An assistant message as a program prints it. */
export type ProgramMessageFrame = { type: "message"; run: string; role: "assistant"; content: (TextPart | ImagePart)[] }

/** Usage as a program prints it; the host adds `step`. */
export type ProgramUsageFrame = { type: "usage"; run: string; model?: string } & Tokens & { elapsed_ms?: number }

/** What an agent program may print. An error of a program is always recoverable. */
export type ProgramFrame =
  | DeltaFrame
  | ReasoningDeltaFrame
  | ReasoningMessageFrame
  | ProgramMessageFrame
  | ProgramUsageFrame
  | (ErrorFrame & { run: string; recoverable: true })
  | ToolCallFrame

const ENVELOPE_KEYS = ["schema", "run", "step", "input", "history_messages", "tool_context", "observation"]

function isTooLong(e: Envelope): boolean {
  return (
    Buffer.byteLength(e.history_messages) > HISTORY_MAX ||
    Buffer.byteLength(e.tool_context) > TOOL_CONTEXT_MAX ||
    (e.observation !== null && Buffer.byteLength(e.observation.content) > OBSERVATION_MAX) ||
    Buffer.byteLength(formatRow(e)) + 1 > ENVELOPE_MAX
  )
}

/** The envelope line with its LF. What is too long loses its history; when that is not enough: `EMSGSIZE`. */
export function formatEnvelope(facts: Omit<Envelope, "schema">): Buffer {
  const { run, step, input, history_messages, tool_context, observation } = facts
  let e: Envelope = { schema: INVOCATION_SCHEMA, run, step, input, history_messages, tool_context, observation }
  if (isTooLong(e)) e = { ...e, history_messages: "" }
  if (isTooLong(e)) throw new CtxError("EMSGSIZE", "the step's envelope is too long even without history")
  return Buffer.from(`${formatRow(e)}\n`)
}

function isObservation(v: unknown): v is Observation {
  return (
    isObject(v) &&
    isName(v.tool_call_id) &&
    isName(v.name) &&
    (v.status === "ok" || v.status === "error") &&
    typeof v.content === "string" &&
    typeof v.truncated === "boolean"
  )
}

/** The envelope of a line, with or without its LF. All seven keys and no other, sizes as stated; else `EINVAL`, above 1 MiB `EMSGSIZE`. */
export function parseEnvelope(line: Uint8Array): Envelope {
  if (line.length > ENVELOPE_MAX) throw new CtxError("EMSGSIZE", `envelope has more than ${ENVELOPE_MAX} bytes`)
  const o = parseJsonObject(line)
  const refuse = (why: string): never => {
    throw new CtxError("EINVAL", `envelope: ${why}`)
  }
  for (const key of Object.keys(o))
    if (!ENVELOPE_KEYS.includes(key)) refuse(`unknown key ${JSON.stringify(key.slice(0, 80))}`)
  for (const key of ENVELOPE_KEYS) if (!Object.hasOwn(o, key)) refuse(`key ${key} is missing`)
  if (o.schema !== INVOCATION_SCHEMA) refuse(`schema is not ${INVOCATION_SCHEMA}`)
  if (!isRunId(o.run)) refuse("run is not a run id")
  if (!Number.isInteger(o.step) || (o.step as number) < 0 || (o.step as number) > STEPS_MAX)
    refuse("step is not 0 to 255")
  for (const key of ["input", "history_messages", "tool_context"])
    if (typeof o[key] !== "string") refuse(`${key} is not a string`)
  if (o.observation !== null && !isObservation(o.observation)) refuse("observation is malformed")
  if ((o.step === 0) !== (o.observation === null)) refuse("observation goes with every step but 0")
  const e = o as unknown as Envelope
  if (isTooLong(e)) refuse("a field is too long")
  return e
}

function invalid(why: string): never {
  throw new CtxError("EIO", `agent program: ${why}`)
}

function text(o: JsonObject, key: string): string {
  const v = o[key]
  if (typeof v !== "string" || !isUtf8Text(v)) invalid(`${key} of ${String(o.type)} is not text`)
  return v
}

function content<T>(o: JsonObject, parse: (p: JsonObject) => T): T[] {
  if (!Array.isArray(o.content) || o.content.length === 0)
    invalid(`content of ${String(o.type)} is not a list of parts`)
  return o.content.map((p: unknown) => (isObject(p) ? parse(p) : invalid("a content part is not an object")))
}

function textPart(p: JsonObject): TextPart {
  return p.type === "text" ? { type: "text", text: text(p, "text") } : invalid("a content part is not text")
}

function shownPart(p: JsonObject): TextPart | ImagePart {
  if (p.type !== "image") return textPart(p)
  return { type: "image", path: text(p, "path"), media_type: text(p, "media_type") }
}

function count(o: JsonObject, key: string, isOptional = false): number | undefined {
  const v = o[key]
  if (v === undefined && isOptional) return undefined
  return Number.isSafeInteger(v) && (v as number) >= 0 ? (v as number) : invalid(`${key} of usage is not a count`)
}

function parseCall(o: JsonObject, run: string): ToolCallFrame {
  if (!isName(o.id) || !isName(o.name)) invalid("id and name of a tool_call must be names")
  if (!isObject(o.arguments)) invalid("arguments of a tool_call must be an object")
  if (Buffer.byteLength(formatRow(o.arguments)) > CALL_ARGUMENTS_MAX) invalid("arguments of a tool_call are too long")
  return { type: "tool_call", run, id: o.id, name: o.name, arguments: o.arguments }
}

function parseUsage(o: JsonObject, run: string): ProgramUsageFrame {
  return {
    type: "usage",
    run,
    model: o.model === undefined ? undefined : text(o, "model"),
    input_tokens: count(o, "input_tokens")!,
    output_tokens: count(o, "output_tokens")!,
    cached_tokens: count(o, "cached_tokens", true),
    cache_write_tokens: count(o, "cache_write_tokens", true),
    elapsed_ms: count(o, "elapsed_ms", true),
  }
}

/**
 * One line an agent program printed, without unknown fields. Everything that is not allowed there is `EIO`: bad JSON, another `run`,
 * a frame type that only the host writes, a non-recoverable error, more than 256 KiB. The order of frames is the caller's to check.
 */
export function parseProgramFrame(line: Uint8Array, run: string): ProgramFrame {
  if (line.length > PROGRAM_FRAME_MAX) invalid(`frame has more than ${PROGRAM_FRAME_MAX} bytes`)
  let o: JsonObject
  try {
    o = parseFrameObject(line, INPUT_DEPTH_MAX)
  } catch (e) {
    return invalid(`frame: ${(e as Error).message}`)
  }
  if (o.run !== run) invalid("frame has another run")
  switch (o.type) {
    case "delta":
    case "reasoning_delta":
      return { type: o.type, run, text: text(o, "text") }
    case "reasoning_message":
      return { type: o.type, run, content: content(o, textPart) }
    case "message":
      if (o.role !== "assistant") invalid("a message must have role assistant")
      return { type: o.type, run, role: o.role, content: content(o, shownPart) }
    case "tool_call":
      return parseCall(o, run)
    case "usage":
      return parseUsage(o, run)
    case "error":
      if (o.recoverable !== true) invalid("an error must be recoverable")
      if (!isErrnoName(o.code)) invalid("code of an error is not an errno name")
      return { type: o.type, run, code: o.code, message: text(o, "message"), recoverable: true }
    default:
      return invalid("frame of a type that a program may not print")
  }
}
