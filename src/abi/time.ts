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

const SECONDS_OF: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400 }

/** Seconds of a DURATION, a positive integer of at most nine digits with `s`, `m`, `h` or `d` (`ctx-coreutils.md` 2.3); throws `EINVAL`. */
export function parseDuration(s: string): number {
  const match = /^([1-9][0-9]{0,8})([smhd])$/.exec(s)
  if (match !== null && !s.endsWith("\n")) return Number(match[1]) * (SECONDS_OF[match[2] as string] as number)
  throw new CtxError("EINVAL", `${JSON.stringify(s.slice(0, 80))} is not a duration: write a number and s, m, h or d`)
}
