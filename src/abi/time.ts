// Times of the ABI as text.
import { CtxError } from "./error.js"
import { isTs } from "./name.js"

/** Milliseconds since the epoch (default: now) as TS, RFC 3339 UTC with three fraction digits (`session-abi.md` 1). Throws `EINVAL` outside years 0 to 9999. */
export function formatTs(ms: number = Date.now()): string {
  const text = Number.isFinite(ms) && Math.abs(ms) <= 8.64e15 ? new Date(ms).toISOString() : ""
  if (text.length !== 24) throw new CtxError("EINVAL", `${ms} is not a time between the years 0 and 9999`)
  return text
}

/** Milliseconds since the epoch of a TS; throws `EINVAL`. */
export function parseTs(s: unknown): number {
  if (isTs(s)) return Date.parse(s)
  throw new CtxError("EINVAL", "a time must have the form 2026-01-01T00:00:00.000Z")
}
