// From the words AGENT, --session and --shared to a session directory under CTX_ROOT.

import { constants } from "node:fs"
import { open } from "node:fs/promises"
import { CtxError } from "../abi/error.js"
import { INDEX_FILE_MAX } from "../abi/limit.js"
import { isName, isSessionName } from "../abi/name.js"
import { sharedSessionsPath } from "../abi/path.js"
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

/** The `session` directory of an agent: the caller's own, or the one in a space. Errors: EINVAL. session-abi 5. */
export function agentSessionsDir(places: Places, agent: string, shared?: string): string {
  if (shared === undefined) return join(places.home, `agent/${agent}/session`)
  if (!isName(shared)) throw invalidName("space name", shared)
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

function invalidName(what: string, value: string): CtxError {
  return new CtxError("EINVAL", `bad ${what} ${value === "" ? '""' : value}`, { hint: "see ctx validate --help" })
}
