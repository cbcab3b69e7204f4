// The one model of an input that is not acceptable.
import { CtxError } from "./error.js"

/** Why a control, file, frame or argument is refused (`naming.md` 4). `at` is a line number counted from 1. */
export interface Issue {
  kind: "empty" | "missing" | "invalid"
  what: string
  at?: number
  why: string
}

/** The text of an issue: `agent/coder.d/mount line 2: source is relative`. */
export function formatIssue(i: Issue): string {
  return i.at === undefined ? `${i.what}: ${i.why}` : `${i.what} line ${i.at}: ${i.why}`
}

/** The error of an issue: `ENOENT` when something is missing, else `EINVAL`. */
export function issueError(i: Issue): CtxError {
  return new CtxError(i.kind === "missing" ? "ENOENT" : "EINVAL", formatIssue(i))
}

/** Throws the `EINVAL` of an invalid thing. */
export function refuse(what: string, why: string, at?: number): never {
  throw issueError(at === undefined ? { kind: "invalid", what, why } : { kind: "invalid", what, why, at })
}
