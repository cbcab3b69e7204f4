import { OBSERVATION_HEAD, OBSERVATION_MAX, OBSERVATION_TAIL } from "../abi/limit.js"

/** The longest part of `bytes` before `end` that does not end inside a character. */
function cutBefore(bytes: Buffer, end: number): number {
  while (end > 0 && (bytes[end]! & 0xc0) === 0x80) end--
  return end
}

/** The first character boundary at or behind `start`. */
function cutBehind(bytes: Buffer, start: number): number {
  while (start < bytes.length && (bytes[start]! & 0xc0) === 0x80) start++
  return start
}

/**
 * A text as the next step sees it: itself up to 16,384 bytes, else its head of at most 12,000 and its tail of at most
 * 4,000 bytes with one marker line between, cut at characters. tool-policy-abi 3.3
 */
export function shortenText(text: string): { text: string; isShortened: boolean } {
  const bytes = Buffer.from(text)
  if (bytes.length <= OBSERVATION_MAX) return { text, isShortened: false }
  const head = cutBefore(bytes, OBSERVATION_HEAD)
  const tail = cutBehind(bytes, bytes.length - OBSERVATION_TAIL)
  const marker = `\n[... ${tail - head} bytes omitted ...]\n`
  return { text: bytes.toString("utf8", 0, head) + marker + bytes.toString("utf8", tail), isShortened: true }
}
