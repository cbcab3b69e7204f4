// `ctx agent session gc` and `archive`: which sessions of a home go, in what order, and what is told of each (session-abi 13).
import { closeSync } from "node:fs"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import { isName } from "../abi/name.js"
import { GROUP_MAX, type Outcome, type Rules, type Shelf, takeGroup } from "./archive.js"
import { isRunLocked } from "./backing.js"
import { Bound } from "./bound.js"
import { Destination, explainFailure, findObstacle } from "./destination.js"
import { listNames, openDirectory, statFd } from "./entry.js"
import { type Filter, isAboutFiles, isNameSelected, isSelected } from "./filter.js"
import { ensureIndex, listDirectories, lockIndex, readCurrent, readIndexList } from "./indices.js"
import type { Place } from "./place.js"
import { findProtection } from "./protect.js"
import { removeResidue, restoreIndex } from "./residue.js"

const INDEX_WAIT_MS = 30_000

/** A home whose sessions are collected: its directory on the durable tree, and its path as a person sees it. */
export interface Home {
  fd: number
  path: string
}

/** What a gc takes, and where it puts it. */
export interface GcRequest {
  filter: Filter
  keep: readonly string[]
  isDelete: boolean
  /** Clean absolute path; `archived_sessions` of the home without it. */
  archiveDir?: string
}

/** One line of a gc. `detail` is a path, an errno or a reason; `error` is to be told besides. */
export interface GcRow {
  verb: "would-archive" | "would-delete" | "would-fail" | "archived" | "deleted" | "failed" | "protected"
  session: string
  detail: string | undefined
  error?: CtxError
}

/** Agents that have a `session` directory in the home, in byte order. Errors: `EACCES`, `EIO`. */
export function listCollectable(homeFd: number): string[] {
  const agentFd = findDirectory("agent", homeFd)
  if (agentFd === undefined) return []
  try {
    return listNames(agentFd)
      .filter(name => isName(name) && hasSessions(agentFd, name))
      .sort()
  } finally {
    closeSync(agentFd)
  }
}

function hasSessions(agentFd: number, name: string): boolean {
  try {
    closeSync(openDirectory(`${name}/session`, agentFd))
    return true
  } catch (e) {
    const code = codeOf(e)
    if (code === "ENOENT" || code === "EIO") return false
    throw e
  }
}

function findDirectory(path: string, parentFd: number): number | undefined {
  try {
    return openDirectory(path, parentFd)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return undefined
    throw e
  }
}

/**
 * What a gc of one agent would do, in byte order of the sessions. Changes nothing.
 * Errors: `EINVAL` bad `list` or `current`; `EACCES`, `EIO`.
 */
export function previewGc(home: Home, agent: string, request: GcRequest): GcRow[] {
  const sessionsFd = findDirectory(`agent/${agent}/session`, home.fd)
  if (sessionsFd === undefined) return []
  try {
    checkList(sessionsFd)
    const rules = rulesOf(home, agent, request)
    return foresee(plan(sessionsFd, rules), rules)
  } finally {
    closeSync(sessionsFd)
  }
}

/**
 * Collects the sessions of one agent: first what an earlier one left is put right, then at most GROUP_MAX sessions are taken at
 * a time. Yields the lines of each group after its transaction. Residue that cannot be removed is told to `onFault`.
 * Errors: as `previewGc`; `EAGAIN` another program keeps the index lock; `ENOSPC`.
 */
export async function* applyGc(
  home: Home,
  agent: string,
  request: GcRequest,
  onFault: (error: CtxError) => void,
): AsyncGenerator<GcRow[]> {
  const sessionsFd = findDirectory(`agent/${agent}/session`, home.fd)
  if (sessionsFd === undefined) return
  const desk = new Desk(home, agent, sessionsFd)
  try {
    await desk.restore()
    removeResidue(sessionsFd, (name, error) => {
      const { code } = toCtxError(error)
      const hint = "make it writable by its owner, then run it again"
      onFault(new CtxError(code, `agent/${agent}: residue ${name} cannot be removed`, { hint, cause: error }))
    })
    const rules = rulesOf(home, agent, request)
    const planned = plan(sessionsFd, rules)
    for (let at = 0; at < planned.length; ) {
      const end = endOfGroup(planned, at)
      const group = planned.slice(at, end)
      const names = group.filter(one => one.reason === undefined).map(one => one.name)
      const outcomes = names.length === 0 ? [] : await desk.take(names, rules)
      const told = new Map(outcomes.map(outcome => [outcome.name, outcome]))
      yield group.flatMap(({ name, reason }) => {
        if (reason !== undefined) return [{ verb: "protected", session: name, detail: reason } as GcRow]
        const outcome = told.get(name)
        return outcome === undefined ? [] : [tell(outcome, agent, rules)]
      })
      at = end
    }
  } finally {
    desk.close()
  }
}

/**
 * Archives one session at once. Returns where it lies now. Errors: `EBUSY` it is protected; `ENOENT` there is none; `EEXIST`
 * the destination is taken; `EXDEV` it lies on another file system; and those of `applyGc`. The session is in place then.
 */
export async function archiveSession(
  home: Home,
  agent: string,
  session: string,
  archiveDir: string | undefined,
): Promise<string> {
  const missing = new CtxError("ENOENT", `agent/${agent}: session ${session} does not exist`, {
    hint: `ctx agent session list ${agent} --all`,
  })
  const sessionsFd = findDirectory(`agent/${agent}/session`, home.fd)
  if (sessionsFd === undefined) throw missing
  const desk = new Desk(home, agent, sessionsFd)
  try {
    if (!listDirectories(sessionsFd).includes(session)) throw missing
    const rules = rulesOf(home, agent, { filter: {}, keep: [], isDelete: false, archiveDir })
    await desk.restore()
    const [outcome] = await desk.take([session], rules)
    if (outcome === undefined) throw missing
    if (outcome.kind === "protected") {
      throw new CtxError("EBUSY", `agent/${agent}: session ${session} is protected: ${outcome.reason}`, {
        hint: PROTECTED_HINTS[outcome.reason],
      })
    }
    const row = tell(outcome, agent, rules)
    if (row.error !== undefined) throw row.error
    return row.detail as string
  } finally {
    desk.close()
  }
}

const PROTECTED_HINTS = {
  default: "the session default always stays; archive another one",
  current: "make another session the current one",
  keep: "take --keep away",
  active: "end its run with ctx agent cancel, or send again when its runtime died",
  "unsafe-state": "look at its file state with cat",
  locked: "wait for the active run or end it",
  pending: "answer its question or wait until that expires",
}

/** The index lock of one agent, taken for each transaction, and what is kept between two of them. */
class Desk {
  readonly #home: Home
  readonly #agent: string
  readonly #sessionsFd: number
  readonly #place: Place
  #bound: Bound | undefined

  /** Takes `sessionsFd` over. */
  constructor(home: Home, agent: string, sessionsFd: number) {
    this.#home = home
    this.#agent = agent
    this.#sessionsFd = sessionsFd
    const { uid, gid } = statFd(sessionsFd)
    const dir = `${home.path}/agent/${agent}/session`
    this.#place = { dir, scope: "private", uid: Number(uid), gid: Number(gid) }
  }

  /** Puts right what an earlier collection left; where there is no index there is nothing. */
  async restore(): Promise<void> {
    const indexFd = findDirectory("index", this.#sessionsFd)
    if (indexFd === undefined) return
    closeSync(indexFd)
    await this.#locked(({ sessionsFd, indexFd, bound, place }) =>
      restoreIndex(sessionsFd, indexFd, bound.dirFds, place),
    )
  }

  take(names: readonly string[], rules: Rules): Promise<Outcome[]> {
    return this.#locked((shelf, release) => takeGroup(shelf, names, rules, release))
  }

  close(): void {
    this.#bound?.close()
    closeSync(this.#sessionsFd)
  }

  async #locked<T>(work: (shelf: Shelf, release: () => void) => Promise<T>): Promise<T> {
    const [sessionsFd, place] = [this.#sessionsFd, this.#place]
    await ensureIndex(sessionsFd, place)
    const indexFd = openDirectory("index", sessionsFd)
    let isOpen = true
    const release = () => {
      if (isOpen) closeSync(indexFd)
      isOpen = false
    }
    try {
      if (!(await lockIndex(indexFd, Date.now() + INDEX_WAIT_MS))) {
        throw new CtxError("EAGAIN", `agent/${this.#agent}: the index of ${this.#home.path} is locked`, {
          hint: "another gc may be at work: run it again",
        })
      }
      this.#bound ??= new Bound(indexFd)
      return await work({ place, sessionsFd, indexFd, bound: this.#bound }, release)
    } finally {
      release()
    }
  }
}

interface Planned {
  name: string
  dev: bigint
  reason: string | undefined
}

function rulesOf(home: Home, agent: string, request: GcRequest): Rules {
  const { filter, isDelete, archiveDir } = request
  const destination =
    archiveDir === undefined ? Destination.inHome(home.fd, home.path, agent) : Destination.in(archiveDir, agent)
  return { filter, keep: new Set(request.keep), destination: isDelete ? undefined : destination }
}

function checkList(sessionsFd: number): void {
  const indexFd = findDirectory("index", sessionsFd)
  if (indexFd === undefined) return
  try {
    readIndexList(indexFd)
  } finally {
    closeSync(indexFd)
  }
}

// The selected sessions in byte order, with the reason of those that are protected.
function plan(sessionsFd: number, { filter, keep }: Rules): Planned[] {
  const guard = { current: readCurrent(sessionsFd), keep, nowMs: Date.now() }
  const names = listDirectories(sessionsFd).filter(name => isNameSelected(filter, name))
  return names.sort().flatMap(name => {
    let dirFd: number | undefined
    try {
      dirFd = openDirectory(name, sessionsFd)
    } catch (e) {
      if (codeOf(e) === "ENOENT" || isAboutFiles(filter)) return []
      const reason = findProtection(name, undefined, guard, () => false)
      return [{ name, dev: statFd(sessionsFd).dev, reason }]
    }
    try {
      const fd = dirFd
      if (!isSelected(filter, fd, guard.nowMs)) return []
      return [{ name, dev: statFd(fd).dev, reason: findProtection(name, fd, guard, () => isRunLocked(fd)) }]
    } finally {
      closeSync(dirFd)
    }
  })
}

function foresee(planned: readonly Planned[], { destination }: Rules): GcRow[] {
  const archive = destination === undefined ? undefined : probe(destination)
  try {
    return planned.map(({ name, dev, reason }) => {
      if (reason !== undefined) return { verb: "protected", session: name, detail: reason }
      if (archive === undefined) return { verb: "would-delete", session: name, detail: undefined }
      const code = archive.code ?? findObstacle(archive.fd, archive.dev, name, dev)
      if (code !== undefined) return { verb: "would-fail", session: name, detail: code }
      return { verb: "would-archive", session: name, detail: `${destination?.path}/${name}` }
    })
  } finally {
    if (archive?.fd !== undefined) closeSync(archive.fd)
  }
}

function probe(destination: Destination): { fd: number | undefined; dev: bigint; code?: string } {
  try {
    return destination.probe()
  } catch (e) {
    return { fd: undefined, dev: 0n, code: codeOf(e) ?? "internal" }
  }
}

function endOfGroup(planned: readonly Planned[], begin: number): number {
  let going = 0
  for (let at = begin; at < planned.length; at++) {
    if (planned[at]?.reason !== undefined) continue
    if (going === GROUP_MAX) return at
    going++
  }
  return planned.length
}

function tell(outcome: Outcome, agent: string, rules: Rules): GcRow {
  const session = outcome.name
  if (outcome.kind === "protected") return { verb: "protected", session, detail: outcome.reason }
  const path = rules.destination && `${rules.destination.path}/${session}`
  const error = outcome.error && explainFailure(outcome.error, agent, session, path)
  if (outcome.kind === "failed") return { verb: "failed", session, detail: error?.code, error }
  return { verb: rules.destination === undefined ? "deleted" : "archived", session, detail: path, error }
}
