// One served mount: opens the backing tree by descriptors, gives the engine its zones and its tree, answers its
// questions. What is asked here is rare; everything else is answered natively.
import { closeSync, constants } from "node:fs"
import { ERRNO } from "../abi/errno.js"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import { CTX_ROOT } from "../abi/path.js"
import { FuseMount, type Upcall } from "../native/fuse.js"
import { describeInternal } from "../native/journal.js"
import * as sys from "../native/sys.js"
import { RESOLVE_STRICT } from "../store/file.js"
import { type Source, unpinSource } from "../store/generation.js"
import { pinTree } from "../store/source.js"
import { Controls, isControlled, readOwner } from "./control.js"
import { enterGuard, leaveGuard } from "./guard.js"
import { createHome } from "./home.js"
import { listHost } from "./host.js"
import { type Facts, judge, parseHome } from "./judge.js"
import { formatTool, type Place } from "./object.js"
import { findEntry, type Seen, Sources } from "./source.js"
import { formatStatus, type MountState } from "./status.js"
import { listView, type ViewData, type Viewer } from "./view.js"
import { makeZones, type RootOwner } from "./zone.js"

const { O_DIRECTORY, O_NOFOLLOW } = constants
/** Age at which an access to a generated node looks at the sources again (fuse.md 2.1). */
const FRESH_MS = 1000
/** Refusals that say nothing about this process. */
const EXPECTED = ["EACCES", "EEXIST", "EFBIG", "EINVAL", "ENOENT", "ENOTEMPTY"]
/** Nodes above which the host view gives up names (fuse.md 2.1). */
const NODES_MAX = 1_000_000

/** What is mounted, and where. */
export interface ServeOptions {
  sourcePath: string
  /** NAME for that agent's view, undefined for the host view. */
  agent?: string
  /** Absolute, clean, a directory with nothing mounted on it. */
  mountPoint: string
  run: string
  isPassthroughAllowed: boolean
  /** Called once when the mount has ended without `stop`: `unmounted`, or `error: …`. */
  onEnd(reason: string): void
  /** One line for the journal. */
  onJournal(line: string): void
}

/** What the journal is told of a failure; of one that nobody expected not its text, which may quote a file. */
function tell(error: unknown): string {
  const { code, message } = toCtxError(error)
  return code === "internal" ? describeInternal(error) : message
}

/** A mount of this process. Made by `openServer`, which has checked everything that can be checked before mounting. */
export class Server {
  readonly state: MountState
  readonly #options: ServeOptions
  readonly #source: Source
  readonly #place: Place
  readonly #viewer: Viewer | undefined
  readonly #homesFd: number
  readonly #spacesFd: number
  readonly #mount: FuseMount
  readonly #homesVolume: number
  readonly #spacesVolume: number
  readonly #opened = new Map<string, { volume: number; dirFd: number; seen: Seen }>()
  readonly #controls: Controls
  #sources = new Sources()
  #isStopping = false

  constructor(options: ServeOptions, source: Source, viewer: Viewer | undefined) {
    const startedMs = Date.now()
    const uid = process.getuid!()
    const isRoot = uid === 0
    const owner: RootOwner = isRoot ? { uid: 0, gid: 0 } : { uid, gid: process.getgid!() }
    this.#options = options
    this.#source = source
    this.#viewer = viewer
    const { generation, treeVersion } = source
    this.state = { state: "mounted", agent: viewer?.name, generation, treeVersion, startedMs }

    const dataFd = sys.openat2(sys.AT_FDCWD, source.dataRoot, sys.O_PATH | O_DIRECTORY | O_NOFOLLOW)
    this.#homesFd = openData(dataFd, "home")
    this.#spacesFd = openData(dataFd, "shared")
    this.#mount = new FuseMount({
      mountPoint: options.mountPoint,
      allowOther: isRoot,
      rootless: !isRoot,
      zones: makeZones(owner, viewer === undefined),
      freshMs: FRESH_MS,
      passthrough: options.isPassthroughAllowed,
      backingPathVisible: viewer === undefined,
      nodesMax: viewer === undefined ? NODES_MAX : 0,
      ownUid: isRoot ? undefined : uid,
      statfsFd: dataFd,
      xattrPrefix: "user.cortexfs.",
      onRequest: batch => this.#answer(batch),
      onEnd: reason => {
        if (!this.#isStopping) options.onEnd(reason)
      },
      onJournal: options.onJournal,
    })
    const volume = (dirFd: number, path: string) => this.#mount.addVolume(openAgain(dirFd), path)
    const sourceVolume = volume(source.dirFd, source.dir)
    this.#homesVolume = volume(this.#homesFd, `${source.dataRoot}/home`)
    this.#spacesVolume = volume(this.#spacesFd, `${source.dataRoot}/shared`)
    // The sandbox of its agent binds an agent view at /ctx, whoever serves it.
    const root = isRoot || viewer !== undefined ? CTX_ROOT : options.mountPoint
    this.#place = { source, sourceVolume, root, run: options.run, owner }
    this.#controls = new Controls({ source, owner, onChange: () => this.#rebuild() })
    this.#rebuild()
  }

  /** Mounts; resolves when the kernel's INIT is answered. Errors: `ENODEV` without /dev/fuse, `EPERM`, `EBUSY`. */
  async start(): Promise<void> {
    enterGuard(this.#options.mountPoint)
    try {
      await this.#mount.start()
    } catch (error) {
      leaveGuard(this.#options.mountPoint)
      throw error
    }
  }

  /** 1 when the kernel reads and writes backing files by itself where that may be. */
  get passthrough(): 0 | 1 {
    return this.#mount.stats.passthrough
  }

  /** `status` says stopping; unmounts, detaches when busy, answers what waits. */
  async stop(): Promise<void> {
    this.#isStopping = true
    this.state.state = "stopping"
    await this.#mount.stop()
    leaveGuard(this.#options.mountPoint)
    unpinSource(this.#source)
  }

  /** Looks at the sources and takes a new snapshot when one changed; what cannot be read now is shown as it was. */
  #refresh(): void {
    try {
      if (!this.#sources.isCurrent()) this.#rebuild()
    } catch (error) {
      this.#options.onJournal(`the tree is shown as it was: ${tell(error)}`)
    }
  }

  /** Takes a new snapshot of the sources and swaps the tree whole. */
  #rebuild(): void {
    const sources = new Sources()
    const mtimeMs = this.state.startedMs
    const listing = this.#viewer
      ? listView(sources, this.#place, this.#viewer, this.#viewData(), mtimeMs)
      : listHost(sources, this.#place, { homes: this.#homesVolume, spaces: this.#spacesVolume }, mtimeMs)
    this.#mount.setTree(listing.entries)
    this.#sources = sources
  }

  #viewData(): ViewData {
    const homesFd = this.#homesFd
    const spacesFd = this.#spacesFd
    return {
      homesFd,
      spacesFd,
      openVolume: (kind, name, seen) => {
        const key = `${kind}/${name}`
        const known = this.#opened.get(key)
        if (known && known.seen.dev === seen.dev && known.seen.ino === seen.ino) return known
        let dirFd: number
        try {
          dirFd = openData(kind === "home" ? homesFd : spacesFd, name)
        } catch {
          return undefined
        }
        const volume = this.#mount.addVolume(openAgain(dirFd), `${this.#source.dataRoot}/${key}`)
        if (known) closeSync(known.dirFd)
        const opened = { volume, dirFd, seen }
        this.#opened.set(key, opened)
        return opened
      },
    }
  }

  #answer(batch: Upcall[]): void {
    for (const upcall of batch) {
      const reply = (answer: number | Buffer) => {
        if (typeof answer === "number") this.#mount.reply(upcall.id, answer)
        else this.#mount.reply(upcall.id, 0, answer)
      }
      const fail = (error: unknown) => {
        const { code, errno } = toCtxError(error)
        reply(-errno || ERRNO.EIO)
        if (!EXPECTED.includes(code)) this.#options.onJournal(`${upcall.op}: ${tell(error)}`)
      }
      try {
        const answer = this.#decide(upcall)
        if (answer instanceof Promise) answer.then(reply, fail)
        else reply(answer)
      } catch (error) {
        fail(error)
      }
    }
  }

  #decide(upcall: Upcall): number | Buffer | Promise<number> {
    switch (upcall.op) {
      case "refresh":
        this.#refresh()
        return 0
      case "render":
        return formatStatus(this.state, this.#mount.stats)
      case "miss":
        return this.#createHome(upcall.path, upcall.uid, upcall.gid)
      case "object":
        return this.#renderTool(upcall.path)
      case "truncate":
      case "publish":
        return this.#controls.decide(upcall)
      default:
        return isControlled(upcall) ? this.#controls.decide(upcall) : judge(upcall, this.#facts)
    }
  }

  /** What a user's or a space's tool shows of itself in place of its bytes (object-abi 2). */
  #renderTool(path: string): Buffer {
    const [kind, name, ...rest] = path.split("/")
    const dirFd = openData(kind === "home" ? this.#homesFd : this.#spacesFd, name!)
    try {
      return formatTool(new Sources(), dirFd, rest.join("/"))
    } finally {
      closeSync(dirFd)
    }
  }

  #createHome(path: string, uid: number, gid: number): number {
    if (parseHome(path) !== uid) return ERRNO.ENOENT
    createHome(this.#homesFd, uid, gid)
    return 0
  }

  readonly #facts: Facts = {
    findRoot: () => this.#place.root,
    findOwner: agent => {
      if (this.#place.owner.uid !== 0) return this.#place.owner.uid
      return readOwner(this.#source, agent)
    },
    isLink: path => {
      const [kind, name, ...rest] = path.split("/")
      if (name === undefined || rest.length === 0) return false
      const dirFd = openData(kind === "home" ? this.#homesFd : this.#spacesFd, name)
      try {
        return findEntry(dirFd, rest.join("/"))?.type === "link"
      } finally {
        closeSync(dirFd)
      }
    },
  }
}

/** A directory of durable data by name, also when it is a file system of its own; made when it is missing. */
function openData(dirFd: number, name: string): number {
  const open = () => sys.openat2(dirFd, name, sys.O_PATH | O_DIRECTORY | O_NOFOLLOW, 0, RESOLVE_STRICT)
  try {
    return open()
  } catch (error) {
    if (codeOf(error) !== "ENOENT" || (name !== "home" && name !== "shared")) throw error
  }
  sys.mkdirat(dirFd, name, 0o755)
  return open()
}

/** A second descriptor of the same directory, for the engine to keep. */
function openAgain(dirFd: number): number {
  return sys.openat2(dirFd, ".", sys.O_PATH | O_DIRECTORY)
}

/** The agent whose view is wanted. Errors: `ENOENT` when there is none, `EINVAL` when its `owner` is malformed. */
function readViewer(source: Source, name: string): Viewer {
  const sources = new Sources()
  const control = `agent/${name}.d/owner`
  if (sources.find(source.dirFd, control) === undefined)
    throw new CtxError("ENOENT", `agent/${name} does not exist`, { path: `agent/${name}`, hint: "create the agent" })
  const owner = readOwner(source, name)
  if (owner === undefined)
    throw new CtxError("EINVAL", `${control} is no uid`, { path: control, hint: "write one uid" })
  return { name, owner: process.getuid!() === 0 ? owner : process.getuid!() }
}

/**
 * Pins the source for good and prepares its mount. Errors: `ENOENT`, `EINVAL` for a source that is no reference tree,
 * `EBUSY` while an update runs, `EPROTO` for another tree version, `ENOENT` and `EINVAL` for the agent.
 */
export async function openServer(options: ServeOptions): Promise<Server> {
  const source = await pinTree(options.sourcePath)
  try {
    const viewer = options.agent === undefined ? undefined : readViewer(source, options.agent)
    return new Server(options, source, viewer)
  } catch (error) {
    unpinSource(source)
    throw error
  }
}
