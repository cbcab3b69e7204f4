// What every model driver gives: a stateless call that is a stream of events (`model-abi.md` 6). Nothing here knows a provider.
import type { ErrnoName } from "../abi/errno.js"
import { CtxError } from "../abi/error.js"
import type { JsonObject } from "../abi/json.js"
import type { DoneStatus } from "../abi/status.js"

/** Words of the control `effort` (`model-abi.md` 2). */
export const EFFORTS = ["auto", "none", "low", "medium", "high", "xhigh", "max"] as const
export type Effort = (typeof EFFORTS)[number]

/** Roles of a message, as a direct run may give them. */
export const ROLES = ["system", "user", "assistant", "tool"] as const
export type Role = (typeof ROLES)[number]

export type TextPart = { type: "text"; text: string }
export type ImagePart = { type: "image"; path: string; media_type: string }
export type CallPart = { type: "tool_call"; id: string; name: string; arguments: JsonObject }
export type ResultPart = { type: "tool_result"; tool_call_id: string; content: string; status: "ok" | "error" }
export type MessagePart = TextPart | ImagePart | CallPart | ResultPart

/** One message given to a model; a string is content of one text part. */
export interface Message {
  role: Role
  content: string | MessagePart[]
}

/** A tool that a model may ask to call. */
export interface ToolOffer {
  name: string
  description: string
  schema: JsonObject
}

/** Sampling values of a request; for an absent one the model's `default` holds (`model-abi.md` 5.3). */
export interface Sampling {
  effort?: Effort
  max_output_tokens?: number
  seed?: number
  temperature?: number
  top_p?: number
}

/** One inference. `model` is MODEL; aborting `signal` ends the stream with `done` `cancelled`. */
export interface ModelCall {
  model: string
  messages: readonly Message[]
  tools: readonly ToolOffer[]
  effort?: string
  maxOutputTokens?: number
  seed?: number
  temperature?: number
  topP?: number
  signal: AbortSignal
}

/** One event of a call, in the order of `model-abi.md` 6.2; it becomes a frame when the caller adds `run`. */
export type ModelEvent =
  | { type: "start"; model: string }
  | { type: "delta"; text: string }
  | { type: "reasoning_delta"; text: string }
  | { type: "reasoning_message"; content: TextPart[] }
  | { type: "message"; content: TextPart[] }
  | { type: "tool_call"; id: string; name: string; arguments: JsonObject }
  | UsageEvent
  | { type: "error"; code: ErrnoName; message: string; recoverable?: true }
  | { type: "done"; status: DoneStatus }

/** Tokens of a call: `input_tokens` excludes `cached_tokens` and includes `cache_write_tokens`. */
export interface UsageEvent {
  type: "usage"
  input_tokens: number
  output_tokens: number
  cached_tokens?: number
  cache_write_tokens?: number
  model?: string
  elapsed_ms?: number
  tool_calls?: string[]
}

/**
 * A way to call a model. The stream begins with `start` and ends with exactly one `done`; what goes wrong is an `error` event before it
 * and never an exception. A stream that ends without `done` was cut off, which its reader reports as `EIO`.
 */
export interface Driver {
  call(c: ModelCall): AsyncIterable<ModelEvent>
}

/**
 * The driver of a MODEL. Throws `ENOENT` for a model without one. `source` is the tree whose models are meant; the built-in models
 * are in every tree.
 */
export async function getDriver(source: unknown, model: string): Promise<Driver> {
  switch (model) {
    case "debug/echo":
      return (await import("./echo.js")).echo
    case "debug/script":
      return (await import("./script.js")).script
    case "debug/guide":
      return (await import("./guide.js")).guide
    default:
      throw new CtxError("ENOENT", `model/${model}: no such model in ${describeSource(source)}`)
  }
}

function describeSource(source: unknown): string {
  const dir = (source as { dir?: unknown } | undefined)?.dir
  return typeof dir === "string" ? dir : "this tree"
}
