// Controlled writes: definitions of agents by their owner and operator controls of system tools by uid 0 (fuse.md 6).
// What only needs a yes is answered so and done by the engine; what must be one step or changes what the tree shows is
// done here.
import { closeSync, constants, readdirSync } from "node:fs"
import { CONTROL_MAX } from "../abi/control.js"
import { ERRNO } from "../abi/errno.js"
import { CtxError, codeOf } from "../abi/error.js"
import { isUid } from "../abi/name.js"
import { DONE } from "../native/fuse.js"
import * as sys from "../native/sys.js"
import { randomHex, readFileNofollow } from "../store/file.js"
import type { Source } from "../store/generation.js"
import { removeTree } from "../store/walk.js"
import { publishFile, syncDir } from "./publish.js"
import { findEntry, openDir } from "./source.js"
import { parseTarget, sizeMax, type Target } from "./target.js"
import type { RootOwner } from "./zone.js"

const { EACCES, EBUSY, EINVAL, ELOOP, ENOTEMPTY, EROFS, EXDEV, EFBIG } = ERRNO
const OK = 0
const { O_RDWR, O_WRONLY, O_APPEND, O_TRUNC } = constants
const RENAME_EXCHANGE = 2

/** One question of the engine about a path below `agent/` or `tool/`. */
export interface ControlQuestion {
  op: string
  path: string
  path2?: string
  body?: Buffer
  mode: number
  flags: number
  uid: number
  gid: number
}

/** What the writes need of their mount. */
export interface ControlSetting {
  source: Source
  /** Who stands for 0:0; in a per-user mount the user, who then owns everything. */
  owner: RootOwner
  /** Something was changed that the tree may show. */
  onChange(): void
}

/** Whether a question is one of these: a side of it lies in `agent/` or in `tool/`. */
export function isControlled({ path, path2 }: { path: string; path2?: string }): boolean {
  return [path, path2 ?? ""].some(one => one.startsWith("agent/") || one.startsWith("tool/"))
}

/** Decides and does the controlled writes of one mount. Publications are made one after the other. */
export class Controls {
  readonly #setting: ControlSetting
  #last: Promise<unknown> = Promise.resolve()

  constructor(setting: ControlSetting) {
    this.#setting = setting
  }

  /** 0 when the engine may go on, `DONE` when it was done here, else the errno. Errors: those of the backing side. */
  decide(question: ControlQuestion): number | Promise<number> {
    const { op, path, path2, uid, flags } = question
    if (op === "rename") return this.#rename(parseTarget(path), path2 ?? "", flags, uid)
    const target = parseTarget(path)
    const denied = this.#deny(target, uid)
    if (denied !== OK) return denied
    switch (op) {
      case "create":
        return target.publishes !== undefined && this.#isKnown(target) ? OK : EROFS
      case "mkdir":
        return this.#mkdir(target, question)
      case "unlink":
        return this.#unlink(target, uid)
      case "rmdir":
        return this.#rmdir(target)
      case "write":
        return judgeOpen(target, flags)
      case "truncate":
        return this.#truncate(target, question.mode, uid)
      case "publish":
        return this.#publish(target, () => question.body!, { uid, isNew: false })
      default:
        return EROFS
    }
  }

  /**
   * The uid that may write an agent's definition: the one in `owner`, and while that control does not exist the owner of
   * the directory. Undefined when there is no definition, -1 when `owner` names nobody.
   */
  findOwner(agent: string): number | undefined {
    const { source, owner } = this.#setting
    const dir = findEntry(source.dirFd, `agent/${agent}.d`)
    if (dir?.type !== "dir") return undefined
    if (owner.uid !== 0) return owner.uid
    if (findEntry(source.dirFd, `agent/${agent}.d/owner`) === undefined) return dir.uid
    return readOwner(source, agent) ?? -1
  }

  /** `EACCES` for another's agent or tool; a name of no agent is nobody's. */
  #deny({ kind, agent, tool }: Target, uid: number): number {
    if (kind === "socket") return EROFS
    if (tool !== undefined && uid !== this.#setting.owner.uid) return EACCES
    const owner = agent === undefined ? undefined : this.findOwner(agent)
    return owner !== undefined && owner !== uid ? EACCES : OK
  }

  #isKnown({ agent, tool }: Target): boolean {
    return tool !== undefined || (agent !== undefined && this.findOwner(agent) !== undefined)
  }

  #isPublished(agent: string): boolean {
    return findEntry(this.#setting.source.dirFd, `agent/${agent}`) !== undefined
  }

  /** Opens the directory that a target lies in and closes it afterwards. */
  async #inDir<T>({ dir }: Target, use: (dirFd: number) => T | Promise<T>): Promise<T> {
    const dirFd = openDir(this.#setting.source.dirFd, dir)
    try {
      return await use(dirFd)
    } finally {
      closeSync(dirFd)
    }
  }

  #mkdir(target: Target, { uid, gid }: ControlQuestion): number {
    if (target.kind === "hooks") return OK
    if (target.kind !== "definition") return EROFS
    const { source, owner } = this.#setting
    const dirFd = openDir(source.dirFd, target.dir)
    try {
      const stage = `.publish-${randomHex(8)}`
      sys.mkdirat(dirFd, stage, 0o755)
      try {
        if (owner.uid === 0) sys.fchownat(dirFd, stage, uid, gid)
        sys.renameat2(dirFd, stage, dirFd, target.name, sys.RENAME_NOREPLACE)
      } catch (error) {
        sys.unlinkat(dirFd, stage, { dir: true })
        throw error
      }
    } finally {
      closeSync(dirFd)
    }
    this.#setting.onChange()
    return DONE
  }

  #unlink(target: Target, uid: number): number | Promise<number> {
    const { kind, publishes, agent, tool, name } = target
    if (publishes !== undefined) return OK
    if (tool !== undefined) return kind === "control" && (name === "timeout" || name === "cache") ? OK : EROFS
    if (kind === "hook") return OK
    if (kind === "control") return this.#isPublished(agent!) ? EROFS : OK
    return kind === "executable" ? this.#inTurn(() => this.#removeAgent(target, uid)) : EROFS
  }

  /** Removes an empty directory of an unpublished agent; what nobody sees in it goes with it. */
  #rmdir(target: Target): number | Promise<number> {
    if ((target.kind !== "definition" && target.kind !== "hooks") || this.#isPublished(target.agent!)) return EROFS
    return this.#inTurn(() =>
      this.#inDir(target, dirFd => {
        const insideFd = openDir(dirFd, target.name)
        try {
          const names = readdirSync(`/proc/self/fd/${insideFd}`)
          if (names.some(name => !name.startsWith("."))) return ENOTEMPTY
          for (const name of names) removeTree(insideFd, name)
        } finally {
          closeSync(insideFd)
        }
        sys.unlinkat(dirFd, target.name, { dir: true })
        this.#setting.onChange()
        return DONE
      }),
    )
  }

  /** fuse.md 6.4. The first rename is the commit point: without its executable there is no agent. */
  async #removeAgent(target: Target, uid: number): Promise<number> {
    const agent = target.agent!
    if (this.findOwner(agent) !== uid) return EACCES
    if (isLive(this.#setting.source, agent)) return EBUSY
    return this.#inDir(target, async dirFd => {
      const hide = (name: string) => {
        const residue = `.cortexfs-cleanup-${randomHex(8)}`
        sys.renameat2(dirFd, name, dirFd, residue, sys.RENAME_NOREPLACE)
        return residue
      }
      const residues = [hide(agent)]
      try {
        residues.push(hide(`${agent}.d`))
      } finally {
        this.#setting.onChange()
      }
      await syncDir(dirFd)
      for (const residue of residues) removeTree(dirFd, residue)
      return DONE
    })
  }

  /** fuse.md 5.5, rows with a side in `agent` or in a tool's operator controls; the fixed sides were refused before. */
  #rename(from: Target, path2: string, flags: number, uid: number): number | Promise<number> {
    const paths = [`${from.dir}/${from.name}`, path2]
    const targets = paths.filter(path => isControlled({ path })).map(parseTarget)
    if (targets.some(one => one.kind === "socket")) return EROFS
    const isInAgent = targets.some(one => one.dir.startsWith("agent"))
    if ((flags & RENAME_EXCHANGE) !== 0) return isInAgent ? EINVAL : EROFS
    for (const one of targets) {
      const denied = this.#deny(one, uid)
      if (denied !== OK) return denied
    }
    const to = isControlled({ path: path2 }) ? parseTarget(path2) : undefined
    const seen = to && findEntry(this.#setting.source.dirFd, path2)
    if (seen?.type === "link") return ELOOP
    if (isInAgent && to?.dir !== from.dir) return EXDEV
    if (to === undefined || to.dir !== from.dir || from.publishes !== to.name || to.publishes !== undefined)
      return EROFS
    if (!this.#isKnown(to)) return EROFS
    if (seen !== undefined && seen.type !== "file") return EINVAL
    const publication = { uid, isNew: (flags & sys.RENAME_NOREPLACE) !== 0, temp: from.name }
    return this.#publish(to, dirFd => readFileNofollow({ dirFd, name: from.name }, sizeMax(to)), publication)
  }

  #truncate(target: Target, sizeBytes: number, uid: number): number | Promise<number> {
    if (target.kind !== "control" || target.publishes !== undefined) return EROFS
    if (sizeBytes > CONTROL_MAX) return EFBIG
    const cut = (dirFd: number) => {
      const bytes = Buffer.alloc(sizeBytes)
      readFileNofollow({ dirFd, name: target.name }, CONTROL_MAX).copy(bytes)
      return bytes
    }
    return this.#publish(target, cut, { uid, isNew: false })
  }

  /** Publishes what `read` gives at `target`; the bytes that are judged are the bytes that are published. */
  #publish(
    target: Target,
    read: (dirFd: number) => Buffer,
    { uid, isNew, temp }: { uid: number; isNew: boolean; temp?: string },
  ): Promise<number> {
    const confirm = () => {
      const denied = this.#deny(target, uid)
      if (denied !== OK || !this.#isKnown(target)) throw new CtxError("EACCES", `${target.name} is another's now`)
    }
    return this.#inTurn(() =>
      this.#inDir(target, async dirFd => {
        confirm()
        const bytes = read(dirFd)
        const refused = this.#judgeContent(target, bytes, uid)
        if (refused !== OK) return refused
        const facts = { ...this.#factsOf(target, dirFd), isNew }
        await publishFile(dirFd, target.name, bytes, facts, confirm)
        if (temp !== undefined) sys.unlinkat(dirFd, temp)
        this.#setting.onChange()
        return DONE
      }),
    )
  }

  #judgeContent({ kind, name, agent, tool }: Target, bytes: Buffer, uid: number): number {
    if (bytes.length > sizeMax({ kind } as Target)) return EFBIG
    if (tool !== undefined) return OK
    if (kind === "control" && (name === "owner" || name === "uid")) return parseOwner(bytes) === uid ? OK : EACCES
    // Without `owner` there is no agent whose executable this could be.
    if (kind === "executable" && readOwner(this.#setting.source, agent!) === undefined) return EINVAL
    return OK
  }

  #factsOf({ kind, tool, agent }: Target, dirFd: number): { mode: number; uid: number; gid: number } {
    const { owner, source } = this.#setting
    if (owner.uid !== 0) return { mode: kind === "control" ? 0o644 : 0o755, ...owner }
    if (tool !== undefined) return { mode: 0o644, uid: 0, gid: 0 }
    const definition = findEntry(source.dirFd, `agent/${agent}.d`) ?? findEntry(dirFd, ".")!
    return { mode: kind === "control" ? 0o644 : 0o755, uid: this.findOwner(agent!)!, gid: definition.gid }
  }

  /** Runs `work` after all that was begun before it. */
  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(work)
    this.#last = turn.catch(() => undefined)
    return turn
  }
}

/** Opening for writing: controls in place, `log` only to append, temporaries. */
function judgeOpen({ kind, name, publishes, tool }: Target, flags: number): number {
  if (publishes !== undefined) return OK
  if (kind !== "control") return EROFS
  if (tool !== undefined || name !== "log") return OK
  const isAppend = (flags & (O_WRONLY | O_RDWR)) !== 0 && (flags & (O_APPEND | O_TRUNC)) === O_APPEND
  return isAppend ? OK : EROFS
}

/** The bytes of a control, undefined when it is absent or cannot be read as one. */
function readControl(dirFd: number, rel: string): Buffer | undefined {
  if (findEntry(dirFd, rel)?.type !== "file") return undefined
  try {
    return readFileNofollow({ dirFd, name: rel }, CONTROL_MAX)
  } catch (error) {
    if (codeOf(error) === undefined) throw error
    return undefined
  }
}

/** The uid in the control `owner` of an agent; undefined when it is absent or malformed. */
export function readOwner(source: Source, agent: string): number | undefined {
  const bytes = readControl(source.dirFd, `agent/${agent}.d/owner`)
  return bytes && parseOwner(bytes)
}

/** The uid in the bytes of a value control; undefined when there is none. */
function parseOwner(bytes: Buffer): number | undefined {
  const text = bytes.toString("latin1")
  return text.endsWith("\n") && isUid(text.slice(0, -1)) ? Number(text) : undefined
}

/** fuse.md 6.4: `pid` names an existing process, or `status` says that one starts or stops. */
function isLive(source: Source, agent: string): boolean {
  const text = (name: string) => readControl(source.dirFd, `agent/${agent}.d/${name}`)?.toString("latin1") ?? ""
  if (["start\n", "stopping\n"].includes(text("status"))) return true
  const pid = /^([1-9][0-9]{0,9})\n$/.exec(text("pid"))?.[1]
  if (pid === undefined) return false
  try {
    process.kill(Number(pid), 0)
    return true
  } catch (error) {
    return codeOf(error) === "EPERM"
  }
}
