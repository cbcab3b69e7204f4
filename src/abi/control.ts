// Control files: their kinds (`root-abi.md` 3) and the closed lists of controls (`root-abi.md` 4).
import { CtxError, type ErrorFacts } from "./error.js"
import { issueError } from "./issue.js"
import { decodeUtf8 } from "./json.js"
import { CONTROL_MAX } from "./limit.js"
import { agentHomePath, homePath, rootEntryPath, SANDBOX_WORKSPACE } from "./path.js"
import { AGENT_ABI } from "./product.js"

export { CONTROL_MAX } from "./limit.js"

const KEY = /^[A-Za-z_][A-Za-z0-9_]*$/

function refuse(what: string, why: string, at?: number, more: ErrorFacts = {}): never {
  const issue = issueError(at === undefined ? { kind: "invalid", what, why } : { kind: "invalid", what, why, at })
  throw Object.keys(more).length === 0 ? issue : new CtxError("EINVAL", issue.message, more)
}

function hasBlankEdge(s: string): boolean {
  return /^[ \t\r]|[ \t\r]$/.test(s)
}

/** The text of a control of any text kind: UTF-8 without BOM and NUL, at most 65536 bytes; throws `EINVAL` naming `what`. */
export function parseText(bytes: Uint8Array, what: string): string {
  if (bytes.length > CONTROL_MAX) refuse(what, `has more than ${CONTROL_MAX} bytes`)
  let text: string
  try {
    text = decodeUtf8(bytes)
  } catch (e) {
    return refuse(what, e instanceof Error ? e.message : "is not text", undefined, { cause: e })
  }
  if (text.includes("\0")) refuse(what, "holds a NUL byte")
  return text
}

/** The lines of a control without their LF; 0 bytes are no line. Throws `EINVAL` when the last line has no LF. */
export function parseLines(bytes: Uint8Array, what: string): string[] {
  const text = parseText(bytes, what)
  if (text === "") return []
  const lines = text.split("\n")
  if (lines.pop() !== "") refuse(what, "the last line does not end in LF", lines.length + 1)
  return lines
}

/** The one line of a value control, `""` for an empty line. Throws `EINVAL` when it is not exactly one LF-terminated line without blanks at its ends. */
export function parseValue(bytes: Uint8Array, what: string): string {
  const lines = parseLines(bytes, what)
  if (lines.length === 0) throw issueError({ kind: "empty", what, why: "is empty: one line is needed" })
  if (lines.length > 1) refuse(what, "has more than one line", 2)
  const value = lines[0]!
  if (hasBlankEdge(value)) refuse(what, "begins or ends with a blank", 1)
  return value
}

/** The items of a list control. Throws `EINVAL` for an empty line, blanks at an end of an item, or a missing final LF. */
export function parseList(bytes: Uint8Array, what: string): string[] {
  const items = parseLines(bytes, what)
  items.forEach((item, i) => {
    if (item === "") refuse(what, "is an empty line", i + 1)
    if (hasBlankEdge(item)) refuse(what, "begins or ends with a blank", i + 1)
  })
  return items
}

/** The pairs of a control in file order. Throws `EINVAL` for a line without `=`, a bad KEY, a duplicate KEY or a missing final LF. */
export function parsePairs(bytes: Uint8Array, what: string): Map<string, string> {
  const pairs = new Map<string, string>()
  parseLines(bytes, what).forEach((line, i) => {
    const equals = line.indexOf("=")
    const key = line.slice(0, Math.max(equals, 0))
    if (!KEY.test(key)) refuse(what, "is not KEY=VALUE", i + 1)
    if (pairs.has(key)) refuse(what, `has ${key} a second time`, i + 1)
    pairs.set(key, line.slice(equals + 1))
  })
  return pairs
}

/** The truth of a boolean control, `0` LF or `1` LF; throws `EINVAL`. */
export function parseBoolean(bytes: Uint8Array, what: string): boolean {
  const value = parseValue(bytes, what)
  if (value !== "0" && value !== "1") refuse(what, "is neither 0 nor 1", 1)
  return value === "1"
}

function checkLine(s: string, what: string): string {
  if (/[\n\0]/.test(s)) refuse(what, "holds a LF or NUL")
  return s
}

function checked(text: string, what: string): Buffer {
  const bytes = Buffer.from(text)
  if (bytes.length > CONTROL_MAX) refuse(what, `has more than ${CONTROL_MAX} bytes`)
  return bytes
}

/** The bytes of a value control. Throws `EINVAL` for what {@link parseValue} would refuse. */
export function formatValue(s: string): Buffer {
  if (hasBlankEdge(checkLine(s, "value"))) refuse("value", "begins or ends with a blank")
  return checked(`${s}\n`, "value")
}

/** The bytes of a list control; an empty list has none. Throws `EINVAL` for what {@link parseList} would refuse. */
export function formatList(items: readonly string[]): Buffer {
  items.forEach((item, i) => {
    if (checkLine(item, "list") === "" || hasBlankEdge(item))
      refuse("list", "is empty or begins or ends with a blank", i + 1)
  })
  return checked(items.map(item => `${item}\n`).join(""), "list")
}

/** The bytes of a pairs control in the order given. Throws `EINVAL` for what {@link parsePairs} would refuse. */
export function formatPairs(pairs: ReadonlyMap<string, string> | Readonly<Record<string, string>>): Buffer {
  const entries = pairs instanceof Map ? [...pairs] : Object.entries(pairs as Record<string, string>)
  const lines = entries.map(([key, value]) => {
    if (!KEY.test(key)) refuse("pairs", `${JSON.stringify(key)} is not a KEY`)
    return `${key}=${checkLine(value, "pairs")}\n`
  })
  return checked(lines.join(""), "pairs")
}

/** Kind of a control; `dir` and `text` are not among the kinds of `root-abi.md` 3 but stand in its lists. */
export type ControlKind = "value" | "list" | "boolean" | "pairs" | "stream" | "json" | "text" | "dir"

/** One control of a `.d`. */
export interface Control {
  name: string
  kind: ControlKind
  /** Without it the object cannot be started or called. */
  isRequired: boolean
  /** Bytes that stand for an absent file, where they depend on nothing but the agent's owner and name. */
  absent?: (owner: number, name: string) => string
}

const absent = (text: string) => () => text

/** The closed list of agent controls in order (`root-abi.md` 4.4). `uid` and `gid` default to what `owner` says, which is no text of this table. */
export const AGENT_CONTROLS: readonly Control[] = [
  { name: "owner", kind: "value", isRequired: true },
  { name: "uid", kind: "value", isRequired: false, absent: owner => `${owner}\n` },
  { name: "gid", kind: "value", isRequired: false },
  { name: "groups", kind: "list", isRequired: false, absent: absent("") },
  { name: "label", kind: "value", isRequired: true },
  { name: "iso", kind: "value", isRequired: false, absent: absent("shared\n") },
  { name: "parent", kind: "value", isRequired: false, absent: absent("\n") },
  { name: "life", kind: "value", isRequired: false, absent: absent("owned\n") },
  { name: "root", kind: "value", isRequired: false, absent: (owner, name) => `${agentHomePath(owner, name)}/root\n` },
  { name: "cwd", kind: "value", isRequired: false, absent: absent(`${SANDBOX_WORKSPACE}\n`) },
  { name: "env", kind: "pairs", isRequired: false, absent: absent("") },
  {
    name: "path",
    kind: "list",
    isRequired: false,
    absent: owner => `${rootEntryPath("tool")}\n${homePath(owner)}/tool\n`,
  },
  { name: "mount", kind: "list", isRequired: false, absent: absent("") },
  { name: "model", kind: "value", isRequired: true },
  { name: "abi", kind: "value", isRequired: true },
  { name: "policy", kind: "list", isRequired: false, absent: absent("") },
  { name: "status", kind: "value", isRequired: false, absent: absent("dead\n") },
  { name: "pid", kind: "value", isRequired: false, absent: absent("\n") },
  { name: "log", kind: "stream", isRequired: false, absent: absent("") },
  { name: "meta.json", kind: "json", isRequired: false, absent: absent("{}\n") },
  { name: "tools", kind: "list", isRequired: false, absent: absent("") },
  { name: "approval", kind: "value", isRequired: false, absent: absent("auto\n") },
  { name: "window", kind: "value", isRequired: false, absent: absent("auto\n") },
  { name: "system.md", kind: "text", isRequired: false, absent: absent("") },
  { name: "prompt.template.md", kind: "text", isRequired: false, absent: absent("") },
  { name: "hooks", kind: "dir", isRequired: false },
]

/** The closed list of tool controls in order (`root-abi.md` 4.5, `tool-policy-abi.md` 1). */
export const TOOL_CONTROLS: readonly Control[] = [
  { name: "name", kind: "value", isRequired: true },
  { name: "description", kind: "value", isRequired: true },
  { name: "schema", kind: "json", isRequired: true },
  { name: "cap", kind: "list", isRequired: true },
  { name: "policy", kind: "list", isRequired: true },
  { name: "status", kind: "value", isRequired: false },
  { name: "log", kind: "stream", isRequired: true },
  { name: "timeout", kind: "value", isRequired: false, absent: absent("120\n") },
  { name: "mcp", kind: "json", isRequired: false },
  { name: "cache", kind: "value", isRequired: false },
  { name: "config", kind: "pairs", isRequired: false },
  { name: "hooks", kind: "dir", isRequired: false },
]

/** The ten files of a model's `.d` in order (`model-abi.md` 2). */
export const MODEL_CONTROLS: readonly Control[] = [
  { name: "id", kind: "value", isRequired: true },
  { name: "driver", kind: "text", isRequired: true },
  { name: "cap", kind: "list", isRequired: true },
  { name: "effort", kind: "value", isRequired: true },
  { name: "default", kind: "pairs", isRequired: true },
  { name: "fallback", kind: "list", isRequired: true },
  { name: "limit", kind: "value", isRequired: true },
  { name: "session", kind: "value", isRequired: true },
  { name: "status", kind: "value", isRequired: true },
  { name: "log", kind: "stream", isRequired: true },
]

/** True when `bytes` are exactly what the control `abi` must hold. */
export function isAgentAbi(bytes: Uint8Array): boolean {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).equals(Buffer.from(`${AGENT_ABI}\n`))
}
