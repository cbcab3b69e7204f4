// The typed face of the addon's FUSE engine: one kernel mount, a generated tree as data, zones as data, and the few questions
// that TypeScript answers. No product rule lives below this file.
import type { ErrnoName } from "../abi/errno.js"
import { CtxError, toCtxError } from "../abi/error.js"
import { addon } from "./addon.js"

/** What a zone says to an operation: 0 = done natively, a positive errno = refused with it, `ASK` = TypeScript decides. */
export type Errno = number

/** The verdict that sends an operation to `FuseOptions.onRequest`. */
export const ASK = -1

/** An answer: TypeScript has done the operation itself, the engine only tells its caller what is there now. */
export const DONE = -1

/** The zone of names that are not there: `ENOENT` on lookup, never listed, `EROFS` on creation. */
export const HIDDEN = -1

/**
 * The grammars a zone rule may name: NAME, UID, one of the six aliases (`root-abi.md` 2); the end `pid-nonce-attempt` of a
 * temporary, and a whole temporary for a NAME (`fuse.md` 6.1).
 */
export type Grammar = "name" | "uid" | "alias" | "attempt" | "temp"

/**
 * One rule for the names below a directory: every given condition must hold; without a condition it holds for all names.
 * `prefix` with `grammar` tests the grammar on what follows the prefix; `suffix` likewise on what stands before it.
 */
export interface ZoneMatch {
  exact?: string
  prefix?: string
  suffix?: string
  grammar?: Grammar
}

/** A rule of a zone. `isListed: false` = found by lookup but never listed. */
export interface ZoneChild {
  match: ZoneMatch
  zone: number
  isListed?: boolean
}

/**
 * One state of the automaton that classifies backing entries (`fuse.md` 3). The zone of an entry follows from the zone of its
 * parent and its name, before it exists; the verdicts say what may be done to an entry that lies (or would lie) in the zone.
 */
export interface Zone {
  /** Index of the zone in `FuseOptions.zones`. */
  id: number
  name: string
  create: Errno
  mkdir: Errno
  /** Fifo and socket nodes; where `create` allows, devices are always `EPERM`. */
  mknodSpecial: Errno
  symlink: Errno
  linkFrom: Errno
  linkTo: Errno
  unlink: Errno
  rmdir: Errno
  renameFrom: Errno
  renameTo: Errno
  /** Open for writing and truncate. */
  write: Errno
  /** chmod, chown, utimens. */
  setattr: Errno
  /** `user.cortexfs.kind` of files and of directories. */
  kindFile: string
  kindDir: string
  /** Permission bits and owner shown instead of the backing ones. */
  fileMode?: number
  dirMode?: number
  uid?: number
  gid?: number
  entryTtlMs: number
  attrTtlMs: number
  /** `direct` = direct I/O; `keep` = page cache kept while (inode, size, mtime) are those of the last open; `drop` = dropped at open. */
  data: "direct" | "keep" | "drop"
  passthrough: boolean
  /** flock, POSIX and OFD locks on files of the zone are taken on the backing file; without it they are `ENOLCK`. */
  locks: boolean
  /** The entry is the root of a volume of its own: reached without RESOLVE_NO_XDEV; `EXDEV` between it and others. */
  isVolume: boolean
  /** A lookup of an absent name that would lie in this zone asks TypeScript once (`miss`), then looks again. */
  askMiss: boolean
  /** A rename from and to this zone, where a verdict is `ASK`, asks only when a symlink moves. */
  asksOnlyLinks?: boolean
  /** A backing entry of the zone that is neither a regular file nor a directory is not there: `ENOENT`, never listed. */
  onlyPlain?: boolean
  /** A backing entry of the zone is not there unless the tree shows it. */
  onlyTree?: boolean
  /** A backing entry of the zone is there for its owner's uid alone. */
  onlyOwner?: boolean
  /**
   * Who opens a file for writing gets a private copy; what is written is asked for as `publish` at flush, fsync and the
   * last close, a truncation by path as `truncate`. Needs `data: "direct"` and `sizeMax`.
   */
  isCopied?: boolean
  /** Files are neither cut nor overwritten; whoever answers `write` must see to O_APPEND. */
  onlyAppend?: boolean
  /** A file with an x bit and a directory `NAME.d` beside it is read-only and shows the answer to `object`. */
  isObject?: boolean
  /** The most bytes that writes may bring a file to, then `EFBIG`; 0 or absent = no limit. */
  sizeMax?: number
  /** First match wins. */
  children: ZoneChild[]
  childDefault: number
}

interface EntryCommon {
  /** Path relative to the root without leading slash; the root is "". Parents stand before their children. */
  path: string
  entryTtlMs?: number
  attrTtlMs?: number
  /** True: neither the entry nor its attributes follow from sources, so an access to it never waits for a refresh. */
  isFixed?: boolean
}

interface EntryGenerated extends EntryCommon {
  /** Permission bits, without the type. */
  mode: number
  uid: number
  gid: number
  /** mtime = ctime = atime, in ms. */
  mtimeMs: number
  /** `user.cortexfs.kind`. */
  kind: string
  /** The zone whose verdicts hold for the name; an operation on it must then be answered `DONE` or refused. */
  zone?: number
}

/** A generated directory. `askMiss`: a lookup of an absent name below it asks TypeScript once. */
export interface DirEntry extends EntryGenerated {
  type: "dir"
  askMiss?: boolean
}

/** A generated file with a body known beforehand. `keep`: the page cache stays while the body is the same. */
export interface FileEntry extends EntryGenerated {
  type: "file"
  body: Buffer
  data: "drop" | "keep"
  /** `user.cortexfs.backing_path` when a backing file stands behind it; absolute host path. */
  backingPath?: string
}

/** A generated symbolic link. */
export interface LinkEntry extends EntryGenerated {
  type: "link"
  target: string
}

/** A file rendered by TypeScript at each open: direct I/O, TTL 0. `sizeBytes` is shown while no handle is open. */
export interface LiveEntry extends EntryGenerated {
  type: "live"
  sizeBytes: number
  backingPath?: string
}

/**
 * A backing file or directory shown at `path`; what is below it follows from `zone`. Generated entries may be laid over its
 * children and win. `rel` is relative to the volume's directory, "" for the directory itself.
 */
export interface BackingEntry extends EntryCommon {
  type: "backing"
  volume: number
  rel: string
  zone: number
  mode?: number
  uid?: number
  gid?: number
  askMiss?: boolean
}

/** One entry of the generated tree. */
export type Entry = DirEntry | FileEntry | LinkEntry | LiveEntry | BackingEntry

/** First access to a generated node `freshMs` after the last refresh; what needs the tree waits for the answer. */
export interface RefreshUpcall {
  id: number
  op: "refresh"
}

/** The bytes of a live entry are wanted: `reply(id, 0, bytes)`. */
export interface RenderUpcall {
  id: number
  op: "render"
  path: string
  uid: number
  gid: number
  pid: number
}

/** A name was not found where `askMiss` holds: `reply(id, 0)` = look again, else the errno of the lookup. */
export interface MissUpcall {
  id: number
  op: "miss"
  path: string
  uid: number
  gid: number
  pid: number
}

/** An operation whose zone says `ASK`: `reply(id, 0)` = do it natively, `DONE`, else the errno. */
export interface AskUpcall {
  id: number
  op: "create" | "mkdir" | "mknod" | "symlink" | "link" | "unlink" | "rmdir" | "rename" | "write" | "setattr"
  path: string
  /** Target of a rename or link (`path` is the source). */
  path2?: string
  /** Text of the symbolic link. */
  target?: string
  /** Mode of the new node; of setattr the new mode when FATTR_MODE (1) is in `flags`. */
  mode: number
  /** Open flags (create, write), rename flags, or the FATTR_* mask (setattr). */
  flags: number
  uid: number
  gid: number
  /** Thread id of the caller. */
  pid: number
}

/** The file at `path` is cut or grown to `mode` bytes by path, in a zone with `isCopied`: `reply(id, DONE)` when it is. */
export interface TruncateUpcall extends Omit<AskUpcall, "op"> {
  op: "truncate"
}

/** A private copy is to replace the file at `path`: `reply(id, 0)` when it does. `uid` is who opened it. */
export interface PublishUpcall extends Omit<AskUpcall, "op"> {
  op: "publish"
  body: Buffer
}

/** The text of the object whose executable is at `path`, in a zone with `isObject`: `reply(id, 0, bytes)`. */
export interface ObjectUpcall extends Omit<AskUpcall, "op"> {
  op: "object"
}

/** What TypeScript is asked. Every one is answered exactly once with `reply`. */
export type Upcall =
  | RefreshUpcall
  | RenderUpcall
  | MissUpcall
  | AskUpcall
  | TruncateUpcall
  | PublishUpcall
  | ObjectUpcall

/** How a mount is made. */
export interface FuseOptions {
  mountPoint: string
  allowOther: boolean
  /** Mount by fusermount3 instead of mount(2). */
  rootless?: boolean
  /** Serving threads; 2 without it, 1 on a single core. */
  threads?: number
  zones: Zone[]
  /** Age in ms at which an access to a generated node asks for a refresh; 0 = never. */
  freshMs: number
  passthrough: boolean
  /** Nodes above which the names longest not looked up are given up until a tenth fewer are left; 0 or absent = never. */
  nodesMax?: number
  /** Show `user.cortexfs.backing_path`. */
  backingPathVisible: boolean
  /** Per-user mount: new nodes belong to the serving process, chown is EPERM. */
  ownUid?: number
  /** Descriptor in the data root's file system: statfs, and the device whose inode numbers are shown unchanged. Not taken over. */
  statfsFd: number
  /** Prefix of the extended attributes; `user.cortexfs.`. */
  xattrPrefix?: string
  /** Deadline of an upcall in ms; 10,000 without it. A lookup then ends ENOMEM (it must not detach binds), anything else EIO. */
  upcallTimeoutMs?: number
  onRequest(batch: Upcall[]): void
  /** Called once when serving has ended: `unmounted` (outside or by stop), or `error: …`. */
  onEnd(reason: string): void
  /** One line per malformed kernel request (at most one a second); nowhere without it. */
  onJournal?(line: string): void
}

/** Counters of a mount. */
export interface FuseStats {
  /** FUSE requests taken from the kernel so far. */
  requests: number
  /** 1 when the kernel granted passthrough and a trial registration worked. */
  passthrough: 0 | 1
  /** Backing nodes the kernel still knows. */
  nodes: number
  /** Descriptors kept for nodes. */
  descriptors: number
  /** Open handles. */
  handles: number
  /** Requests that wait for TypeScript. */
  parked: number
}

interface NativeMount {
  addVolume(dirFd: number, hostPath: string): number
  setTree(entries: Entry[]): void
  start(): Promise<void>
  reply(id: number, errno: number, body?: Buffer): void
  invalidate(path: string): boolean
  stats(): FuseStats
  stop(): Promise<void>
  feed(request: Buffer): void
  takeReplies(): Buffer[]
}

type NativeMountClass = new (o: FuseOptions) => NativeMount

function face<T>(call: () => T): T {
  try {
    return call()
  } catch (e) {
    throw toCtxError(e)
  }
}

function refuse(code: ErrnoName, what: string): never {
  throw new CtxError(code, what)
}

/** One FUSE mount (`fuse.md` 2). Made unmounted; `start` mounts, `stop` unmounts; not reusable after that. */
export class FuseMount {
  readonly #native: NativeMount

  /** Errors: `EINVAL` for malformed options or zones. */
  constructor(o: FuseOptions) {
    if (!o.mountPoint.startsWith("/")) refuse("EINVAL", "the mount point is relative: give an absolute path")
    o.zones.forEach((zone, i) => {
      if (zone.id !== i)
        refuse("EINVAL", `zone ${zone.name} has id ${zone.id} at index ${i}: number zones from 0 in order`)
    })
    this.#native = face(() => new (addon.FuseMount as unknown as NativeMountClass)(o))
  }

  /**
   * Takes over an O_PATH (or ordinary) directory descriptor as a volume, the border of RESOLVE_NO_XDEV and of rename and link.
   * `hostPath` is shown in `backing_path`. Returns the volume's number. Errors: those of statx on it, `ENOTDIR`.
   */
  addVolume(dirFd: number, hostPath: string): number {
    return face(() => this.#native.addVolume(dirFd, hostPath))
  }

  /**
   * Replaces the generated tree at once. Inode numbers of generated nodes lie above 2^62 and stay fixed per path and type.
   * The order of children is the order given. Errors: `EINVAL` for an entry without its parent, a double path, an unknown volume or zone.
   */
  setTree(entries: Entry[]): void {
    face(() => this.#native.setTree(entries))
  }

  /** Mounts and resolves when the kernel's INIT has been answered. Errors: `ENODEV` (no /dev/fuse), `EBUSY`, `EPERM`, `ENOENT`, …. */
  async start(): Promise<void> {
    await this.#native.start().catch((e: unknown) => {
      throw toCtxError(e)
    })
  }

  /** Answers an upcall: positive `errno`, 0 or `DONE`. Answers that come late (deadline, interrupt, stop) are dropped. */
  reply(id: number, errno: number, body?: Buffer): void {
    this.#native.reply(id, errno, body)
  }

  /**
   * Makes the kernel look again: the name expires (nothing mounted on it is detached), the parent's attributes and the old
   * inode's attributes and pages are dropped. Sent by a thread of its own; a queue over 1,024 names drops to TTL expiry.
   */
  invalidate(path: string): void {
    this.#native.invalidate(path)
  }

  /** Counters; a fresh copy at each read. */
  get stats(): FuseStats {
    return this.#native.stats()
  }

  /** Unmounts (detaches and aborts when busy), answers what waits, joins the threads. Never rejects; a second call waits for the first. */
  async stop(): Promise<void> {
    await this.#native.stop()
  }

  /** Test transport: gives one raw request to the parser of a mount that was not started; replies go to memory. */
  feed(request: Buffer): void {
    face(() => this.#native.feed(request))
  }

  /** Test transport: the raw replies collected since the last call. */
  takeReplies(): Buffer[] {
    return this.#native.takeReplies()
  }
}
