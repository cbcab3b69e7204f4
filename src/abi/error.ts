// The one error class of the project.
import { ERRNO, ERROR_WORDS, type ErrorCode, errnoName, isErrnoName } from "./errno.js"

/** Facts about an error besides its code and text. */
export interface ErrorFacts {
  path?: string
  syscall?: string
  hint?: string
  cause?: unknown
}

/**
 * What every part of CortexFS throws: `code` is an errno name or one of the words of `ctx-coreutils.md` 2.5, `errno` the negative
 * Linux number as Node.js has it (0 for a word), `syscall` and `path` as in Node.js's errors, `hint` what to do next.
 * Code tests `code`, never the text (`naming.md` 4).
 */
export class CtxError extends Error {
  readonly code: ErrorCode
  readonly errno: number
  readonly syscall?: string
  readonly path?: string
  readonly hint?: string

  constructor(code: ErrorCode, message: string, more: ErrorFacts = {}) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause })
    this.name = "CtxError"
    this.code = code
    this.errno = isErrnoName(code) ? -ERRNO[code] : 0
    if (more.syscall !== undefined) this.syscall = more.syscall
    if (more.path !== undefined) this.path = more.path
    if (more.hint !== undefined) this.hint = more.hint
  }
}

function fact(e: object, key: string): unknown {
  return (e as Record<string, unknown>)[key]
}

/**
 * The code of a `CtxError`, or the errno name of an error of Node.js or of the addon; `undefined` for anything else.
 * Where Node.js knows no name for a number (`EHOSTDOWN`), the number in `errno` decides.
 */
export function codeOf(e: unknown): string | undefined {
  if (typeof e !== "object" || e === null) return undefined
  const code = fact(e, "code")
  if (e instanceof CtxError || isErrnoName(code)) return code as string
  const errno = fact(e, "errno")
  if (typeof errno === "number") {
    const name = errnoName(errno)
    if (name !== undefined) return name
  }
  return typeof code === "string" ? code : undefined
}

/**
 * Any thrown value as a `CtxError`: itself, an error with an errno with the same facts, and everything else as `internal`
 * with the value as `cause`.
 */
export function toCtxError(e: unknown): CtxError {
  if (e instanceof CtxError) return e
  const code = codeOf(e)
  const text = e instanceof Error ? e.message : String(e)
  if (!isErrnoName(code) && !(ERROR_WORDS as readonly string[]).includes(code ?? "")) {
    return new CtxError("internal", text === "" ? "a value without text was thrown" : text, { cause: e })
  }
  const more: ErrorFacts = { cause: e }
  for (const key of ["syscall", "path", "hint"] as const) {
    const value = fact(e as object, key)
    if (typeof value === "string") more[key] = value
  }
  // Errors of Node.js begin their text with the code, which every line of ours names apart.
  return new CtxError(code as ErrorCode, text.replace(/^[A-Z][A-Z0-9]*: /, ""), more)
}
