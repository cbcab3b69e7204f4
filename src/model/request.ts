// The input and output of a direct run of a model executable (`model-abi.md` 6.1, 6.2).
import { CtxError } from "../abi/error.js"
import { decodeUtf8, formatRow, parseJsonObject } from "../abi/json.js"
import { FRAME_MAX, INPUT_DEPTH_MAX } from "../abi/limit.js"
import type { Driver, Message, ModelCall, Sampling, ToolOffer } from "./driver.js"
import { parseMessages, parseSampling, parseTools } from "./message.js"

/** A request for one inference, as it is given to a model executable. */
export interface ModelRequest extends Sampling {
  messages: Message[]
  tools: ToolOffer[]
}

function userRequest(text: string): ModelRequest {
  return { messages: parseMessages([{ role: "user", content: text }]), tools: [] }
}

function checkSize(size: number): void {
  if (size > FRAME_MAX) throw new CtxError("EMSGSIZE", `input has more than ${FRAME_MAX} bytes`)
}

/**
 * The request of the arguments, or without any of the bytes on stdin: a JSON request when their first byte that is no blank is `{`,
 * else one user message without one final LF. Unknown members are ignored. Throws `EMSGSIZE` above 1 MiB and `EINVAL` for bad JSON,
 * a bad type, an empty text, or a tool result without its call.
 */
export function parseModelRequest(args: readonly string[], stdin: Uint8Array = Buffer.alloc(0)): ModelRequest {
  if (args.length > 0) {
    const text = args.join(" ")
    checkSize(Buffer.byteLength(text))
    return userRequest(text)
  }
  checkSize(stdin.length)
  const text = decodeUtf8(stdin)
  if (!/^[ \t\r\n]*\{/.test(text)) return userRequest(text.replace(/\n$/, ""))
  const o = parseJsonObject(text, INPUT_DEPTH_MAX)
  return { messages: parseMessages(o.messages), tools: parseTools(o.tools), ...parseSampling(o) }
}

/** The call of a request: its wire names in the form of {@link ModelCall}. */
export function callOf(request: ModelRequest, model: string, signal: AbortSignal): ModelCall {
  const { messages, tools, effort, max_output_tokens, seed, temperature, top_p } = request
  return { model, messages, tools, effort, maxOutputTokens: max_output_tokens, seed, temperature, topP: top_p, signal }
}

/** The frames of a call as lines without LF, each with `run` behind `type` and `role` in a message (`model-abi.md` 6.2). */
export async function* callLines(driver: Driver, call: ModelCall, run: string): AsyncGenerator<string> {
  for await (const { type, ...rest } of driver.call(call)) {
    yield formatRow(type === "message" ? { type, run, role: "assistant", ...rest } : { type, run, ...rest })
  }
}
