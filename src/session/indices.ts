// `session/index/`: list, current, by-cwd, by-hash, by-uuid (session-abi 10).
import { closeSync } from "node:fs"
import { setTimeout as pause } from "node:timers/promises"
import { CtxError, codeOf } from "../abi/error.js"
import { cwdKey } from "../abi/hash.js"
import { INDEX_FILE_MAX, INDEX_LIST_MAX } from "../abi/limit.js"
import { isSessionName } from "../abi/name.js"
import { flock, fstatat } from "../native/sys.js"
import { createDirectory, listNames, openDirectory, readEntry, replaceDurably, replaceEntry } from "./entry.js"
import { syncEntry } from "./fault.js"
import { type Made, noteMade } from "./layout.js"
import { readLineValue } from "./meta.js"
import type { Place } from "./place.js"
import { Turn } from "./turn.js"

/** What one process knows of an index: whose turn it is, and the updates that a held lock kept it from making, in order. */
interface Desk {
  turn: Turn
  missed: Map<string, { name: string; keys?: IndexKeys }>
}

const desks = new Map<string, Desk>()
const INDEX_WAIT_MS = 1000
const POLL_MS = 20

/** The directories of an index that hold one file for each external key. */
export const KEY_DIRS = ["by-cwd", "by-hash", "by-uuid"] as const

/** What a send binds to its session besides `list` and `current`. */
export interface IndexKeys {
  /** Null for model sessions: no `by-cwd`. */
  cwd: string | null
  hash?: string
  uuid?: string
}

/**
 * Makes `index/` and its three directories where they are missing. Returns what it made, outermost first.
 * Errors: `EIO` another kind of entry stands there, `ENOSPC`.
 */
export async function ensureIndex(sessionsFd: number, place: Place): Promise<Made[]> {
  const made: Made[] = []
  const indexFd = await ensureDirectory(sessionsFd, "index", place.dir, place, made)
  try {
    for (const name of KEY_DIRS) closeSync(await ensureDirectory(indexFd, name, `${place.dir}/index`, place, made))
    return made
  } finally {
    closeSync(indexFd)
  }
}

/** Opens a directory, making it durably when it is missing; what is made is added to `made`. Errors: `EIO`, `ENOSPC`. */
export async function ensureDirectory(
  dirFd: number,
  name: string,
  parent: string,
  place: Place,
  made: Made[],
): Promise<number> {
  try {
    return openDirectory(name, dirFd)
  } catch (e) {
    if (codeOf(e) !== "ENOENT") throw e
  }
  let fd: number
  try {
    fd = createDirectory(dirFd, name, place)
  } catch (e) {
    if (codeOf(e) === "EEXIST") return openDirectory(name, dirFd)
    throw e
  }
  made.push(noteMade(parent, name, fd))
  try {
    await syncEntry(dirFd)
    return fd
  } catch (e) {
    closeSync(fd)
    throw e
  }
}

/**
 * One name of an index file below an open index directory; undefined when missing. An empty file counts as missing unless
 * it lies under `by-hash` or `by-uuid`, which are written durably. Errors: `EINVAL` bad body; `EIO` link or special file.
 */
export function readIndexName(indexFd: number, path: string): string | undefined {
  const bytes = readBody(indexFd, path, INDEX_FILE_MAX)
  if (bytes === undefined) return undefined
  if (bytes.length === 0 && !path.startsWith("by-hash/") && !path.startsWith("by-uuid/")) return undefined
  const text = bytes.toString("latin1")
  const name = text.slice(0, -1)
  if (text.endsWith("\n") && isSessionName(name)) return name
  throw badIndex(path)
}

/** The names in `index/list`; undefined when missing or empty. Errors: `EINVAL`, `EIO`. */
export function readIndexList(indexFd: number): string[] | undefined {
  const bytes = readBody(indexFd, "list", INDEX_LIST_MAX)
  if (bytes === undefined || bytes.length === 0) return undefined
  const names = bytes.toString("latin1").split("\n")
  if (names.pop() === "" && names.every(isSessionName) && new Set(names).size === names.length) return names
  throw badIndex("list")
}

function readBody(indexFd: number, path: string, maxSize: number): Buffer | undefined {
  try {
    return readEntry(indexFd, path, maxSize)
  } catch (e) {
    if (codeOf(e) === "EFBIG") throw badIndex(path)
    throw e
  }
}

function badIndex(path: string): CtxError {
  return new CtxError("EINVAL", `index/${path} has a bad body`, { path, hint: "correct or remove it" })
}

/**
 * Checks every index file that a send of the session will read (6.3 step 4). Errors: `EINVAL` bad body, or an external
 * key that is bound to another session.
 */
export function checkIndex(sessionsFd: number, name: string, keys: IndexKeys): void {
  let indexFd: number
  try {
    indexFd = openDirectory("index", sessionsFd)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return
    throw e
  }
  try {
    readIndexList(indexFd)
    readIndexName(indexFd, "current")
    if (keys.cwd !== null) readIndexName(indexFd, `by-cwd/${cwdKey(keys.cwd)}`)
    for (const path of keyPaths(keys)) checkKey(sessionsFd, indexFd, path, name)
  } finally {
    closeSync(indexFd)
  }
}

function keyPaths(keys: IndexKeys): string[] {
  const paths: string[] = []
  if (keys.hash !== undefined) paths.push(`by-hash/${keys.hash}`)
  if (keys.uuid !== undefined) paths.push(`by-uuid/${keys.uuid}`)
  return paths
}

// True when the key is bound to this session already. An entry of a session that is gone binds nothing.
function checkKey(sessionsFd: number, indexFd: number, path: string, name: string): boolean {
  const bound = readIndexName(indexFd, path)
  if (bound === undefined || bound === name) return bound === name
  if (!isSession(sessionsFd, bound)) return false
  throw new CtxError("EINVAL", `${path.slice(3)} is bound to session ${bound}`, { hint: "use another key" })
}

/** True when a session directory of that name exists. */
export function isSession(sessionsFd: number, name: string): boolean {
  try {
    return (fstatat(sessionsFd, name).mode & 0o170000) === 0o040000
  } catch (e) {
    if (codeOf(e) === "ENOENT") return false
    throw e
  }
}

/** Names of all session directories of an open `session` directory, unsorted. */
export function listDirectories(sessionsFd: number): string[] {
  return listNames(sessionsFd).filter(name => isSessionName(name) && isSession(sessionsFd, name))
}

/** Session names as a writer would rebuild `list`: newest `updated_at` first, then by name. */
export function orderByTime(sessionsFd: number): string[] {
  const timed = listDirectories(sessionsFd).map(name => ({ name, seconds: readSeconds(sessionsFd, name) }))
  timed.sort((a, b) => b.seconds - a.seconds || (a.name < b.name ? -1 : 1))
  return timed.map(({ name }) => name)
}

function readSeconds(sessionsFd: number, name: string): number {
  try {
    const dirFd = openDirectory(name, sessionsFd)
    try {
      const text = readLineValue(dirFd, "updated_at")
      return text !== undefined && /^[0-9]{1,15}$/.test(text) ? Number(text) : 0
    } finally {
      closeSync(dirFd)
    }
  } catch {
    // A session that cannot be read is still listed; it comes last.
    return 0
  }
}

/** The listed names that have a session, in order; rebuilt in memory when `list` is missing. Errors: `EINVAL`, `EIO`. */
export function readList(sessionsFd: number): string[] {
  let indexFd: number
  try {
    indexFd = openDirectory("index", sessionsFd)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return orderByTime(sessionsFd)
    throw e
  }
  try {
    return readIndexList(indexFd)?.filter(name => isSession(sessionsFd, name)) ?? orderByTime(sessionsFd)
  } finally {
    closeSync(indexFd)
  }
}

/**
 * Moves the session to the head of `list`; with `keys` also writes `current`, `by-cwd`, `by-hash`, `by-uuid`. A file that
 * says so already is not written. Waits up to 1 s for the index lock, so the caller must not hold the history lock; when it
 * is still held then, the update is left to the next writer (session-abi 11). Errors: `EAGAIN` it is held and there is an
 * external key, which nobody could add later; `EINVAL` bad body or a key bound to another session, `EIO`, `ENOSPC`.
 */
export function updateIndex(sessionsFd: number, name: string, place: Place, keys?: IndexKeys): Promise<void> {
  const desk = desks.get(place.dir) ?? { turn: new Turn(), missed: new Map() }
  desks.set(place.dir, desk)
  const deadline = Date.now() + INDEX_WAIT_MS
  return desk.turn.take(() => updateLocked(sessionsFd, name, place, { desk, deadline, keys }))
}

async function updateLocked(
  sessionsFd: number,
  name: string,
  place: Place,
  { desk, deadline, keys }: { desk: Desk; deadline: number; keys: IndexKeys | undefined },
): Promise<void> {
  await ensureIndex(sessionsFd, place)
  const indexFd = openDirectory("index", sessionsFd)
  try {
    if (!(await lockIndex(indexFd, deadline))) {
      if (keys !== undefined && keyPaths(keys).length > 0) {
        throw new CtxError("EAGAIN", "index is locked by another program", { hint: "send again" })
      }
      noteMissed(desk, name, keys)
      return
    }
    await makeUp(sessionsFd, indexFd, place, desk)
    await applyUpdate(sessionsFd, indexFd, name, place, keys)
  } finally {
    closeSync(indexFd)
  }
}

/**
 * Takes the index lock on an open `index` directory; false when it is still held elsewhere at `deadline`, in ms.
 * Asked for again and again: a waiting thread of the pool could not be called back from a lock that is never released.
 */
export async function lockIndex(indexFd: number, deadline: number): Promise<boolean> {
  while (!flock(indexFd, "ex")) {
    if (Date.now() >= deadline) return false
    await pause(POLL_MS)
  }
  return true
}

// Of each session the latest beginning and the latest end; the latest of all comes last.
function noteMissed(desk: Desk, name: string, keys: IndexKeys | undefined): void {
  const key = keys === undefined ? `${name} end` : name
  desk.missed.delete(key)
  desk.missed.set(key, { name, keys: keys && { cwd: keys.cwd } })
}

// A bad body is refused by the send that needs that file; here it only loses what was to be written there.
async function makeUp(sessionsFd: number, indexFd: number, place: Place, desk: Desk): Promise<void> {
  for (const [key, { name, keys }] of desk.missed) {
    try {
      if (isSession(sessionsFd, name)) await applyUpdate(sessionsFd, indexFd, name, place, keys)
    } catch (e) {
      if (codeOf(e) !== "EINVAL") throw e
    }
    desk.missed.delete(key)
  }
}

async function applyUpdate(
  sessionsFd: number,
  indexFd: number,
  name: string,
  place: Place,
  keys: IndexKeys | undefined,
): Promise<void> {
  if (keys !== undefined) {
    // What can be refused comes first.
    const missing = keyPaths(keys).filter(path => !checkKey(sessionsFd, indexFd, path, name))
    const byCwd = keys.cwd === null ? undefined : `by-cwd/${cwdKey(keys.cwd)}`
    const isCwdBound = byCwd === undefined || readIndexName(indexFd, byCwd) === name
    const isCurrent = readIndexName(indexFd, "current") === name
    moveToHead(sessionsFd, indexFd, name, place)
    if (!isCurrent) replaceEntry(indexFd, "current", `${name}\n`, place)
    if (byCwd !== undefined && !isCwdBound) await writeKey(indexFd, byCwd, name, place, false)
    for (const path of missing) await writeKey(indexFd, path, name, place, true)
  } else {
    moveToHead(sessionsFd, indexFd, name, place)
  }
}

function moveToHead(sessionsFd: number, indexFd: number, name: string, place: Place): void {
  const listed = readIndexList(indexFd)
  if (listed?.[0] === name) return
  const others = mergeListed(sessionsFd, listed, name).filter(other => other !== name && isSession(sessionsFd, other))
  replaceEntry(indexFd, "list", `${[name, ...others].join("\n")}\n`, place)
}

/**
 * The listed names with those sessions that `list` lacks, each before the first listed one that is no newer; those that are
 * listed keep their order. The session `name`, if given, is left where it is. Without `listed` all are ordered by time.
 */
export function mergeListed(sessionsFd: number, listed: string[] | undefined, name?: string): string[] {
  if (listed === undefined) return orderByTime(sessionsFd)
  const known = new Set(listed)
  const merged = [...listed]
  const times = new Map<string, number>()
  const secondsOf = (one: string) => {
    const seconds = times.get(one) ?? readSeconds(sessionsFd, one)
    times.set(one, seconds)
    return seconds
  }
  for (const other of listDirectories(sessionsFd).sort()) {
    if (other === name || known.has(other) || !hasHistory(sessionsFd, other)) continue
    const at = merged.findIndex(one => secondsOf(one) <= secondsOf(other))
    merged.splice(at === -1 ? merged.length : at, 0, other)
  }
  return merged
}

function hasHistory(sessionsFd: number, name: string): boolean {
  try {
    return (fstatat(sessionsFd, `${name}/messages.jsonl`).mode & 0o170000) === 0o100000
  } catch {
    return false
  }
}

async function writeKey(indexFd: number, path: string, name: string, place: Place, isDurable: boolean): Promise<void> {
  const [dir, key] = path.split("/") as [string, string]
  const dirFd = openDirectory(dir, indexFd)
  try {
    if (isDurable) await replaceDurably(dirFd, key, `${name}\n`, place)
    else replaceEntry(dirFd, key, `${name}\n`, place)
  } finally {
    closeSync(dirFd)
  }
}

/** `index/current` of an open `session` directory; undefined when missing. Errors: `EINVAL`, `EIO`. */
export function readCurrent(sessionsFd: number): string | undefined {
  try {
    const indexFd = openDirectory("index", sessionsFd)
    try {
      return readIndexName(indexFd, "current")
    } finally {
      closeSync(indexFd)
    }
  } catch (e) {
    if (codeOf(e) === "ENOENT") return undefined
    throw e
  }
}
