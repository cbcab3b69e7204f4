// Names and the other small grammars of the ABI (`root-abi.md` 2, `session-abi.md` 1).
import { CtxError } from "./error.js"

/** Bytes a NAME may have (`root-abi.md` 2). */
export const NAME_MAX = 64

/** Bytes a path component may have. */
export const COMPONENT_MAX = 255

/** Bytes a path may have (`session-abi.md` 1). */
export const PATH_MAX = 4096

const NAME = /^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$/
const UID = /^(?:0|[1-9][0-9]{0,9})$/
const UID_MAX = 4294967294

/** The closed set of model aliases (`root-abi.md` 2.1). */
export const MODEL_ALIASES = ["main", "helper", "fast", "reason", "code", "vision"] as const

/** Provider names that no configuration may use (`root-abi.md` 2). */
export const RESERVED_PROVIDERS = [...MODEL_ALIASES, "route", "debug"] as const

/** The session name that no session may have. */
export const RESERVED_SESSION = "index"

/** The shared space that comes from the generation. */
export const DOCS_SPACE = "cortexfs-docs"

function shown(s: unknown): string {
  return typeof s === "string" ? JSON.stringify(s.length > 80 ? `${s.slice(0, 80)}…` : s) : typeof s
}

/** True when `s` is a NAME: 1 to 64 bytes of ASCII, first a letter or digit, not ending in `.sock` or `.d` (`root-abi.md` 2). */
export function isName(s: string): boolean
export function isName(s: unknown): s is string
export function isName(s: unknown): boolean {
  return typeof s === "string" && NAME.test(s) && !s.endsWith("\n") && !s.endsWith(".sock") && !s.endsWith(".d")
}

/** Returns `s` when it is a NAME, else throws `EINVAL`. */
export function validateName(s: unknown): string {
  if (isName(s)) return s
  throw new CtxError("EINVAL", `${shown(s)} is not a name: 1 to 64 of A-Z a-z 0-9 . _ + -, first a letter or digit`)
}

/** Returns `s` when it is a path component (not empty, `.` or `..`, no `/` or NUL, at most 255 bytes), else throws `EINVAL`. */
export function validateComponent(s: unknown): string {
  if (
    typeof s === "string" &&
    s !== "" &&
    s !== "." &&
    s !== ".." &&
    !s.includes("/") &&
    !s.includes("\0") &&
    Buffer.byteLength(s) <= COMPONENT_MAX
  ) {
    return s
  }
  throw new CtxError("EINVAL", `${shown(s)} is not a path component: 1 to 255 bytes without / and NUL, not . or ..`)
}

/** True when `s` is a canonical uid, 0 to 4294967294. */
export function isUid(s: string): boolean
export function isUid(s: unknown): s is string
export function isUid(s: unknown): boolean {
  return typeof s === "string" && UID.test(s) && !s.endsWith("\n") && Number(s) <= UID_MAX
}

/** The number of a UID; throws `EINVAL` for any other text. A gid has the same grammar. */
export function parseUid(s: unknown): number {
  if (isUid(s)) return Number(s)
  throw new CtxError("EINVAL", `${shown(s)} is not a uid: a decimal number without leading zero, at most ${UID_MAX}`)
}

/** True when `s` is one of the six model aliases. */
export function isAlias(s: string): boolean
export function isAlias(s: unknown): s is (typeof MODEL_ALIASES)[number]
export function isAlias(s: unknown): boolean {
  return (MODEL_ALIASES as readonly unknown[]).includes(s)
}

/** True when `s` is `provider/model`, two NAMEs. An alias is not. */
export function isModel(s: string): boolean
export function isModel(s: unknown): s is string
export function isModel(s: unknown): boolean {
  if (typeof s !== "string") return false
  const slash = s.indexOf("/")
  return slash > 0 && isName(s.slice(0, slash)) && isName(s.slice(slash + 1))
}

/** True when `s` may stand in the control `model`: an alias or MODEL. */
export function isModelReference(s: string): boolean
export function isModelReference(s: unknown): s is string
export function isModelReference(s: unknown): boolean {
  return isAlias(s) || isModel(s)
}

/** The two NAMEs of a MODEL; throws `EINVAL`. */
export function parseModel(s: unknown): { provider: string; model: string } {
  if (!isModel(s)) throw new CtxError("EINVAL", `${shown(s)} is not a model: write provider/model`)
  const slash = s.indexOf("/")
  return { provider: s.slice(0, slash), model: s.slice(slash + 1) }
}

/** True when `s` may name a session: a NAME other than `index`. */
export function isSessionName(s: string): boolean
export function isSessionName(s: unknown): s is string
export function isSessionName(s: unknown): boolean {
  return isName(s) && s !== RESERVED_SESSION
}

/** Returns `s` when it may name a session, else throws `EINVAL`. */
export function validateSessionName(s: unknown): string {
  if (isSessionName(s)) return s
  if (s === RESERVED_SESSION) throw new CtxError("EINVAL", "session name index is reserved: take another name")
  return validateName(s)
}

/** True when `s` is a run id: `ctx-` and 32 lower-case hex digits (`session-abi.md` 1). */
export function isRunId(s: string): boolean
export function isRunId(s: unknown): s is string
export function isRunId(s: unknown): boolean {
  return typeof s === "string" && s.length === 36 && /^ctx-[0-9a-f]{32}$/.test(s)
}

/** True when `s` is a pending id, `<run>.<call>` (`session-abi.md` 6.10). */
export function isPendingId(s: string): boolean
export function isPendingId(s: unknown): s is string
export function isPendingId(s: unknown): boolean {
  return typeof s === "string" && s[36] === "." && isRunId(s.slice(0, 36)) && isName(s.slice(37))
}

/** True when `s` names a client window: 32 lower-case hex digits. */
export function isWindowId(s: string): boolean
export function isWindowId(s: unknown): s is string
export function isWindowId(s: unknown): boolean {
  return typeof s === "string" && s.length === 32 && /^[0-9a-f]{32}$/.test(s)
}

/** True when `s` is a lower-case UUID, 8-4-4-4-12. */
export function isUuid(s: string): boolean
export function isUuid(s: unknown): s is string
export function isUuid(s: unknown): boolean {
  return typeof s === "string" && s.length === 36 && /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(s)
}

/** True when `s` is a path as `session-abi.md` 1 says: absolute, no empty, `.` or `..` component, no NUL, at most 4096 bytes; `/` is one. */
export function isCleanPath(s: string): boolean
export function isCleanPath(s: unknown): s is string
export function isCleanPath(s: unknown): boolean {
  if (typeof s !== "string" || s[0] !== "/" || s.includes("\0") || !isUtf8Text(s) || Buffer.byteLength(s) > PATH_MAX) {
    return false
  }
  if (s === "/") return true
  return s
    .slice(1)
    .split("/")
    .every(part => part !== "" && part !== "." && part !== "..")
}

/** True when every character of `s` can be written as UTF-8, that is, no surrogate stands alone. */
export function isUtf8Text(s: string): boolean {
  return !/[\ud800-\udfff]/u.test(s)
}

/** True when `s` is a time of the ABI: RFC 3339 UTC, exactly three fraction digits, a day that exists (`session-abi.md` 1). */
export function isTs(s: string): boolean
export function isTs(s: unknown): s is string
export function isTs(s: unknown): boolean {
  if (typeof s !== "string" || s.length !== 24 || !/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/.test(s)) return false
  const time = new Date(s)
  return !Number.isNaN(time.getTime()) && time.toISOString() === s
}

/** True when `s` is a generation name read from disk (`rolling-upgrades.md` 4). */
export function isGenerationName(s: string): boolean
export function isGenerationName(s: unknown): s is string
export function isGenerationName(s: unknown): boolean {
  return typeof s === "string" && /^[A-Za-z0-9][A-Za-z0-9.-]{0,127}$/.test(s) && !s.endsWith("\n")
}

/** Class and name of an object: `agent/coder`, `tool/fs.read`, `model/debug/echo`. */
export interface ObjectName {
  class: "model" | "agent" | "tool"
  name: string
}

/** Reads an object string (OBJECT of `root-abi.md` 2); throws `EINVAL`. An alias is not an object. */
export function parseObject(s: unknown): ObjectName {
  if (typeof s === "string") {
    const slash = s.indexOf("/")
    const kind = s.slice(0, slash)
    const name = s.slice(slash + 1)
    if (slash > 0 && kind === "model" && isModel(name)) return { class: kind, name }
    if (slash > 0 && (kind === "agent" || kind === "tool") && isName(name)) return { class: kind, name }
  }
  throw new CtxError("EINVAL", `${shown(s)} is not an object: write agent/NAME, tool/NAME or model/PROVIDER/MODEL`)
}

/** The object string of class and name; the inverse of {@link parseObject}. */
export function formatObject(o: ObjectName): string {
  return `${o.class}/${o.name}`
}
