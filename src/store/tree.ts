import { closeSync, constants, fchmodSync, fchownSync, fstatSync, openSync, readdirSync } from "node:fs"
import { dirname } from "node:path"
import { CtxError, codeOf } from "../abi/error.js"
import {
  fchownat,
  fstatat,
  mkdirat,
  O_PATH,
  openat2,
  RESOLVE_NO_XDEV,
  readlinkat,
  renameat2,
  symlinkat,
  unlinkat,
} from "../native/sys.js"
import type { Identity } from "./account.js"
import { RESOLVE_STRICT, readFileNofollow, writeAll } from "./file.js"

const { O_RDONLY, O_WRONLY, O_CREAT, O_EXCL, O_DIRECTORY, O_NOFOLLOW } = constants
const FILE_MAX = 16 * 1024 * 1024
const S_IFMT = 0o170000
/** Name of what is being made beside its place. One writer at a time, so one name a directory is enough. */
const TEMP = ".cortexfs-bootstrap"

/** A node to be made: a file with its bytes, a directory, or a symbolic link. Modes are exact. */
export type Entry =
  | { kind: "file"; data: Buffer; mode: number; uid: number; gid: number }
  | { kind: "dir"; mode: number; uid: number; gid: number }
  | { kind: "link"; target: string; uid: number; gid: number }

/** A node that is there; `other` is a FIFO or a device. */
export interface Found {
  kind: "file" | "dir" | "link" | "socket" | "other"
  /** permission and set-id bits */
  mode: number
  uid: number
  gid: number
}

/** Facts of the installation that a tree is made for. */
export interface Setting {
  /** owner of fixed nodes: 0:0, or the user of a per-user installation */
  uid: number
  gid: number
  /** 0755, in a per-user installation 0700 */
  dirMode: number
  /** directory that holds the programs which executables name in their first line */
  libRoot: string
  /** whose the managed agents are that are made new. Errors: `EINVAL` when nobody says it (rolling-upgrades.md 6.1) */
  newOwner(): Identity
}

/**
 * A handle on one reference tree. Paths are relative, without `.` and `..`, resolved below the tree without following a
 * link or leaving its file system. This is all that a migration sees (rolling-upgrades.md 6 rule 2).
 */
export interface Tree {
  readonly setting: Setting
  /** `undefined` when nothing is there. Errors: `EINVAL` when a parent is no directory. */
  find(path: string): Found | undefined
  /** Bytes of a regular file. Errors: `ENOENT`, `EINVAL` for any other kind, `EFBIG` above 16 MiB. */
  read(path: string): Buffer
  /** Text of a link. Errors: `ENOENT`, `EINVAL` when it is none. */
  readLink(path: string): string
  /** Names in a directory, bytewise. Errors: `ENOENT`, `EINVAL` when it is none. */
  list(path: string): string[]
  /** Makes or replaces a node in one step; the parent must be there. A directory is only made, never replaced. */
  put(path: string, entry: Entry): void
  /** Removes a file, a link or an empty directory. */
  remove(path: string): void
}

/** One planned change: `ensure` makes what is missing, `write` is the state file, `keep` leaves a person's own content. */
export interface Change {
  action: "apply" | "change" | "keep" | "ensure" | "remove" | "write"
  path: string
  entry?: Entry
}

/** Makes exactly these changes. Errors: errno of the first that fails; later ones are not made. */
export function applyChanges(tree: Tree, changes: Change[]): void {
  for (const change of changes) {
    if (change.action === "remove") tree.remove(change.path)
    else if (change.entry) tree.put(change.path, change.entry)
  }
}

/** Bytewise order of names. */
export function compareBytes(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b))
}

function kindOf(mode: number): Found["kind"] {
  switch (mode & S_IFMT) {
    case 0o100000:
      return "file"
    case 0o040000:
      return "dir"
    case 0o120000:
      return "link"
    case 0o140000:
      return "socket"
    default:
      return "other"
  }
}

/** The tree below an open directory. The descriptor stays the caller's; `O_PATH` is enough for reading. */
export class DiskTree implements Tree {
  constructor(
    readonly dirFd: number,
    readonly setting: Setting,
  ) {}

  #openDir(path: string, access: number): number {
    const flags = access | O_DIRECTORY | O_NOFOLLOW
    return openat2(this.dirFd, path === "" ? "." : path, flags, 0, RESOLVE_STRICT | RESOLVE_NO_XDEV)
  }

  /** Runs `use` with the parent directory of `path` and its last name. */
  #at<T>(path: string, use: (parentFd: number, name: string) => T): T {
    const parent = dirname(path)
    // O_PATH: a name can be looked up where the directory may not be listed, as in a generation by an ordinary user.
    const parentFd = this.#openDir(parent === "." ? "" : parent, O_PATH)
    try {
      return use(parentFd, path.slice(parent === "." ? 0 : parent.length + 1))
    } finally {
      closeSync(parentFd)
    }
  }

  find(path: string): Found | undefined {
    try {
      return this.#at(path, (parentFd, name) => {
        const stat = fstatat(parentFd, name)
        return { kind: kindOf(stat.mode), mode: stat.mode & 0o7777, uid: stat.uid, gid: stat.gid }
      })
    } catch (error) {
      if (codeOf(error) === "ENOENT") return undefined
      throw refuseParent(error, path)
    }
  }

  read(path: string): Buffer {
    try {
      return readFileNofollow({ dirFd: this.dirFd, name: path }, FILE_MAX)
    } catch (error) {
      if (["ELOOP", "EISDIR", "ENOTDIR"].includes(codeOf(error) ?? "")) throw notA(path, "regular file")
      throw error
    }
  }

  readLink(path: string): string {
    try {
      return this.#at(path, (parentFd, name) => readlinkat(parentFd, name).toString())
    } catch (error) {
      if (codeOf(error) === "EINVAL") throw notA(path, "symbolic link")
      throw error
    }
  }

  list(path: string): string[] {
    let fd: number
    try {
      fd = this.#openDir(path, O_RDONLY)
    } catch (error) {
      if (["ELOOP", "ENOTDIR"].includes(codeOf(error) ?? "")) throw notA(path, "directory")
      throw error
    }
    try {
      return readdirSync(`/proc/self/fd/${fd}`).sort(compareBytes)
    } finally {
      closeSync(fd)
    }
  }

  put(path: string, entry: Entry): void {
    this.#at(path, (parentFd, name) => {
      clearTemp(parentFd)
      stageEntry(parentFd, entry)
      // A directory has its owner and mode before it has its name; killed in between, only the temporary is left.
      renameat2(parentFd, TEMP, parentFd, name, entry.kind === "dir" ? 1 : 0)
    })
  }

  remove(path: string): void {
    const dir = this.find(path)?.kind === "dir"
    this.#at(path, (parentFd, name) => unlinkat(parentFd, name, { dir }))
  }
}

/** Takes away what a killed writer left under the temporary name. */
function clearTemp(parentFd: number): void {
  let dir: boolean
  try {
    dir = kindOf(fstatat(parentFd, TEMP).mode) === "dir"
  } catch (error) {
    if (codeOf(error) === "ENOENT") return
    throw error
  }
  unlinkat(parentFd, TEMP, { dir })
}

function stageEntry(parentFd: number, entry: Entry): void {
  if (entry.kind === "link") {
    symlinkat(entry.target, parentFd, TEMP)
    const now = fstatat(parentFd, TEMP)
    if (now.uid !== entry.uid || now.gid !== entry.gid) fchownat(parentFd, TEMP, entry.uid, entry.gid)
    return
  }
  if (entry.kind === "dir") mkdirat(parentFd, TEMP, 0o700)
  const fd =
    entry.kind === "dir"
      ? openSync(`/proc/self/fd/${parentFd}/${TEMP}`, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
      : openSync(`/proc/self/fd/${parentFd}/${TEMP}`, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
  try {
    if (entry.kind === "file") writeAll(fd, entry.data)
    const now = fstatSync(fd)
    if (now.uid !== entry.uid || now.gid !== entry.gid) fchownSync(fd, entry.uid, entry.gid)
    fchmodSync(fd, entry.mode)
  } finally {
    closeSync(fd)
  }
}

function notA(path: string, kind: string): CtxError {
  return new CtxError("EINVAL", `${path}: not a ${kind}`, { path })
}

function refuseParent(error: unknown, path: string): unknown {
  return ["ENOTDIR", "ELOOP"].includes(codeOf(error) ?? "") ? notA(dirname(path), "directory") : error
}

/** A tree in memory over another one that is never written: what a plan runs on. */
export class ShadowTree implements Tree {
  /** `undefined` stands for a removed node */
  readonly #changed = new Map<string, Entry | undefined>()

  constructor(readonly under: Tree) {}

  get setting(): Setting {
    return this.under.setting
  }

  find(path: string): Found | undefined {
    if (!this.#changed.has(path)) {
      // Below a directory that exists only here there is nothing on the disk to ask for.
      return this.#isNew(path) ? undefined : this.under.find(path)
    }
    const entry = this.#changed.get(path)
    if (!entry) return undefined
    return { kind: entry.kind, mode: entry.kind === "link" ? 0o777 : entry.mode, uid: entry.uid, gid: entry.gid }
  }

  #isNew(path: string): boolean {
    for (let dir = dirname(path); dir !== "."; dir = dirname(dir)) {
      if (this.#changed.has(dir)) return true
    }
    return false
  }

  read(path: string): Buffer {
    const entry = this.#changed.get(path)
    if (entry?.kind === "file") return entry.data
    if (this.#changed.has(path) || this.#isNew(path)) throw entry ? notA(path, "regular file") : missing(path)
    return this.under.read(path)
  }

  readLink(path: string): string {
    const entry = this.#changed.get(path)
    if (entry?.kind === "link") return entry.target
    if (this.#changed.has(path) || this.#isNew(path)) throw entry ? notA(path, "symbolic link") : missing(path)
    return this.under.readLink(path)
  }

  list(path: string): string[] {
    if (path !== "" && this.find(path) === undefined) throw missing(path)
    const isHere = path === "" || !(this.#changed.has(path) || this.#isNew(path))
    const names = new Set(isHere ? this.under.list(path) : [])
    for (const [changed, entry] of this.#changed) {
      const parent = dirname(changed)
      if ((parent === "." ? "" : parent) !== path) continue
      const name = changed.slice(path === "" ? 0 : path.length + 1)
      if (entry) names.add(name)
      else names.delete(name)
    }
    return [...names].sort(compareBytes)
  }

  put(path: string, entry: Entry): void {
    if (dirname(path) !== "." && this.find(dirname(path))?.kind !== "dir") throw notA(dirname(path), "directory")
    this.#changed.set(path, entry)
  }

  remove(path: string): void {
    if (this.find(path) === undefined) throw missing(path)
    this.#changed.set(path, undefined)
  }
}

function missing(path: string): CtxError {
  return new CtxError("ENOENT", `${path}: not there`, { path })
}
