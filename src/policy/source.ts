// What is put into a sandbox, opened once: what was checked is what is bound (`agent-tool-security.md` 7.1, 7.3).
import { type BigIntStats, closeSync, constants, fstat, lstatSync, readlinkSync } from "node:fs"
import { stat } from "node:fs/promises"
import { dirname } from "node:path"
import { promisify } from "node:util"
import { CtxError, codeOf } from "../abi/error.js"
import { isAtOrBelow } from "../abi/path.js"
import { type MountFacts, mountIdOf, readMounts } from "../native/mounts.js"
import {
  AT_FDCWD,
  O_PATH,
  openat2,
  RESOLVE_BENEATH,
  RESOLVE_NO_MAGICLINKS,
  RESOLVE_NO_SYMLINKS,
} from "../native/sys.js"

const VIEW_TYPE = "fuse.cortexfs"
/** Links the kernel follows in one path. */
const LINKS_MAX = 40
const fstatLater = promisify(fstat) as (fd: number, options: { bigint: true }) => Promise<BigIntStats>

/** An inode that may be bound: the descriptor is the fact, the path is what it was called when it was opened. */
export interface OpenSource {
  /** What errors call it. */
  what: string
  /** O_PATH; its owner closes it with {@link closeSource}. */
  fd: number
  path: string
  dev: bigint
  ino: bigint
  /** File type and permission bits. */
  mode: number
}

/** Where a source is searched and which links may lie on the way. */
export interface SourceRule {
  /** What the errors call it. */
  what: string
  /** A source that was opened before; the path is relative and must stay below it, and nothing on the way is a link. */
  base?: OpenSource
  /** Links on the way are followed; without it they are refused. */
  isLinkFollowed?: boolean
}

/** The path a descriptor really has. */
export function realPathOf(fd: number): string {
  return readlinkSync(`/proc/self/fd/${fd}`)
}

/** Gives a source back; it is not used afterwards. */
export function closeSource(source: OpenSource | undefined): void {
  if (source !== undefined) closeSync(source.fd)
}

/** File type of a source. */
export function isDirectorySource(source: OpenSource): boolean {
  return (source.mode & constants.S_IFMT) === constants.S_IFDIR
}

/**
 * Opens `path` once; whatever is bound later is bound by this descriptor. The place is asked on the thread pool first: one
 * that hangs must not stop the process. Errors: ENOENT; EACCES for a link, a way out of the base, a place that cannot
 * be reached; the file system's own (ENOTCONN, EIO).
 */
export async function openSource(path: string, rule: SourceRule): Promise<OpenSource> {
  const { what, base } = rule
  let fd: number | undefined
  try {
    await stat(base === undefined ? path : `/proc/self/fd/${base.fd}/${path}`).catch(e => {
      // Only the open decides; a link that leads nowhere is a link.
      if (codeOf(e) !== "ENOENT" && codeOf(e) !== "ELOOP" && codeOf(e) !== "ENOTDIR" && codeOf(e) !== "EACCES") throw e
    })
    let resolve = RESOLVE_NO_MAGICLINKS
    if (base !== undefined) resolve |= RESOLVE_BENEATH
    if (rule.isLinkFollowed !== true) resolve |= RESOLVE_NO_SYMLINKS
    fd = openat2(base?.fd ?? AT_FDCWD, path, O_PATH, 0, resolve)
    return await describeSource(fd, what)
  } catch (e) {
    if (fd !== undefined) closeSync(fd)
    const code = codeOf(e)
    const more = { path, cause: e }
    if (code === "ENOENT" || code === "ENOTDIR") throw new CtxError("ENOENT", `${what} does not exist`, more)
    if (code === "ELOOP" || code === "EXDEV") {
      throw new CtxError("EACCES", `${what} is a link or is reached through one; name what it leads to`, more)
    }
    if (code === "EACCES" || code === "EPERM") throw new CtxError("EACCES", `${what} cannot be reached`, more)
    throw e
  }
}

/** A descriptor that was opened and checked elsewhere as a source; it stays its owner's. Errors: EBADF. */
export async function describeSource(fd: number, what: string): Promise<OpenSource> {
  const { dev, ino, mode } = await fstatLater(fd, { bigint: true })
  return { what, fd, path: realPathOf(fd), dev, ino, mode: Number(mode) }
}

/** Says whether two facts are of one inode. */
export function isSameInode(a: { dev: bigint; ino: bigint }, b: { dev: bigint; ino: bigint }): boolean {
  return a.dev === b.dev && a.ino === b.ino
}

/**
 * The directories that hold the links on the way of `path` to `source`, links resolved. Errors: EACCES when the way
 * leads elsewhere by now.
 */
export function listLinkPlaces(path: string, source: OpenSource): string[] {
  const places: string[] = []
  let at = "/"
  let todo = path.split("/")
  while (todo.length > 0 && places.length <= LINKS_MAX) {
    const name = todo.shift()!
    if (name === "" || name === ".") continue
    if (name === "..") {
      at = dirname(at)
      continue
    }
    const next = `${at === "/" ? "" : at}/${name}`
    const target = readLink(next)
    if (target === undefined) {
      at = next
      continue
    }
    places.push(at)
    if (target.startsWith("/")) at = "/"
    todo = [...target.split("/"), ...todo]
  }
  const facts = lstatSync(at, { bigint: true, throwIfNoEntry: false })
  if (facts === undefined || !isSameInode(facts, source)) {
    throw new CtxError("EACCES", `${source.what} was replaced while it was checked`, { path })
  }
  return places
}

function readLink(path: string): string | undefined {
  try {
    return readlinkSync(path)
  } catch (e) {
    if (codeOf(e) === "EINVAL") return undefined
    throw new CtxError("EACCES", `${path} cannot be reached`, { path, cause: e })
  }
}

/** A place inside its file system, whatever it is mounted as: two spellings of one directory have one. */
interface Origin {
  device: string
  path: string
}

function originOf(path: string, mount: MountFacts | undefined): Origin | undefined {
  if (mount === undefined || !isAtOrBelow(path, mount.path)) return undefined
  const below = path.slice(mount.path === "/" ? 0 : mount.path.length)
  return { device: mount.device, path: `${mount.root === "/" ? "" : mount.root}${below}` || "/" }
}

function isNested(a: string, b: string): boolean {
  return isAtOrBelow(a, b) || isAtOrBelow(b, a)
}

/** A closed directory as it really is. */
interface Closed {
  path: string
  origin?: Origin
}

function findClosed(dir: string, mounts: readonly MountFacts[]): Closed {
  let fd: number
  try {
    fd = openat2(AT_FDCWD, dir, O_PATH, 0, RESOLVE_NO_MAGICLINKS)
  } catch {
    // Not there, or not for us: then only its name is closed.
    return { path: dir }
  }
  try {
    const [path, id] = [realPathOf(fd), mountIdOf(fd)]
    const origin = originOf(
      path,
      mounts.find(mount => mount.id === id),
    )
    return origin === undefined ? { path } : { path, origin }
  } finally {
    closeSync(fd)
  }
}

/** Directories of the host that nothing of is shown, and those that are closed wherever else they are mounted. */
export interface ClosedDirs {
  /** The kernel's and the host's own: /proc, /sys, /dev, /run. Single files of theirs are bound all over a host. */
  host: readonly string[]
  /** Those of CortexFS. */
  product: readonly string[]
}

/**
 * Why a source of the host must not be seen by a payload; undefined when it may. It is judged by what is open: the path
 * the descriptor has, the mount it lies in, and the place in its file system, so that neither a link, a swap, a second
 * mount of a closed directory nor a view that is mounted elsewhere gets by. tool-policy-abi 9
 */
export function findHostFault(source: OpenSource, closed: ClosedDirs): string | undefined {
  const { path, fd } = source
  if (path === "/") return "the root of the host is not mounted"
  const mounts = readMounts("self")
  const id = mountIdOf(fd)
  const mount = mounts.find(one => one.id === id)
  // An unmounted or hidden mount has no path that could be judged.
  if (mount === undefined) return "its file system is not mounted any more"
  for (const one of mounts) {
    if (one.type !== VIEW_TYPE) continue
    if (one.id === id || isAtOrBelow(path, one.path)) return `the view at ${one.path} is not mounted`
    if (isAtOrBelow(one.path, path)) return `it holds the view at ${one.path}, which is not mounted`
  }
  // A bind is recursive: what is mounted below comes along.
  const below = mounts.filter(one => one.id !== id && isAtOrBelow(one.path, path))
  const origin = originOf(path, mount)
  for (const dir of new Set([...closed.host, ...closed.product])) {
    const found = findClosed(dir, mounts)
    if (isAtOrBelow(path, dir) || isAtOrBelow(path, found.path)) return `${dir} is not mounted`
    if (isAtOrBelow(dir, path) || isAtOrBelow(found.path, path)) return `it holds ${dir}, which is not mounted`
    const isTwin = (other: Origin | undefined) =>
      other !== undefined && other.device === found.origin?.device && isNested(other.path, found.origin.path)
    if (isTwin(origin)) return `it shows ${dir} or what holds it, which is not mounted`
    if (!closed.product.includes(dir)) continue
    const twin = below.find(one => isTwin({ device: one.device, path: one.root }))
    if (twin !== undefined) return `${twin.path} shows ${dir} or what holds it, which is not mounted`
  }
  return undefined
}
