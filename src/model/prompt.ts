// What the built-in models read of a request: the last user text and the tool results after it (`model-abi.md` 10).
import type { Message, ModelCall, ModelEvent, ResultPart, TextPart, UsageEvent } from "./driver.js"

/** The last user message's text, and the tool results that follow it in order. */
export interface LastTurn {
  text: string
  results: ResultPart[]
}

function textOf(m: Message): string {
  if (typeof m.content === "string") return m.content
  const texts = m.content.filter((p): p is TextPart => p.type === "text")
  return texts.map(p => p.text).join("\n")
}

/** The last turn of a conversation; without a user message its text is empty and no result counts. */
export function readLastTurn(messages: readonly Message[]): LastTurn {
  const last = messages.findLastIndex(m => m.role === "user")
  if (last === -1) return { text: "", results: [] }
  const parts = messages.slice(last + 1).flatMap(m => (typeof m.content === "string" ? [] : m.content))
  return { text: textOf(messages[last]!), results: parts.filter((p): p is ResultPart => p.type === "tool_result") }
}

/** Tokens of the built-in models: a quarter of the UTF-8 bytes of the texts, rounded up. */
export function countTokens(...texts: string[]): number {
  return Math.ceil(texts.reduce((size, text) => size + Buffer.byteLength(text), 0) / 4)
}

/** The usage event of these two counts. */
export function usageEvent(input_tokens: number, output_tokens: number, calls: string[] = []): UsageEvent {
  const usage: UsageEvent = { type: "usage", input_tokens, output_tokens }
  return calls.length === 0 ? usage : { ...usage, tool_calls: calls }
}

/**
 * The events that `play` yields with `start` before them and `done` behind: `ok` when it ends, `error` after an `error` event, and as
 * soon as the call is aborted `error` `EINTR` and `done` `cancelled` (`model-abi.md` 6.3).
 */
export async function* playEvents(
  c: ModelCall,
  play: () => AsyncIterable<ModelEvent> | Iterable<ModelEvent>,
): AsyncGenerator<ModelEvent> {
  yield { type: "start", model: c.model }
  let status: "ok" | "error" = "ok"
  for await (const event of play()) {
    if (c.signal.aborted) break
    yield event
    if (event.type === "error") {
      status = "error"
      break
    }
  }
  if (c.signal.aborted) {
    yield { type: "error", code: "EINTR", message: "the call was cancelled" }
    yield { type: "done", status: "cancelled" }
    return
  }
  yield { type: "done", status }
}
