// What a killed creation, collection or import left beside the sessions, and how it goes away (session-abi 7, 13).
import { closeSync } from "node:fs"
import { codeOf } from "../abi/error.js"
import { isSessionName } from "../abi/name.js"
import { flock, fstatat } from "../native/sys.js"
import { removeTree } from "../store/walk.js"
import { parseHidden, readTarget, showKey } from "./bound.js"
import { listNames, openDirectory, removeEntry, replaceDurably } from "./entry.js"
import { isSession, mergeListed, orderByTime, readIndexList } from "./indices.js"
import type { Place } from "./place.js"

const RESIDUE = /^\.(.+)\.(?:gc|del|new|import)-[0-9A-Za-z]+$/

/**
 * Gives the live sessions back what a killed collection took from the index: their hidden keys, and their lines in `list`.
 * Hidden keys of sessions that are gone are removed. A `list` that lacks nothing is not written. `keyDirFds` are the open
 * directories of keys. Needs the index lock. Errors: `EINVAL` bad `list`; `ENOSPC` and other errno.
 */
export async function restoreIndex(
  sessionsFd: number,
  indexFd: number,
  keyDirFds: readonly number[],
  place: Place,
): Promise<void> {
  const listed = readIndexList(indexFd)
  for (const dirFd of keyDirFds) {
    for (const name of listNames(dirFd)) {
      const hidden = parseHidden(name)
      if (hidden === undefined) continue
      const session = readTarget(dirFd, name)
      if (session !== undefined && isLive(sessionsFd, session, hidden.ino)) showKey(dirFd, name, hidden.key)
      else removeEntry(dirFd, name)
    }
  }
  const names = listed === undefined ? orderByTime(sessionsFd) : mergeListed(sessionsFd, listed)
  if (names.length === (listed?.length ?? 0)) return
  const body = names.filter(name => isSession(sessionsFd, name)).map(name => `${name}\n`)
  await replaceDurably(indexFd, "list", body.join(""), place)
}

function isLive(sessionsFd: number, name: string, ino: bigint): boolean {
  return isSession(sessionsFd, name) && fstatat(sessionsFd, name).ino === ino
}

/**
 * Removes what stands half made or half removed in a `session` directory and nobody holds the run lock of. Nothing is told of
 * it; what cannot be removed is told to `onFault` and stays. session-abi 13
 */
export function removeResidue(sessionsFd: number, onFault: (name: string, error: unknown) => void): void {
  for (const name of listNames(sessionsFd)) {
    if (!isSessionName(RESIDUE.exec(name)?.[1])) continue
    try {
      removeFree(sessionsFd, name)
    } catch (e) {
      if (codeOf(e) !== "ENOENT") onFault(name, e)
    }
  }
}

function removeFree(sessionsFd: number, name: string): void {
  if ((fstatat(sessionsFd, name).mode & 0o170000) !== 0o040000) {
    removeEntry(sessionsFd, name)
    return
  }
  const dirFd = openDirectory(name, sessionsFd)
  try {
    if (flock(dirFd, "ex")) removeTree(sessionsFd, name)
  } finally {
    closeSync(dirFd)
  }
}
