// The files a snapshot is made from. Every look goes through here and is written down as (device, inode, size, mtime),
// so that the next check can tell with one stat each whether anything changed (fuse.md 2.1).
import { closeSync, constants, readdirSync } from "node:fs"
import { codeOf } from "../abi/error.js"
import * as sys from "../native/sys.js"
import { RESOLVE_STRICT, readFileNofollow } from "../store/file.js"

const RESOLVE = RESOLVE_STRICT | sys.RESOLVE_NO_XDEV
const { S_IFMT, S_IFREG, S_IFDIR, S_IFLNK, O_DIRECTORY, O_NOFOLLOW } = constants

/** Attributes of a backing entry that is not followed when it is a link. */
export interface Seen {
  type: "file" | "dir" | "link" | "other"
  dev: bigint
  ino: bigint
  mode: number
  uid: number
  gid: number
  size: bigint
  mtimeNs: bigint
  ctimeNs: bigint
}

/** Files changed this shortly before a look may change again without another mtime: the kernel's clock ticks this slowly. */
const TICK_NS = 20_000_000n

interface Look {
  dirFd: number
  rel: string
  seen: Seen | undefined
}

/** Looks at backing entries relative to directory descriptors; remembers each so that isCurrent can compare. */
export class Sources {
  readonly #looks = new Map<string, Look>()
  readonly #startedNs = BigInt(Date.now()) * 1_000_000n
  /** Newest mtime of everything seen, in ms; undefined when nothing was there. */
  newestMs: number | undefined

  /** The entry at `rel` below `dirFd` (`.` = itself), or undefined when it is absent or cannot be reached safely. */
  find(dirFd: number, rel: string): Seen | undefined {
    const key = `${dirFd}:${rel}`
    const known = this.#looks.get(key)
    if (known) return known.seen
    const seen = findEntry(dirFd, rel)
    this.#looks.set(key, { dirFd, rel, seen })
    if (seen && seen.type !== "other") {
      const ms = Number(seen.mtimeNs / 1_000_000n)
      if (this.newestMs === undefined || ms > this.newestMs) this.newestMs = ms
    }
    return seen
  }

  /** Names in the directory at `rel`, in byte order; empty when it is absent or no directory. */
  list(dirFd: number, rel: string): string[] {
    if (this.find(dirFd, rel)?.type !== "dir") return []
    return listNames(dirFd, rel)
  }

  /** The bytes of the regular file at `rel`; undefined when absent, no regular file, or above `maxBytes`. */
  read(dirFd: number, rel: string, maxBytes: number): Buffer | undefined {
    const seen = this.find(dirFd, rel)
    if (seen?.type !== "file") return undefined
    try {
      return readFileNofollow({ dirFd, name: rel }, maxBytes)
    } catch (error) {
      // Gone, replaced, too long or unreadable since the look: it counts as absent until the next check.
      if (codeOf(error) === undefined) throw error
      return undefined
    }
  }

  /** The text of the link at `rel`, or undefined when there is none. */
  readLink(dirFd: number, rel: string): string | undefined {
    if (this.find(dirFd, rel)?.type !== "link") return undefined
    try {
      return withParent(dirFd, rel, (fd, name) => sys.readlinkat(fd, name).toString())
    } catch {
      return undefined
    }
  }

  /**
   * Stats every entry looked at so far once; false when one of them is not as it was, or was so new when it was looked at
   * that its mtime proves nothing. Reads nothing.
   */
  isCurrent(): boolean {
    const nowNs = BigInt(Date.now()) * 1_000_000n
    for (const { dirFd, rel, seen } of this.#looks.values()) {
      const now = findEntry(dirFd, rel)
      if (now === undefined || seen === undefined) {
        if (now !== seen) return false
        continue
      }
      if (now.dev !== seen.dev || now.ino !== seen.ino || now.size !== seen.size) return false
      if (seen.mtimeNs >= this.#startedNs - TICK_NS && seen.mtimeNs <= nowNs) return false
      // Mode and owner are projected for some entries; a change of them moves ctime only.
      if (now.mtimeNs !== seen.mtimeNs || now.mode !== seen.mode || now.uid !== seen.uid || now.gid !== seen.gid)
        return false
    }
    return true
  }
}

/** lstat of `rel` below `dirFd`; undefined when it is not there or a component on the way is a link or a mount. */
export function findEntry(dirFd: number, rel: string): Seen | undefined {
  try {
    return withParent(dirFd, rel, (fd, name) => {
      const stat = sys.fstatat(fd, name === "." ? "" : name)
      const format = stat.mode & S_IFMT
      const type = format === S_IFREG ? "file" : format === S_IFDIR ? "dir" : format === S_IFLNK ? "link" : "other"
      const { dev, ino, size, mtimeNs, ctimeNs } = stat
      return { type, dev, ino, mode: stat.mode & 0o7777, uid: stat.uid, gid: stat.gid, size, mtimeNs, ctimeNs }
    })
  } catch (error) {
    const code = codeOf(error)
    if (code === "ENOENT" || code === "ENOTDIR" || code === "ELOOP" || code === "EXDEV") return undefined
    throw error
  }
}

/** Opens the directory at `rel` below `dirFd` without following a link; the caller closes it. */
export function openDir(dirFd: number, rel: string, flags = 0): number {
  return sys.openat2(dirFd, rel, O_DIRECTORY | O_NOFOLLOW | flags, 0, RESOLVE)
}

/** Gives `use` the directory that holds `rel` and the last name, and closes it afterwards. */
function withParent<T>(dirFd: number, rel: string, use: (fd: number, name: string) => T): T {
  const at = rel.lastIndexOf("/")
  if (at < 0) return use(dirFd, rel)
  const fd = openDir(dirFd, rel.slice(0, at), sys.O_PATH)
  try {
    return use(fd, rel.slice(at + 1))
  } finally {
    closeSync(fd)
  }
}

function listNames(dirFd: number, rel: string): string[] {
  const fd = openDir(dirFd, rel)
  try {
    return readdirSync(`/proc/self/fd/${fd}`, "buffer")
      .sort(Buffer.compare)
      .map(name => name.toString())
  } finally {
    closeSync(fd)
  }
}
