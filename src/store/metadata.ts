import { OBJECT_RUNNER } from "../abi/path.js"

/** Keys of the metadata text of each object class, in order (object-abi.md 2). */
const KEYS = {
  model: ["id", "name", "description", "type", "created_at", "owned_by", "context_length"],
  tool: ["id", "name", "description", "type", "owned_by", "cap"],
  agent: ["id", "name", "description", "type", "owned_by", "model", "abi", "life"],
} as const

const VALUE_MAX = 1024

/** One metadata value: control bytes become blanks, at most 1024 bytes, cut at a character boundary (object-abi.md 2). */
export function formatMetadataValue(value: string | Buffer): string {
  const text = typeof value === "string" ? value : value.toString("utf8")
  const line = Buffer.from(text.replace(/[\x00-\x1f\x7f]/g, " "))
  let end = Math.min(line.length, VALUE_MAX)
  while (end < line.length && end > 0 && (line[end]! & 0xc0) === 0x80) end--
  return line.subarray(0, end).toString()
}

/**
 * The text that reading an object's executable gives: the runner's line, then `key=value` lines in the order of
 * object-abi.md 2. `type` is set here; a value that is left out is empty.
 */
export function formatMetadata(type: keyof typeof KEYS, values: Record<string, string | Buffer | undefined>): string {
  const lines = KEYS[type].map(key => `${key}=${key === "type" ? type : formatMetadataValue(values[key] ?? "")}\n`)
  return `#!${OBJECT_RUNNER}\n${lines.join("")}`
}
