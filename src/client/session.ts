// From the words AGENT, --session and --shared to a session directory under CTX_ROOT.

import { constants, lstatSync } from "node:fs"
import { open } from "node:fs/promises"
import { isErrnoName } from "../abi/errno.js"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import { INDEX_FILE_MAX } from "../abi/limit.js"
import { isName, isSessionName } from "../abi/name.js"
import { sharedPath, sharedSessionsPath } from "../abi/path.js"
import { join, type Places } from "./place.js"

/** A session as a command names it. `dir` is its directory, `sessionsDir` the one above, both absolute. */
export interface SessionPlace {
  agent: string
  session: string
  shared: string | undefined
  sessionsDir: string
  dir: string
}

/** AGENT of the command line: NAME or `agent/NAME`. Errors: EINVAL. Implements ctx-coreutils 2.3. */
export function parseAgent(word: string): string {
  const name = word.startsWith("agent/") ? word.slice("agent/".length) : word
  if (!isName(name)) throw invalidName("agent name", word)
  return name
}

/**
 * The `session` directory of an agent: the caller's own, or the one in a space. Errors: EINVAL, ENOENT for a space that
 * is not there. session-abi 5.
 */
export function agentSessionsDir(places: Places, agent: string, shared?: string): string {
  if (shared === undefined) return join(places.home, `agent/${agent}/session`)
  if (!isName(shared)) throw invalidName("space name", shared)
  if (lstatSync(sharedPath(shared, places.root), { throwIfNoEntry: false }) === undefined) {
    throw new CtxError("ENOENT", `space ${shared} does not exist`, { hint: "run ctx ls shared" })
  }
  return sharedSessionsPath(shared, agent, places.root)
}

/**
 * The session a command means: `--session`, else `index/current`, else `default`. A missing or empty `current` counts
 * as absent. Errors: EINVAL for a bad name or a bad body of `current`. Implements ctx-coreutils 2.3, session-abi 10.
 */
export async function resolveSession(
  places: Places,
  agent: string,
  flags: { session?: string; shared?: string },
): Promise<SessionPlace> {
  const sessionsDir = agentSessionsDir(places, agent, flags.shared)
  if (flags.session !== undefined && !isSessionName(flags.session)) throw invalidName("session name", flags.session)
  const session = flags.session ?? (await readCurrent(sessionsDir)) ?? "default"
  return { agent, session, shared: flags.shared, sessionsDir, dir: join(sessionsDir, session) }
}

/** The session named by `index/current` of a `session` directory, or undefined. Errors: EINVAL. session-abi 10. */
export async function readCurrent(sessionsDir: string): Promise<string | undefined> {
  const path = `${sessionsDir}/index/current`
  let bytes: Buffer
  try {
    const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
    try {
      const room = Buffer.alloc(INDEX_FILE_MAX + 1)
      const { bytesRead } = await file.read(room, 0, room.length, 0)
      bytes = room.subarray(0, bytesRead)
    } finally {
      await file.close()
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined
    throw error
  }
  if (bytes.length === 0) return undefined
  const text = bytes.toString("utf8")
  const name = text.slice(0, -1)
  if (bytes.length <= INDEX_FILE_MAX && text.endsWith("\n") && isSessionName(name)) return name
  throw new CtxError("EINVAL", `${path} names no session`, { path, hint: "name the session with --session" })
}

const HISTORY = ["messages.jsonl", "events.jsonl"]

/**
 * What a command that reads the files of a session throws for `error`: a history file that is missing is EIO, since
 * every session has both; the text names the session, the hint the command for this agent.
 */
export function explainSession(error: unknown, place: SessionPlace): unknown {
  const code = codeOf(error)
  if (!isErrnoName(code)) return error
  const { agent, session, shared } = place
  const of = shared === undefined ? "" : ` --shared ${shared}`
  const { message, path, syscall, hint } = toCtxError(error)
  const verify = `ctx agent session verify ${agent} ${session}${of}`
  if (code === "ENOENT") {
    if (path !== undefined && HISTORY.includes(path)) {
      return new CtxError("EIO", `session ${session}: ${path} is missing`, { path, hint: verify, cause: error })
    }
    return new CtxError("ENOENT", message, { path, hint: `ctx agent session list ${agent}${of}`, cause: error })
  }
  if (syscall === undefined) return new CtxError(code, message, { path, hint: hint ?? verify, cause: error })
  const hints = code === "EACCES" ? `act as the owner of agent/${agent}` : verify
  return new CtxError(code, `session ${session}: ${path ?? "a file"} cannot be read`, {
    path,
    hint: hints,
    cause: error,
  })
}

function invalidName(what: string, value: string): CtxError {
  return new CtxError("EINVAL", `bad ${what} ${value === "" ? '""' : value}`, { hint: "see ctx validate --help" })
}
