// Whether a row of `messages.jsonl` and a `message` event tell of the same thing (session-abi 12).
import { hash } from "node:crypto"
import type { JsonObject } from "../abi/json.js"
import type { EventRow, MessageRow, Part } from "./row.js"

const STAMP_SIZE = 6

/**
 * A number that says role, name and content of a tool or assistant row or of a `message` event, whatever the order of keys
 * and unknown ones beside: 48 bits of SHA-256, so that equal facts always and others practically never have the same.
 */
export function stampOf(row: MessageRow | EventRow): number {
  const name = typeof row.name === "string" ? row.name : ""
  let text = `${row.role} ${row.role === "tool" ? name : ""}`
  for (const part of row.content as Part[]) text += `\0${factsOf(part)}`
  return hash("sha256", text, "buffer").readUIntBE(0, STAMP_SIZE)
}

function factsOf(part: Part): string {
  switch (part.type) {
    case "text":
      return `text\0${part.text}`
    case "image":
      return `image\0${part.path}\0${part.media_type}`
    case "tool_result":
      return `${part.tool_call_id}\0${part.status}${part.truncated === true}${part.cached === true}\0${part.content}`
    default:
      return JSON.stringify(part, Object.keys(part as JsonObject).sort())
  }
}
