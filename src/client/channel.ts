// Delivery channels of child agents, `context/child/<child>/` of a session of the parent (agent-runtime 14.1).

import { closeSync, constants, fstatSync, openSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isName, isSessionName } from "../abi/name.js"
import { agentHomePath } from "../abi/path.js"
import { CHANNEL_STATUSES } from "../abi/status.js"
import { openDirectory } from "../session/entry.js"
import { listSessionNames } from "../session/listing.js"
import { readLineValue } from "../session/meta.js"
import { replaceFile } from "../store/file.js"
import { listNames, statAt } from "../store/walk.js"
import type { Places } from "./place.js"

/** A word of a channel's `status`. */
export type ChannelStatus = (typeof CHANNEL_STATUSES)[number]

/** One channel. `agent` does the work in its session `childSession`. */
export interface DeliveryChannel {
  session: string
  child: string
  status: ChannelStatus
  agent: string
  childSession: string
  /** absolute path of its directory */
  dir: string
}

/** Whether nothing was delivered yet. */
export function isOpen(channel: DeliveryChannel): boolean {
  return channel.status === "pending" || channel.status === "active"
}

function sessionsOf(places: Places, owner: number, agent: string): string {
  return `${agentHomePath(owner, agent, places.root)}/session`
}

/** Opens a directory below one that is there; undefined when it is missing. */
function findDirectory(parentFd: number, path: string): number | undefined {
  try {
    return openDirectory(path, parentFd)
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined
    throw error
  }
}

function parseChannel(dirFd: number, dir: string, session: string, child: string): DeliveryChannel {
  const refuse = (file: string) =>
    new CtxError("EINVAL", `${dir}/${file} is malformed`, { hint: "look at it with cat" })
  const [agent, childSession, word] = ["agent", "session", "status"].map(file => readLineValue(dirFd, file))
  if (!isName(agent)) throw refuse("agent")
  if (childSession === undefined || !isSessionName(childSession)) throw refuse("session")
  const status = CHANNEL_STATUSES.find(known => known === word)
  if (status === undefined) throw refuse("status")
  return { session, child, status, agent, childSession, dir }
}

/** A channel of a session directory that is open; undefined when there is none. */
function findAt(sessionsFd: number, dir: string, session: string, child: string): DeliveryChannel | undefined {
  const path = `${session}/context/child/${child}`
  const fd = findDirectory(sessionsFd, path)
  if (fd === undefined) return undefined
  try {
    return parseChannel(fd, `${dir}/${path}`, session, child)
  } finally {
    closeSync(fd)
  }
}

/** Names of channel directories, bytewise. */
function listChildren(childrenFd: number): string[] {
  const names = listNames(childrenFd).map(name => name.toString())
  return names.filter(name => isName(name) && statAt(childrenFd, name).isDirectory())
}

function withSessions<T>(dir: string, work: (sessionsFd: number) => T): T | undefined {
  let sessionsFd: number
  try {
    sessionsFd = openSync(dir, constants.O_RDONLY | constants.O_DIRECTORY)
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined
    throw error
  }
  try {
    return work(sessionsFd)
  } finally {
    closeSync(sessionsFd)
  }
}

/** The channel of a child in one session of its parent; undefined when there is none. Errors: EINVAL, EIO, EACCES. */
export function findChannel(
  places: Places,
  owner: number,
  parent: string,
  session: string,
  child: string,
): DeliveryChannel | undefined {
  const dir = sessionsOf(places, owner, parent)
  return withSessions(dir, sessionsFd => findAt(sessionsFd, dir, session, child))
}

/**
 * Every channel of an agent, by session then child. One that is malformed is given to `onFault` and left out.
 * Errors: EACCES.
 */
export function listChannels(
  places: Places,
  owner: number,
  agent: string,
  onFault: (error: unknown) => void,
): DeliveryChannel[] {
  const dir = sessionsOf(places, owner, agent)
  const channels: DeliveryChannel[] = []
  const sessions = listSessionNames(dir)
  withSessions(dir, sessionsFd => {
    for (const session of sessions) {
      const childrenFd = findDirectory(sessionsFd, `${session}/context/child`)
      if (childrenFd === undefined) continue
      try {
        for (const child of listChildren(childrenFd)) {
          try {
            const channel = findAt(sessionsFd, dir, session, child)
            if (channel !== undefined) channels.push(channel)
          } catch (error) {
            onFault(error)
          }
        }
      } finally {
        closeSync(childrenFd)
      }
    }
  })
  return channels
}

/**
 * Records that nothing will be delivered any more: `result.md`, then `status`, each in one step; a reader never sees the
 * new status with the old result. The files stay the owner's. Errors: EACCES, EROFS.
 */
export function cancelChannel(channel: DeliveryChannel): void {
  const fd = openSync(channel.dir, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW)
  try {
    const { uid, gid } = fstatSync(fd)
    const options = { mode: 0o600, uid, gid, isDurable: true }
    replaceFile(`/proc/self/fd/${fd}/./result.md`, `cancelled: ${channel.agent}`, options)
    replaceFile(`/proc/self/fd/${fd}/./status`, "cancelled\n", options)
  } finally {
    closeSync(fd)
  }
}
