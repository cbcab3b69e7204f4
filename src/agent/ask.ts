// Frames of a run's control socket (`agent-runtime.md` 5, 12): what a program inside the sandbox asks of its runtime.
import { CtxError } from "../abi/error.js"
import { type JsonObject, parseFrameObject, parseJsonObject } from "../abi/json.js"
import { CONTROL_FRAME_MAX, INPUT_DEPTH_MAX, MODEL_FRAME_MAX, REQUEST_ID_MAX } from "../abi/limit.js"
import { isName, isRunId, isSessionName, isUtf8Text } from "../abi/name.js"
import type { Effort, Message } from "../model/driver.js"
import { parseMessages, parseSampling } from "../model/message.js"

/** What every control request carries; the runtime compares the last three with its own run. */
interface Asked {
  request_id: string
  agent: string
  session: string
  run: string
}

export interface ControlPing extends Asked {
  op: "ping"
}

export interface ControlModel extends Asked {
  op: "model"
  messages: Message[]
  tools: string[]
  effort?: Effort
  max_output_tokens?: number
}

/** A request on the control socket. */
export type ControlRequest = ControlPing | ControlModel

const COMMON = ["op", "request_id", "agent", "session", "run"]
const FIELDS: Readonly<Record<ControlRequest["op"], readonly string[]>> = {
  ping: COMMON,
  model: [...COMMON, "messages", "tools", "effort", "max_output_tokens"],
}

function refuse(why: string): never {
  throw new CtxError("EINVAL", why)
}

function isRequestId(v: unknown): v is string {
  return (
    typeof v === "string" && v !== "" && isUtf8Text(v) && Buffer.byteLength(v) <= REQUEST_ID_MAX && !v.includes("\0")
  )
}

function parseToolNames(v: unknown): string[] {
  if (v === undefined) return []
  if (!Array.isArray(v) || !v.every(name => isName(name))) refuse("tools must be a list of names")
  if (new Set(v).size !== v.length) refuse("tools names one tool twice")
  return v as string[]
}

function parseAsked(o: JsonObject): Asked {
  const { request_id, agent, session, run } = o
  if (!isRequestId(request_id)) refuse(`request_id must have 1 to ${REQUEST_ID_MAX} bytes`)
  if (!isName(agent)) refuse("agent must be a name")
  if (!isSessionName(session)) refuse("session must be a name other than index")
  if (!isRunId(run)) refuse("run must be a run id")
  return { request_id, agent, session, run }
}

/** `request_id` of a frame that is not acceptable otherwise, for its error reply; `undefined` when it has none. */
export function findRequestId(line: Uint8Array): string | undefined {
  try {
    const o = parseJsonObject(line, INPUT_DEPTH_MAX)
    return isRequestId(o.request_id) ? o.request_id : undefined
  } catch {
    return undefined
  }
}

/**
 * The control request of a line, with or without its LF. Throws `ENOSYS` for an unknown op, `EINVAL` for a frame above its op's size,
 * bad JSON, an unknown field or a bad value. Whether the run and peer are right is the runtime's to check.
 */
export function parseControlRequest(line: Uint8Array): ControlRequest {
  if (line.length > MODEL_FRAME_MAX) refuse(`frame has more than ${MODEL_FRAME_MAX} bytes`)
  const o = parseFrameObject(line, INPUT_DEPTH_MAX)
  const op = o.op
  if (typeof op !== "string") refuse("op is missing")
  if (op !== "ping" && op !== "model") throw new CtxError("ENOSYS", "op is unknown")
  if (op !== "model" && line.length > CONTROL_FRAME_MAX) refuse(`frame has more than ${CONTROL_FRAME_MAX} bytes`)
  for (const key of Object.keys(o)) {
    if (!FIELDS[op].includes(key)) refuse(`unknown field ${JSON.stringify(key.slice(0, 80))}`)
  }
  const asked = parseAsked(o)
  if (op === "ping") return { op, ...asked }
  const { effort, max_output_tokens } = parseSampling(o)
  return {
    op,
    ...asked,
    messages: parseMessages(o.messages, ["user", "assistant", "tool"]),
    tools: parseToolNames(o.tools),
    effort,
    max_output_tokens,
  }
}
