// From any thrown value to the one error line, the JSON error and the exit code of ctx-coreutils 2.5 and 2.6.

import { stripVTControlCharacters } from "node:util"
import { exitCode } from "../abi/errno.js"
import { CtxError, toCtxError } from "../abi/error.js"
import { escapeText } from "./escape.js"
import { findNearest } from "./nearest.js"

/** A failure ready to print: code and exit by ctx-coreutils 2.6, `what` and `hint` unescaped, neither empty. */
export interface Failure {
  code: string
  what: string
  hint: string
  exit: number
}

/** What a failed command line was about: its words (`agent send`) and the flags it knows, for hints. */
export interface FailureContext {
  words?: string
  flags?: readonly string[]
}

const LINE_MAX = 1024

const HINTS: Readonly<Record<string, string>> = {
  ENOENT: "check the name; ctx ls shows those of the tree",
  EACCES: "act as its owner or ask for a policy rule",
  EPERM: "act as its owner",
  EINVAL: "correct the value",
  EMSGSIZE: "send a shorter text",
  EBUSY: "wait for the active run or end it",
  EHOSTDOWN: "systemctl status cortexfs.service",
  ECONNREFUSED: "start the service behind it",
  EIO: "see ctx agent session verify --help and the log of the service",
  EROFS: "change it on the host",
  ENOTDIR: "give the path of a directory",
  EISDIR: "ctx ls lists a directory",
  ELOOP: "give the path of the file itself, not of a link",
  ENOSYS: "see ctx --help for what this version has",
  ENOSPC: "free space on the file system of the data root",
  internal: "report it with the command line that led here",
  cancelled: "send again to run it anew",
  usage: "see ctx --help",
}

/**
 * Names the failure behind a thrown value: a CtxError as it is, errors of the argument parser as `usage`, a system
 * error by its errno, anything else as `internal`. Implements ctx-coreutils 2.5.
 */
export function describeFailure(error: unknown, context: FailureContext = {}): Failure {
  const usage = describeUsage(error, context)
  if (usage !== undefined) return usage
  const known = toCtxError(error)
  const what = (error instanceof CtxError ? known.message : systemText(known)).trim() || "it failed"
  const hint = known.hint?.trim() || HINTS[known.code] || `see ${commandHelp(context)}`
  return { code: known.code, what, hint, exit: exitCode(known.code) }
}

// A system error's message repeats code, call and path; the path alone says what it is about.
function systemText(error: CtxError): string {
  return error.path || error.message.replace(/^[A-Z0-9]+: /, "")
}

/** The line `ctx: CODE: what: hint` with LF: escaped, at most 1024 bytes, no trailing full stop. ctx-coreutils 2.5. */
export function formatFailure(failure: Failure, program = "ctx"): string {
  const head = `${program}: ${failure.code}: `
  const room = LINE_MAX - Buffer.byteLength(head) - 3
  const hint = cut(escapeText(withoutStop(failure.hint)), 256)
  const what = cut(escapeText(withoutStop(failure.what)), room - Buffer.byteLength(hint))
  return `${head}${what}: ${hint}\n`
}

/** The value `--json` adds on stdout for a failure: ctx-coreutils 2.5. Texts are escaped as in the line. */
export function failureJson(failure: Failure): object {
  const { code, exit } = failure
  return {
    error: { code, what: escapeText(withoutStop(failure.what)), hint: escapeText(withoutStop(failure.hint)), exit },
  }
}

/** An error of the command line itself: exit 2, hint the help of the command when none is given. ctx-coreutils 2.5. */
export function usageError(what: string, hint = ""): CtxError {
  return new CtxError("usage", what, hint === "" ? {} : { hint })
}

// Errors of the parser are recognised by what they carry, not by their text: its classes are not all exported.
interface ParserError {
  oclif?: unknown
  flags?: unknown
  args?: unknown
  message: string
}

function describeUsage(error: unknown, context: FailureContext): Failure | undefined {
  if (error instanceof CtxError) {
    if (error.code !== "usage") return undefined
    return {
      code: "usage",
      what: error.message,
      hint: error.hint || `see ${commandHelp(context)}`,
      exit: exitCode("usage"),
    }
  }
  if (!(error instanceof Error) || !("oclif" in error)) return undefined
  const parser = error as ParserError
  const failure = { code: "usage", hint: `see ${commandHelp(context)}`, exit: exitCode("usage") }
  if (Array.isArray(parser.flags)) {
    const flag = String(parser.flags[0]).replace(/=.*$/s, "")
    const known = (context.flags ?? []).map(name => `--${name}`)
    const nearest = findNearest(flag, known)
    return { ...failure, what: `unknown flag ${flag}`, hint: nearest === undefined ? failure.hint : `use ${nearest}` }
  }
  if (Array.isArray(parser.args)) {
    const first: unknown = parser.args[0]
    const isMissing = typeof first === "object" && first !== null
    const name = isMissing ? String((first as { name?: unknown }).name).toUpperCase() : String(first)
    return { ...failure, what: isMissing ? `argument ${name} is missing` : `unexpected argument ${name}` }
  }
  return { ...failure, what: parserText(parser.message) }
}

function parserText(message: string): string {
  const lines = stripVTControlCharacters(message)
    .split("\n")
    .map(line => line.trim())
    .filter(line => line !== "" && !line.startsWith("See more help") && !line.startsWith("The following error"))
  const text = lines
    .join(" ")
    .replace(/^Parsing (--\S+) /, "$1: ")
    .replace(/(--[a-z-]+)=true/g, "$1")
  return text === "" ? "bad command line" : (text[0] as string).toLowerCase() + text.slice(1)
}

function commandHelp(context: FailureContext): string {
  return context.words ? `ctx ${context.words} --help` : "ctx --help"
}

function withoutStop(text: string): string {
  const clean = text.trim().replace(/(?<!\.)\.$/, "")
  return clean === "" ? "-" : clean
}

function cut(text: string, sizeBytes: number): string {
  if (Buffer.byteLength(text) <= sizeBytes) return text
  const bytes = Buffer.from(text)
  let end = sizeBytes - 3
  while (end > 0 && ((bytes[end] as number) & 0xc0) === 0x80) end--
  return `${bytes.subarray(0, end).toString("utf8")}…`
}
