// Messages, tools and sampling values of a model request (`model-abi.md` 6.1, `agent-runtime.md` 5), checked from parsed JSON.
import { CtxError } from "../abi/error.js"
import { isObject, type JsonObject } from "../abi/json.js"
import { LIMIT_MAX, MESSAGES_MAX, REQUEST_TOOLS_MAX } from "../abi/limit.js"
import { isName, isUtf8Text } from "../abi/name.js"
import {
  EFFORTS,
  type Effort,
  type Message,
  type MessagePart,
  ROLES,
  type Role,
  type Sampling,
  type ToolOffer,
} from "./driver.js"

function refuse(why: string): never {
  throw new CtxError("EINVAL", why)
}

function isFilled(v: unknown): v is string {
  return typeof v === "string" && v !== "" && isUtf8Text(v)
}

function parsePart(v: unknown, role: Role, at: string, calls: Set<string>): MessagePart {
  if (!isObject(v)) refuse(`${at} is not an object`)
  const only = (owner: Role) => {
    if (role !== owner) refuse(`${at}: ${String(v.type)} does not belong to role ${role}`)
  }
  switch (v.type) {
    case "text":
      if (role === "tool") refuse(`${at}: text does not belong to role tool`)
      if (!isFilled(v.text)) refuse(`${at}: text must be a string that is not empty`)
      return { type: "text", text: v.text }
    case "image":
      only("user")
      if (!isFilled(v.path) || v.path.includes("\0") || !isFilled(v.media_type))
        refuse(`${at}: image needs path and media_type`)
      return { type: "image", path: v.path, media_type: v.media_type }
    case "tool_call":
      only("assistant")
      if (!isName(v.id) || !isName(v.name)) refuse(`${at}: id and name of a tool_call must be names`)
      if (!isObject(v.arguments)) refuse(`${at}: arguments must be an object`)
      calls.add(v.id)
      return { type: "tool_call", id: v.id, name: v.name, arguments: v.arguments }
    case "tool_result":
      only("tool")
      if (!isName(v.tool_call_id) || !calls.has(v.tool_call_id))
        refuse(`${at}: tool_result answers no earlier tool_call`)
      if (typeof v.content !== "string" || !isUtf8Text(v.content)) refuse(`${at}: content must be a string`)
      if (v.status !== "ok" && v.status !== "error") refuse(`${at}: status must be ok or error`)
      return { type: "tool_result", tool_call_id: v.tool_call_id, content: v.content, status: v.status }
    default:
      return refuse(`${at}: unknown part type`)
  }
}

/**
 * Checks `messages` of a model request and returns them without unknown members. `roles` are those allowed (a program on the control
 * socket gives no `system`). Throws `EINVAL` for a bad type, an empty text, a role's wrong part, or a result without its earlier call.
 */
export function parseMessages(v: unknown, roles: readonly Role[] = ROLES): Message[] {
  if (!Array.isArray(v) || v.length < 1 || v.length > MESSAGES_MAX)
    refuse(`messages must be a list of 1 to ${MESSAGES_MAX}`)
  const calls = new Set<string>()
  return v.map((m: unknown, i) => {
    const at = `messages[${i}]`
    if (!isObject(m)) refuse(`${at} is not an object`)
    const role = m.role as Role
    if (!roles.includes(role)) refuse(`${at}: role must be one of ${roles.join(" ")}`)
    if (typeof m.content === "string") {
      if (role === "tool") refuse(`${at}: a tool message needs a tool_result part`)
      if (!isFilled(m.content)) refuse(`${at}: content is empty`)
      return { role, content: m.content }
    }
    if (!Array.isArray(m.content) || m.content.length === 0)
      refuse(`${at}: content must be a string or a list of parts`)
    return { role, content: m.content.map((p: unknown, j) => parsePart(p, role, `${at}.content[${j}]`, calls)) }
  })
}

/** Checks `tools` of a model request; absent is none. Throws `EINVAL`. */
export function parseTools(v: unknown): ToolOffer[] {
  if (v === undefined) return []
  if (!Array.isArray(v) || v.length > REQUEST_TOOLS_MAX) refuse(`tools must be a list of at most ${REQUEST_TOOLS_MAX}`)
  const names = new Set<string>()
  return v.map((t: unknown, i) => {
    if (!isObject(t) || !isName(t.name) || typeof t.description !== "string" || !isObject(t.schema)) {
      refuse(`tools[${i}] needs a name, a description and a schema`)
    }
    if (names.has(t.name)) refuse(`tools[${i}]: ${t.name} occurs twice`)
    names.add(t.name)
    return { name: t.name, description: t.description, schema: t.schema }
  })
}

function number(o: JsonObject, key: string, min: number, max: number, isWhole: boolean): number | undefined {
  const v = o[key]
  if (v === undefined) return undefined
  if (typeof v !== "number" || !(v >= min && v <= max) || (isWhole && !Number.isInteger(v))) {
    refuse(`${key} must be ${isWhole ? "a whole number" : "a number"} from ${min} to ${max}`)
  }
  return v
}

/** Checks `effort`, `max_output_tokens`, `seed`, `temperature` and `top_p` of a model request. Throws `EINVAL`. */
export function parseSampling(o: JsonObject): Sampling {
  const sampling: Sampling = {}
  if (o.effort !== undefined) {
    if (!(EFFORTS as readonly unknown[]).includes(o.effort)) refuse(`effort must be one of ${EFFORTS.join(" ")}`)
    sampling.effort = o.effort as Effort
  }
  const numbers = [
    ["max_output_tokens", 1, LIMIT_MAX, true],
    ["seed", 0, LIMIT_MAX, true],
    ["temperature", 0, 2, false],
    ["top_p", 0, 1, false],
  ] as const
  for (const [key, min, max, isWhole] of numbers) {
    const value = number(o, key, min, max, isWhole)
    if (value !== undefined) sampling[key] = value
  }
  return sampling
}
