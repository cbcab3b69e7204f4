import { CtxError } from "../abi/error.js"
import { LIMIT_MAX } from "../abi/limit.js"

/** What a window of N tokens gives, in UTF-8 bytes but `tokens` and `reserve`. agent-runtime 9 */
export interface Window {
  /** N, undefined when unknown. */
  tokens?: number
  /** C = 4N. */
  chars?: number
  /** R, output reserve in tokens. */
  reserve?: number
  /** B, most bytes of a model request's messages. */
  budget?: number
  /** H, most bytes of rendered history. */
  history: number
}

const UNKNOWN: Window = { history: 8_000 }

/** The numbers of section 9 for N tokens; without N nothing is charged and H is 8,000. */
export function computeWindow(tokens?: number): Window {
  if (tokens === undefined) return { ...UNKNOWN }
  const reserve = Math.min(4096, Math.max(1, Math.floor(tokens / 4)))
  const budget = 4 * tokens - 4 * reserve
  return { tokens, chars: 4 * tokens, reserve, budget, history: Math.min(65536, Math.floor(budget / 2)) }
}

/** A model's `limit` control: tokens, or undefined for `unknown`. Errors: EINVAL. model-abi 4.1 */
export function parseLimit(text: string): number | undefined {
  if (text === "unknown\n") return undefined
  const number = /^[1-9][0-9]{0,9}\n$/.test(text) ? Number(text) : Number.POSITIVE_INFINITY
  if (number > LIMIT_MAX) throw new CtxError("EINVAL", "model limit is neither unknown nor a number of tokens")
  return number
}

/**
 * The window of a run: `auto` follows the model's limit, a number must not exceed a known one.
 * Errors: EINVAL. agent-runtime 9
 */
export function selectWindow(control: number | "auto", limit: number | undefined): Window {
  if (control === "auto") return computeWindow(limit)
  if (limit === undefined)
    throw new CtxError("EINVAL", `window ${control} needs a model with a known limit; set it to auto`)
  if (control > limit) throw new CtxError("EINVAL", `window ${control} exceeds the model's limit ${limit}`)
  return computeWindow(control)
}
