// Events that a command adds to the history of a session nobody works in (agent-runtime 14.3).

import { closeSync, constants, fstatSync, openSync, readlinkSync } from "node:fs"
import { setTimeout as sleep } from "node:timers/promises"
import { CtxError } from "../abi/error.js"
import type { JsonObject } from "../abi/json.js"
import { RUN_LOCK_RETRY_MS } from "../abi/limit.js"
import { agentHomePath } from "../abi/path.js"
import { openBacking } from "../session/backing.js"
import { Sessions } from "../session/sessions.js"
import type { Places } from "./place.js"

const RETRY_MS = 20

/** The private sessions of an agent on the durable tree, which alone is locked. Errors: ENOENT, EHOSTDOWN where it is not seen. */
function openSessions(places: Places, owner: number, agent: string): Sessions {
  const path = `${agentHomePath(owner, agent, places.root)}/session`
  const fd = openSync(path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW)
  try {
    const backingFd = openBacking(fd)
    if (backingFd === undefined) {
      throw new CtxError("EHOSTDOWN", `${path} cannot be seen behind the mount`, {
        hint: "run it on the host, outside of any sandbox",
      })
    }
    try {
      const { uid, gid } = fstatSync(backingFd)
      return new Sessions({ dir: readlinkSync(`/proc/self/fd/${backingFd}`), scope: "private", uid, gid })
    } finally {
      closeSync(backingFd)
    }
  } finally {
    closeSync(fd)
  }
}

/**
 * Stores one event in a private session of an agent, durably, with the run lock held; a run that a killed process left is
 * settled first. A session that does not exist gets none. Errors: EBUSY (a run is recorded there), EIO, ENOSPC, EACCES.
 */
export async function recordEvent(
  places: Places,
  owner: number,
  agent: string,
  session: string,
  fields: JsonObject,
): Promise<void> {
  const sessions = openSessions(places, owner, agent)
  try {
    const found = sessions.find(session)
    if (found === undefined) return
    for (const end = Date.now() + RUN_LOCK_RETRY_MS; !found.tryLockRun(); await sleep(RETRY_MS)) {
      if (Date.now() > end) {
        throw new CtxError("EBUSY", `session ${session} of agent/${agent} is locked by another process`, {
          hint: `ctx agent cancel ${agent}`,
        })
      }
    }
    await found.open()
    await found.recordEvent(fields)
  } finally {
    sessions.close()
  }
}
