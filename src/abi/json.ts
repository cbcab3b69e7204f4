// Strict JSON: no duplicate keys, UTF-8 without BOM, bounded depth; canonical and one-line output.
import { isUtf8 } from "node:buffer"
import { CtxError } from "./error.js"
import { JSON_DEPTH_MAX } from "./limit.js"
import { isUtf8Text } from "./name.js"

/** A plain JSON object. */
export type JsonObject = { [key: string]: unknown }

/** True for a JSON object, not for an array or null. */
export function isObject(v: unknown): v is JsonObject {
  return typeof v === "object" && v !== null && !Array.isArray(v)
}

/** The text of UTF-8 bytes; throws `EINVAL` for other bytes and for a BOM. */
export function decodeUtf8(bytes: Uint8Array): string {
  if (!isUtf8(bytes)) throw new CtxError("EINVAL", "bytes are not UTF-8")
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("utf8")
  if (text.startsWith("\ufeff")) throw new CtxError("EINVAL", "text begins with a byte order mark: remove it")
  return text
}

/**
 * The value of one JSON text (RFC 8259). Throws `EINVAL` for bad UTF-8, a byte order mark, bad JSON, two equal keys in one object and
 * nesting deeper than `depthMax`. Time and memory grow linearly with the text.
 */
export function parseJson(text: string | Uint8Array, depthMax = JSON_DEPTH_MAX): unknown {
  const source = typeof text === "string" ? text : decodeUtf8(text)
  let value: unknown
  try {
    value = JSON.parse(source)
  } catch (e) {
    throw new CtxError("EINVAL", "bad JSON", { cause: e })
  }
  checkKeys(source, depthMax)
  return value
}

/** As {@link parseJson}, for a text that must hold an object. */
export function parseJsonObject(text: string | Uint8Array, depthMax = JSON_DEPTH_MAX): JsonObject {
  const value = parseJson(text, depthMax)
  if (!isObject(value)) throw new CtxError("EINVAL", "JSON value is not an object")
  return value
}

/** True when no string of a JSON value, key or not, holds half a surrogate pair, which UTF-8 cannot carry. */
function isWellFormed(v: unknown): boolean {
  if (typeof v === "string") return isUtf8Text(v)
  if (Array.isArray(v)) return v.every(isWellFormed)
  return !isObject(v) || Object.entries(v).every(([key, value]) => isUtf8Text(key) && isWellFormed(value))
}

/**
 * The object of one frame from outside. As {@link parseJsonObject}; `EINVAL` also for a string or key anywhere in it with a lone
 * surrogate: it could neither be stored nor given on unchanged.
 */
export function parseFrameObject(bytes: Uint8Array, depthMax: number): JsonObject {
  const value = parseJsonObject(bytes, depthMax)
  // Bytes that are UTF-8 can hold half a pair only as an escape.
  if (bytes.includes(0x5c) && !isWellFormed(value)) {
    throw new CtxError("EINVAL", "a string holds half a surrogate pair: escape both halves or neither")
  }
  return value
}

/** End of the string literal that opens at `start`: the index of its closing quote. The text is valid JSON. */
function closingQuote(s: string, start: number): number {
  let end = s.indexOf('"', start + 1)
  for (;;) {
    let back = end - 1
    while (s.charCodeAt(back) === 0x5c) back--
    if ((end - back) % 2 === 1) return end
    end = s.indexOf('"', end + 1)
  }
}

// Walks a text that JSON.parse has accepted, so strings, braces and colons are the only things to look at.
function checkKeys(s: string, depthMax: number): void {
  const open: (Set<string> | undefined)[] = []
  let keys: Set<string> | undefined
  let isKey = false
  for (let i = 0; i < s.length; i++) {
    switch (s.charCodeAt(i)) {
      case 0x22: {
        const end = closingQuote(s, i)
        if (isKey && keys !== undefined) {
          const raw = s.slice(i + 1, end)
          const key = raw.includes("\\") ? (JSON.parse(`"${raw}"`) as string) : raw
          if (keys.has(key))
            throw new CtxError("EINVAL", `key ${JSON.stringify(key.slice(0, 80))} occurs twice in one object`)
          keys.add(key)
          isKey = false
        }
        i = end
        break
      }
      case 0x7b: // {
      case 0x5b: // [
        open.push(keys)
        if (open.length > depthMax) throw new CtxError("EINVAL", `JSON is nested deeper than ${depthMax}`)
        isKey = s.charCodeAt(i) === 0x7b
        keys = isKey ? new Set() : undefined
        break
      case 0x7d: // }
      case 0x5d: // ]
        keys = open.pop()
        isKey = false
        break
      case 0x2c: // ,
        isKey = keys !== undefined
        break
    }
  }
}

/**
 * Canonical JSON of RFC 8785: keys sorted by UTF-16 code units, shortest numbers, no blanks. Members whose value is `undefined` are left
 * out. Throws `EINVAL` for numbers that are not finite, lone surrogates, nesting beyond 1024 and what is not JSON.
 */
export function canonicalJson(v: unknown, depth = 0): string {
  if (depth > JSON_DEPTH_MAX) throw new CtxError("EINVAL", `value is nested deeper than ${JSON_DEPTH_MAX}`)
  if (v === null || typeof v === "boolean") return String(v)
  if (typeof v === "number" && Number.isFinite(v)) return JSON.stringify(v)
  if (typeof v === "string" && isUtf8Text(v)) return JSON.stringify(v)
  if (Array.isArray(v)) return `[${v.map(item => canonicalJson(item, depth + 1)).join(",")}]`
  if (isObject(v)) {
    const members = Object.keys(v)
      .filter(key => v[key] !== undefined)
      .sort((a, b) => (a < b ? -1 : a > b ? 1 : 0))
      .map(key => `${canonicalJson(key, depth + 1)}:${canonicalJson(v[key], depth + 1)}`)
    return `{${members.join(",")}}`
  }
  throw new CtxError("EINVAL", `a ${typeof v} value has no canonical JSON`)
}

function wellFormed(v: unknown): unknown {
  if (typeof v === "string") return v.replace(/[\ud800-\udfff]/gu, "\ufffd")
  if (Array.isArray(v)) return v.map(wellFormed)
  if (!isObject(v)) return v
  return Object.fromEntries(Object.entries(v).map(([key, value]) => [wellFormed(key), wellFormed(value)]))
}

/**
 * One JSONL row without its LF, in the key order of the object: no blanks, only `"`, `\` and U+0000 to U+001F escaped
 * (`session-abi.md` 1). A lone surrogate, which UTF-8 cannot hold, becomes U+FFFD; members that are `undefined` are left out.
 */
export function formatRow(row: object): string {
  const text = JSON.stringify(row)
  return text.includes("\\ud") ? JSON.stringify(wellFormed(row)) : text
}
