// What `ctx agent session list` shows (session-services 2, session-abi 8). Reads only.
import { closeSync, constants, openSync } from "node:fs"
import { codeOf } from "../abi/error.js"
import { type SessionState, showSessionState } from "../abi/status.js"
import { formatTs } from "../abi/time.js"
import { isRunLocked, openBacking } from "./backing.js"
import { openDirectory } from "./entry.js"
import { listDirectories, readCurrent, readList } from "./indices.js"
import { ORIGINS, originOf, readLineValue, readMeta } from "./meta.js"

/** A session as displayed. `updated` is a TS, absent when `updated_at` is missing or malformed. */
export interface ListedSession {
  isCurrent: boolean
  session: string
  group: string
  state: SessionState | "interrupted"
  updated?: string
  title: string
}

/** Groups of a listing, in its order. */
export const GROUPS: readonly string[] = [...ORIGINS, "other"]

/**
 * The sessions of a `session` directory in menu order: by group `cli chat dc tg temp other`, inside it the current one
 * first, then as in `index/list`. Sessions with an idle lifetime only with `all`. A missing directory gives none.
 * Errors: `EINVAL` malformed index; `EACCES`.
 */
export function listSessions(sessionsDir: string, options: { origin?: string; all?: boolean } = {}): ListedSession[] {
  let sessionsFd: number
  try {
    sessionsFd = openSync(sessionsDir, constants.O_RDONLY | constants.O_DIRECTORY)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return []
    throw e
  }
  try {
    const current = readCurrent(sessionsFd)
    const shown = readList(sessionsFd).flatMap(name => {
      const found = readSession(sessionsFd, name, name === current)
      if (found === undefined || (found.isIdle && options.all !== true)) return []
      return options.origin === undefined || found.listed.group === options.origin ? [found.listed] : []
    })
    // Array.prototype.sort is stable, so the order of the list stays inside each group.
    const rank = (s: ListedSession) => GROUPS.indexOf(s.group) * 2 + (s.isCurrent ? 0 : 1)
    return shown.sort((a, b) => rank(a) - rank(b))
  } finally {
    closeSync(sessionsFd)
  }
}

/** Names of every session directory, listed or not, in byte order. A missing directory gives none. Errors: `EACCES`. */
export function listSessionNames(sessionsDir: string): string[] {
  let sessionsFd: number
  try {
    sessionsFd = openSync(sessionsDir, constants.O_RDONLY | constants.O_DIRECTORY)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return []
    throw e
  }
  try {
    return listDirectories(sessionsFd).sort()
  } finally {
    closeSync(sessionsFd)
  }
}

function readSession(
  sessionsFd: number,
  name: string,
  isCurrent: boolean,
): { listed: ListedSession; isIdle: boolean } | undefined {
  let dirFd: number
  try {
    dirFd = openDirectory(name, sessionsFd)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return undefined
    throw e
  }
  try {
    const meta = readMeta(dirFd)
    const origin = typeof meta.origin === "string" && GROUPS.includes(meta.origin) ? meta.origin : originOf(name)
    const seconds = readLineValue(dirFd, "updated_at")
    const isTime = seconds !== undefined && /^[0-9]{1,11}$/.test(seconds)
    const listed: ListedSession = {
      isCurrent,
      session: name,
      group: origin ?? "other",
      state: showState(dirFd),
      updated: isTime ? formatTs(Number(seconds) * 1000) : undefined,
      title: typeof meta.title === "string" ? meta.title : "",
    }
    return { listed, isIdle: typeof meta.lifetime === "string" && meta.lifetime.startsWith("idle:") }
  } finally {
    closeSync(dirFd)
  }
}

/**
 * The state of an open session directory as displayed: an unknown word is `error`, a missing one `idle`, and `active` with
 * a free run lock `interrupted`. Where the lock cannot be seen `active` stays.
 */
export function showState(dirFd: number): SessionState | "interrupted" {
  const word = readLineValue(dirFd, "state")
  const state = word === undefined ? "idle" : showSessionState(word)
  if (state !== "active") return state
  const backingFd = openBacking(dirFd)
  if (backingFd === undefined) return state
  try {
    return isRunLocked(backingFd) ? state : "interrupted"
  } finally {
    closeSync(backingFd)
  }
}
