// Why a session is not to be taken away: the protection matrix of session-abi 13. Reads only.
import { closeSync } from "node:fs"
import { codeOf } from "../abi/error.js"
import { isObject, parseJson } from "../abi/json.js"
import { CONTROL_MAX, STATE_MAX } from "../abi/limit.js"
import { isPendingId } from "../abi/name.js"
import { SESSION_STATES } from "../abi/status.js"
import { parseTs } from "../abi/time.js"
import { listNames, openDirectory, readEntry } from "./entry.js"

/** The reasons, in the order in which they are looked for. */
export type Protection = "default" | "current" | "keep" | "active" | "unsafe-state" | "locked" | "pending"

/** What protects besides the session's own files. */
export interface Guard {
  /** `index/current`. */
  current: string | undefined
  keep: ReadonlySet<string>
  nowMs: number
}

/**
 * The first reason for which the session is protected, undefined when there is none. `dirFd` is its directory on the durable
 * tree, undefined when that cannot be opened; `isLocked` says whether anybody else holds the run lock. session-abi 13.
 */
export function findProtection(
  name: string,
  dirFd: number | undefined,
  guard: Guard,
  isLocked: () => boolean,
): Protection | undefined {
  if (name === "default") return "default"
  if (name === guard.current) return "current"
  if (guard.keep.has(name)) return "keep"
  if (dirFd === undefined) return "unsafe-state"
  const state = readWord(dirFd)
  if (state !== undefined) return state
  if (isLocked()) return "locked"
  return hasOpenQuestion(dirFd, guard.nowMs) ? "pending" : undefined
}

function readWord(dirFd: number): Protection | undefined {
  let text: string | undefined
  try {
    text = readEntry(dirFd, "state", STATE_MAX)?.toString("latin1")
  } catch {
    return "unsafe-state"
  }
  if (text === undefined) return undefined
  if (text === "active\n") return "active"
  return SESSION_STATES.some(word => text === `${word}\n`) ? undefined : "unsafe-state"
}

// What is not proven to have expired protects. A name with a dot in front is a file that was never finished.
function hasOpenQuestion(dirFd: number, nowMs: number): boolean {
  let pendingFd: number
  try {
    pendingFd = openDirectory("pending", dirFd)
  } catch (e) {
    return codeOf(e) !== "ENOENT"
  }
  try {
    return listNames(pendingFd).some(name => !name.startsWith(".") && !isExpired(pendingFd, name, nowMs))
  } finally {
    closeSync(pendingFd)
  }
}

function isExpired(pendingFd: number, name: string, nowMs: number): boolean {
  try {
    if (!name.endsWith(".json") || !isPendingId(name.slice(0, -".json".length))) return false
    const bytes = readEntry(pendingFd, name, CONTROL_MAX)
    if (bytes === undefined) return true
    const value = parseJson(bytes)
    return isObject(value) && parseTs(value.expires_at) <= nowMs
  } catch {
    return false
  }
}
