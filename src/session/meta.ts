// The small files of a session besides its history: state, cwd, times, meta.json, latest.md (session-abi 7, 8, 9).
import { CtxError, codeOf } from "../abi/error.js"
import { formatRow, isObject, type JsonObject, parseJson } from "../abi/json.js"
import { CONTROL_MAX, STATE_MAX } from "../abi/limit.js"
import { SESSION_STATES, type SessionState } from "../abi/status.js"
import { readEntry } from "./entry.js"
import type { Place } from "./place.js"

/** Name prefixes that say where a session comes from, in the order of a listing (session-abi 9, session-services 2). */
export const ORIGINS = ["cli", "chat", "dc", "tg", "temp"] as const

/** The origin that a session name's prefix says, if any. */
export function originOf(name: string): (typeof ORIGINS)[number] | undefined {
  return ORIGINS.find(origin => name.startsWith(`${origin}-`))
}

/** The body of a new `meta.json` (session-abi 9). */
export function formatMeta(
  name: string,
  place: Place,
  facts: { client: string; model?: string; title?: string },
): string {
  const origin = originOf(name)
  const lifetime = origin === "temp" ? "idle:1800" : "keep"
  const { client, model, title } = facts
  return `${formatRow({ client, scope: place.scope, shared: place.shared, model, origin, lifetime, title })}\n`
}

/** `meta.json` as an object; `{}` when missing, malformed or too long (session-abi 9). Errors: `EIO` for a link or special file. */
export function readMeta(dirFd: number): JsonObject {
  return findMeta(dirFd) ?? {}
}

/** `meta.json` with another `model`; undefined when nothing is to be written: same model, or the file is not to be touched. */
export function changeModel(dirFd: number, model: string | undefined): string | undefined {
  const meta = findMeta(dirFd)
  if (meta === undefined || model === undefined || meta.model === model) return undefined
  return `${formatRow({ ...meta, model })}\n`
}

function findMeta(dirFd: number): JsonObject | undefined {
  try {
    const bytes = readEntry(dirFd, "meta.json", CONTROL_MAX)
    const value = bytes && parseJson(bytes)
    return isObject(value) ? value : undefined
  } catch (e) {
    const code = codeOf(e)
    if (code === "EINVAL" || code === "EFBIG") return undefined
    throw e
  }
}

/**
 * The state word; undefined when the file is missing or empty. Errors: `EIO` when it is anything but one state word and
 * LF, or a link or special file (session-abi 6.6, 7).
 */
export function readState(dirFd: number): SessionState | undefined {
  const bytes = readText(dirFd, "state", STATE_MAX)
  if (bytes === undefined || bytes === "") return undefined
  const word = SESSION_STATES.find(state => bytes === `${state}\n`)
  if (word === undefined)
    throw new CtxError("EIO", "state is malformed", { path: "state", hint: "look at it with cat" })
  return word
}

/** A line value of the session, without its LF; undefined when missing or empty. Errors: `EIO` for a link, special or long file. */
export function readLineValue(dirFd: number, name: string): string | undefined {
  const text = readText(dirFd, name, CONTROL_MAX)
  if (text === undefined || text === "") return undefined
  return text.endsWith("\n") ? text.slice(0, -1) : text
}

/** A small file as text; undefined when missing. Errors: `EIO` for a link, special or long file. */
export function readText(dirFd: number, name: string, maxSize: number): string | undefined {
  try {
    return readEntry(dirFd, name, maxSize)?.toString("utf8")
  } catch (e) {
    if (codeOf(e) === "EFBIG") throw new CtxError("EIO", `${name} is too long`, { path: name, cause: e })
    throw e
  }
}

/** `updated_at` and `created_at` text of a time in milliseconds: decimal seconds and LF. */
export function formatSeconds(ms: number): string {
  return `${Math.floor(ms / 1000)}\n`
}
