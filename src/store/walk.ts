import {
  type BigIntStats,
  closeSync,
  constants,
  fstatSync,
  fsyncSync,
  lstatSync,
  openSync,
  readdirSync,
  readlinkSync,
  rmdirSync,
  unlinkSync,
} from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isAtOrBelow } from "../abi/path.js"
import { readMounts } from "../native/mounts.js"

const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK } = constants
const REMOVE_TRIES = 3

/** Deeper than any tree of ours; stops a directory's owner from exhausting descriptors and stack of those who walk it. */
export const DEPTH_MAX = 64

/**
 * A name in an open directory as a path for Node.js's calls. The name is one component, so nothing but its own last
 * link could be followed, and every call here refuses that. Bytes, since a person's file name need not be UTF-8.
 */
export function at(dirFd: number, name: Buffer | string): Buffer {
  return Buffer.concat([Buffer.from(`/proc/self/fd/${dirFd}/`), Buffer.from(name)])
}

/** Opens a directory by name without following a link. Errors: `ENOTDIR` also for a link, `ENOENT`. */
export function openDirAt(dirFd: number, name: Buffer | string): number {
  return openSync(at(dirFd, name), O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
}

/** Names in an open directory, bytewise. */
export function listNames(dirFd: number): Buffer[] {
  return readdirSync(`/proc/self/fd/${dirFd}`, { encoding: "buffer" }).sort(Buffer.compare)
}

/** Facts of a name, never of what a link leads to. */
export function statAt(dirFd: number, name: Buffer | string): BigIntStats {
  return lstatSync(at(dirFd, name), { bigint: true })
}

/** Whether something is mounted at or below an absolute path; a bind of the same device is found too. */
export function hasMountBelow(path: string): boolean {
  return readMounts("self").some(mount => isAtOrBelow(mount.path, path))
}

/** Fsyncs every regular file and directory, children first. Errors: `EIO` and others of open and fsync. */
export function syncTree(dirFd: number): void {
  for (const name of listNames(dirFd)) {
    const stat = statAt(dirFd, name)
    if (!stat.isFile() && !stat.isDirectory()) continue
    const kind = stat.isDirectory() ? O_DIRECTORY : O_NONBLOCK
    const fd = openSync(at(dirFd, name), O_RDONLY | O_NOFOLLOW | kind)
    try {
      if (stat.isDirectory()) syncTree(fd)
      else fsyncSync(fd)
    } finally {
      closeSync(fd)
    }
  }
  fsyncSync(dirFd)
}

interface Level {
  name: Buffer
  dev: bigint
  ino: bigint
  names: Buffer[]
}

function openLevel(dirFd: number, name: Buffer, dev: bigint): { fd: number; level: Level } {
  const fd = openDirAt(dirFd, name)
  try {
    const stat = fstatSync(fd, { bigint: true })
    if (stat.dev !== dev) throw new CtxError("EXDEV", `${name}: another file system is mounted here`)
    return { fd, level: { name, dev, ino: stat.ino, names: listNames(fd) } }
  } catch (error) {
    closeSync(fd)
    throw error
  }
}

/** The parent of an open directory; it must still be the one that was walked down from. */
function openParent(fd: number, level: Level): number {
  const parentFd = openSync(`/proc/self/fd/${fd}/..`, O_RDONLY | O_DIRECTORY)
  const stat = fstatSync(parentFd, { bigint: true })
  if (stat.dev === level.dev && stat.ino === level.ino) return parentFd
  closeSync(parentFd)
  throw new CtxError("ESTALE", `${level.name}: moved while it was removed`)
}

function unlinkAny(dirFd: number, name: Buffer): "gone" | "dir" {
  if (statAt(dirFd, name).isDirectory()) return "dir"
  unlinkSync(at(dirFd, name))
  return "gone"
}

function removeOnce(parentFd: number, name: Buffer): void {
  const dev = fstatSync(parentFd, { bigint: true }).dev
  const opened = openLevel(parentFd, name, dev)
  let fd = opened.fd
  const levels = [opened.level]
  try {
    // One descriptor however deep the tree is: the owner of a control directory decides the depth.
    while (levels.length > 0) {
      const level = levels.at(-1)!
      const next = level.names.pop()
      if (next !== undefined) {
        try {
          if (unlinkAny(fd, next) === "gone") continue
          const below = openLevel(fd, next, dev)
          closeSync(fd)
          fd = below.fd
          levels.push(below.level)
        } catch (error) {
          if (codeOf(error) !== "ENOENT") throw error
        }
        continue
      }
      levels.pop()
      const up = levels.at(-1)
      if (!up) break
      const upFd = openParent(fd, up)
      closeSync(fd)
      fd = upFd
      rmdirSync(at(fd, level.name))
    }
  } finally {
    closeSync(fd)
  }
  rmdirSync(at(parentFd, name))
}

/**
 * Removes an entry of an open directory, a directory with all that is in it, depth first, without following a link or
 * crossing to another file system. Nothing there is no error. Errors: `EXDEV`, `ENOTEMPTY` when someone keeps adding,
 * errno of the system calls; what is left stays.
 */
export function removeTree(parentFd: number, entry: Buffer | string): void {
  const name = Buffer.from(entry)
  if (hasMountBelow(`${readlinkSync(`/proc/self/fd/${parentFd}`)}/${name}`)) {
    throw new CtxError("EXDEV", `${name}: something is mounted in it`, { hint: "unmount it, then run again" })
  }
  for (let tries = 1; ; tries++) {
    try {
      if (unlinkAny(parentFd, name) === "dir") removeOnce(parentFd, name)
      return
    } catch (error) {
      const code = codeOf(error)
      if (code === "ENOENT") return
      if (code !== "ENOTEMPTY" || tries === REMOVE_TRIES) throw error
    }
  }
}
