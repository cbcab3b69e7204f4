// A new session, made whole beside its place and shown by one rename (session-abi 6.3 step 6, 7).
import { closeSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { formatTs, parseTs } from "../abi/time.js"
import { flock, fstatat, RENAME_NOREPLACE, unlinkat } from "../native/sys.js"
import { randomHex } from "../store/file.js"
import { createDirectory, createPlain, isSameEntry, openDirectory, removeEntry, statFd } from "./entry.js"
import { renameEntry, syncEntry } from "./fault.js"
import { formatEvent } from "./format.js"
import { formatMeta, formatSeconds, originOf } from "./meta.js"
import { type Place, PRODUCT_CLIENT } from "./place.js"
import type { Creation } from "./session.js"

const STAGE_TRIES = 8

/**
 * Makes the session directory and returns its descriptor, which holds the run lock. Killed in between, there is no session
 * or a whole one, and at most a hidden `.<name>.new-<hex>`. Errors: `EEXIST` the name is taken; then and after any other
 * error nothing is left.
 */
export async function createSession(
  sessionsFd: number,
  name: string,
  place: Place,
  creation: Creation,
): Promise<number> {
  const ts = formatTs()
  const files = layoutOf(name, place, creation, ts)
  const { stage, dirFd } = createStage(sessionsFd, name, place)
  try {
    closeSync(createDirectory(dirFd, "context", place))
    await Promise.all(Object.entries(files).map(([file, data]) => createPlain(dirFd, file, data, place, true)))
    await syncEntry(dirFd)
    renameEntry(sessionsFd, stage, name, RENAME_NOREPLACE)
  } catch (e) {
    removeStage(sessionsFd, stage, dirFd, Object.keys(files))
    closeSync(dirFd)
    throw e
  }
  try {
    await syncEntry(sessionsFd)
    return dirFd
  } catch (e) {
    closeSync(dirFd)
    throw e
  }
}

// The lock is taken before anything is put in: a gc takes a stage that nobody holds for what a killed creation left, and one
// that comes between these two calls is given way to.
function createStage(sessionsFd: number, name: string, place: Place): { stage: string; dirFd: number } {
  for (let tries = 1; ; tries++) {
    const stage = `.${name}.new-${randomHex(8)}`
    let dirFd: number | undefined
    try {
      dirFd = createDirectory(sessionsFd, stage, place)
      if (flock(dirFd, "ex") && isSameEntry(sessionsFd, stage, statFd(dirFd))) return { stage, dirFd }
    } catch (e) {
      if (codeOf(e) !== "ENOENT" || tries === STAGE_TRIES) {
        if (dirFd !== undefined) closeSync(dirFd)
        throw e
      }
    }
    if (dirFd !== undefined) closeSync(dirFd)
    if (tries === STAGE_TRIES) throw new CtxError("EIO", `${stage} is taken away again and again`)
  }
}

function layoutOf(name: string, place: Place, creation: Creation, ts: string): Record<string, string> {
  const created = { type: "session_created", session: name, scope: place.scope, origin: originOf(name), uid: place.uid }
  const { model, title } = creation
  return {
    "messages.jsonl": "",
    "events.jsonl": formatEvent(1, ts, created).line,
    "latest.md": "",
    state: "idle\n",
    cwd: `${creation.cwd ?? "/"}\n`,
    created_at: formatSeconds(parseTs(ts)),
    updated_at: formatSeconds(parseTs(ts)),
    "meta.json": formatMeta(name, place, { client: PRODUCT_CLIENT, model, title }),
  }
}

function removeStage(sessionsFd: number, stage: string, dirFd: number, files: string[]): void {
  try {
    for (const file of files) removeEntry(dirFd, file)
    unlinkat(dirFd, "context", { dir: true })
  } catch {
    // The error that led here is the one to report; what stays is hidden residue.
  }
  removeDirectory(sessionsFd, stage)
}

/** A directory that this process made: where and which inode. */
export interface Made {
  parent: string
  name: string
  ino: bigint
  dev: bigint
}

/** Notes a directory just made. */
export function noteMade(parent: string, name: string, fd: number): Made {
  const { ino, dev } = fstatat(fd, "")
  return { parent, name, ino, dev }
}

/** Removes directories that this process made, innermost first, as long as each is empty and still the same inode. */
export function removeMade(made: readonly Made[]): void {
  for (const { parent, name, ino, dev } of [...made].reverse()) {
    try {
      const parentFd = openDirectory(parent)
      try {
        const now = fstatat(parentFd, name)
        if (now.ino === ino && now.dev === dev) unlinkat(parentFd, name, { dir: true })
      } finally {
        closeSync(parentFd)
      }
    } catch {
      // Not empty or gone: it is somebody else's now.
    }
  }
}

function removeDirectory(dirFd: number, name: string): void {
  try {
    unlinkat(dirFd, name, { dir: true })
  } catch (e) {
    if (codeOf(e) !== "ENOENT" && codeOf(e) !== "ENOTEMPTY") throw e
  }
}
