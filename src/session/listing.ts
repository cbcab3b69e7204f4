// What `ctx agent session list` shows (session-services 2, session-abi 8). Reads only.
import { closeSync, constants, openSync } from "node:fs"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
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
 * first, then as in `index/list`. Sessions with an idle lifetime only with `all`. A missing directory gives none. A session
 * that cannot be read is told to `onFault`, if there is one, and shown by its name with the state `error`.
 * Errors: `EINVAL` malformed index; `EACCES`; without `onFault` `EIO`.
 */
export function listSessions(
  sessionsDir: string,
  options: { origin?: string; all?: boolean; onFault?: (error: unknown) => void } = {},
): ListedSession[] {
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
      const found = findSession(sessionsFd, name, name === current, options.onFault)
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

type Found = { listed: ListedSession; isIdle: boolean }

function findSession(
  sessionsFd: number,
  name: string,
  isCurrent: boolean,
  onFault: ((error: unknown) => void) | undefined,
): Found | undefined {
  try {
    return readSession(sessionsFd, name, isCurrent)
  } catch (e) {
    if (onFault === undefined) throw e
    const { code, message } = toCtxError(e)
    onFault(
      new CtxError(code, `session ${name} cannot be read: ${e instanceof CtxError ? message : code}`, { cause: e }),
    )
    const group = originOf(name) ?? "other"
    return { listed: { isCurrent, session: name, group, state: "error", title: "" }, isIdle: false }
  }
}

function readSession(sessionsFd: number, name: string, isCurrent: boolean): Found | undefined {
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
