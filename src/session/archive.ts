// One transaction of a gc or an archive: up to GROUP_MAX sessions of one agent leave the live tree, each by one rename
// (session-abi 13).
import { type BigIntStats, closeSync } from "node:fs"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import { flock, RENAME_NOREPLACE } from "../native/sys.js"
import { randomHex } from "../store/file.js"
import { removeTree } from "../store/walk.js"
import { type Bound, type BoundKey, formatHidden, hideKey, showKey } from "./bound.js"
import { type Destination, findObstacle } from "./destination.js"
import { isSameEntry, openDirectory, removeEntry, replaceDurably, statFd } from "./entry.js"
import { moveEntry, syncEntry } from "./fault.js"
import { type Filter, isSelected } from "./filter.js"
import { readIndexList, readIndexName } from "./indices.js"
import type { Place } from "./place.js"
import { findProtection, type Protection } from "./protect.js"

/** Sessions of one transaction. */
export const GROUP_MAX = 256

/** What became of a session. `error` of a taken one is what went wrong after it was gone. */
export type Outcome =
  | { kind: "taken"; name: string; error?: CtxError }
  | { kind: "protected"; name: string; reason: Protection }
  | { kind: "failed"; name: string; error: CtxError }

/** What is to be taken, and where it goes; without `destination` it is deleted. */
export interface Rules {
  filter: Filter
  keep: ReadonlySet<string>
  destination: Destination | undefined
}

/** An agent's sessions on the durable tree, for a writer that holds the index lock of `indexFd`. */
export interface Shelf {
  place: Place
  sessionsFd: number
  indexFd: number
  bound: Bound
}

interface Held {
  name: string
  dirFd: number
  stat: BigIntStats
  hidden: BoundKey[]
  /** Where it went, below the archive or beside itself. */
  movedTo?: string
  error?: CtxError
}

/**
 * Takes those of the named sessions that are still there, selected, not protected and free. Their run locks are held to the
 * end; what a filter or the protection says is asked again under them. Killed in between, a session is live or gone, and
 * `restoreIndex` gives a live one its index entries back. Names that are gone or not selected any more have no outcome.
 * After the last step of the index `release` is called, so that nobody waits for the removal of deleted files.
 * Errors: `EINVAL` bad `list` or `current`; nothing was taken then.
 */
export async function takeGroup(
  shelf: Shelf,
  names: readonly string[],
  rules: Rules,
  release: () => void,
): Promise<Outcome[]> {
  const { sessionsFd, indexFd, bound } = shelf
  const outcomes: Outcome[] = []
  const held: Held[] = []
  let archiveFd: number | undefined
  try {
    bound.refresh()
    const listed = readIndexList(indexFd)
    const guard = { current: readIndexName(indexFd, "current"), keep: rules.keep, nowMs: Date.now() }
    for (const name of names) {
      const found = hold(sessionsFd, name, rules, guard)
      if (found === undefined) continue
      if ("kind" in found) outcomes.push(found)
      else held.push(found)
    }
    if (held.length > 0 && rules.destination !== undefined)
      archiveFd = await openArchive(shelf, held, rules.destination)
    for (const one of held.filter(isGoing)) attempt(one, () => hideKeys(one, sessionsFd, bound))
    await unlist(shelf, listed, held)
    for (const one of held.filter(isGoing)) attempt(one, () => move(sessionsFd, one, archiveFd))
    await syncParents(held, sessionsFd, archiveFd)
    await settle(shelf, listed, held)
    release()
    if (rules.destination === undefined) for (const one of held) removeMoved(sessionsFd, one)
    for (const { name, movedTo, error } of held) {
      if (movedTo !== undefined) outcomes.push({ kind: "taken", name, error })
      else outcomes.push({ kind: "failed", name, error: error ?? new CtxError("EIO", "it was not moved") })
    }
    return outcomes
  } finally {
    for (const { dirFd } of held) closeSync(dirFd)
    if (archiveFd !== undefined) closeSync(archiveFd)
  }
}

const isGoing = (one: Held): boolean => one.error === undefined

function attempt(one: Held, work: () => void): void {
  try {
    work()
  } catch (e) {
    one.error = toCtxError(e)
  }
}

function hold(
  sessionsFd: number,
  name: string,
  rules: Rules,
  guard: Parameters<typeof findProtection>[2],
): Held | Outcome | undefined {
  let dirFd: number
  try {
    dirFd = openDirectory(name, sessionsFd)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return undefined
    return { kind: "failed", name, error: toCtxError(e) }
  }
  let isHeld = false
  try {
    const reason = findProtection(name, dirFd, guard, () => !flock(dirFd, "ex"))
    const stat = statFd(dirFd)
    if (!isSameEntry(sessionsFd, name, stat) || !isSelected(rules.filter, dirFd, guard.nowMs)) return undefined
    if (reason !== undefined) return { kind: "protected", name, reason }
    isHeld = true
    return { name, dirFd, stat, hidden: [] }
  } catch (e) {
    return { kind: "failed", name, error: toCtxError(e) }
  } finally {
    if (!isHeld) closeSync(dirFd)
  }
}

// Where the archive cannot be had, none of them goes.
async function openArchive(shelf: Shelf, held: Held[], destination: Destination): Promise<number | undefined> {
  let archiveFd: number | undefined
  try {
    const probed = destination.probe()
    archiveFd = probed.fd
    for (const one of held) {
      const code = findObstacle(archiveFd, probed.dev, one.name, one.stat.dev)
      if (code !== undefined) one.error = new CtxError(code, "it cannot go there")
    }
    if (archiveFd === undefined && held.some(isGoing)) archiveFd = await destination.open(shelf.place)
  } catch (e) {
    for (const one of held) one.error ??= toCtxError(e)
  }
  return archiveFd
}

function hideKeys(one: Held, sessionsFd: number, bound: Bound): void {
  for (const key of bound.keysOf(one.name)) if (hideKey(key, one.stat)) one.hidden.push(key)
  if (!isSameEntry(sessionsFd, one.name, one.stat)) throw moved()
}

function moved(): CtxError {
  return new CtxError("ESTALE", "another directory took its place", { hint: "run it again" })
}

// Takes the going ones out of `list`; when that fails none goes.
async function unlist(shelf: Shelf, listed: string[] | undefined, held: Held[]): Promise<void> {
  const going = held.filter(isGoing)
  if (going.length === 0) return
  try {
    await writeList(shelf, listed, new Set(going.map(one => one.name)))
  } catch (e) {
    for (const one of going) one.error = toCtxError(e)
  }
}

// A `list` that is missing stays so: readers make it up.
async function writeList(shelf: Shelf, listed: string[] | undefined, gone: ReadonlySet<string>): Promise<void> {
  if (listed === undefined || !listed.some(name => gone.has(name))) return
  const body = listed.filter(name => !gone.has(name)).map(name => `${name}\n`)
  await replaceDurably(shelf.indexFd, "list", body.join(""), shelf.place)
}

// The commit point. A directory that is not the one held goes back where it came from.
function move(sessionsFd: number, one: Held, archiveFd: number | undefined): void {
  const { name, stat } = one
  if (!isSameEntry(sessionsFd, name, stat)) throw moved()
  const toFd = archiveFd ?? sessionsFd
  const to = archiveFd === undefined ? `.${name}.del-${randomHex(8)}` : name
  moveEntry(sessionsFd, name, toFd, to, RENAME_NOREPLACE)
  if (!isSameEntry(toFd, to, stat)) {
    moveEntry(toFd, to, sessionsFd, name, RENAME_NOREPLACE)
    throw moved()
  }
  one.movedTo = to
}

async function syncParents(held: Held[], sessionsFd: number, archiveFd: number | undefined): Promise<void> {
  if (held.every(one => one.movedTo === undefined)) return
  try {
    if (archiveFd !== undefined) await syncEntry(archiveFd)
    await syncEntry(sessionsFd)
  } catch (e) {
    const { code } = toCtxError(e)
    const facts = { hint: "look at the log of the disk", cause: e }
    for (const one of held) {
      if (one.movedTo !== undefined) one.error = new CtxError(code, "taken, but not known to be on the disk", facts)
    }
  }
}

// Index entries of what went are dropped, those of the rest come back. What fails here the next gc makes up for.
async function settle(shelf: Shelf, listed: string[] | undefined, held: Held[]): Promise<void> {
  for (const one of held) {
    for (const key of one.hidden) {
      const name = formatHidden(key.key, one.stat.ino)
      try {
        if (one.movedTo === undefined) showKey(key.dirFd, name, key.key)
        else removeEntry(key.dirFd, name)
      } catch (e) {
        one.error ??= toCtxError(e)
      }
    }
  }
  const gone = new Set(held.filter(one => one.movedTo !== undefined).map(one => one.name))
  const left = held.filter(one => one.movedTo === undefined)
  const now = readIndexList(shelf.indexFd)
  const isShort = listed !== undefined && left.some(one => listed.includes(one.name) && !now?.includes(one.name))
  if (isShort) {
    try {
      const body = listed.filter(name => !gone.has(name)).map(name => `${name}\n`)
      await replaceDurably(shelf.indexFd, "list", body.join(""), shelf.place)
    } catch (e) {
      for (const one of left) one.error ??= toCtxError(e)
    }
  }
  shelf.bound.settle()
}

function removeMoved(sessionsFd: number, one: Held): void {
  if (one.movedTo === undefined) return
  try {
    removeTree(sessionsFd, one.movedTo)
  } catch (e) {
    const { code } = toCtxError(e)
    const facts = { hint: "make it writable; the next gc --yes removes it", cause: e }
    one.error ??= new CtxError(code, `deleted, but ${one.movedTo} could not be removed`, facts)
  }
}
