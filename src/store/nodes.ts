// Every node of a generation, judged by kind, mode and owner alone.
import { type BigIntStats, closeSync, fstatSync } from "node:fs"
import { parseValue } from "../abi/control.js"
import { codeOf } from "../abi/error.js"
import { CONTROL_MAX } from "../abi/limit.js"
import { isUid } from "../abi/name.js"
import { readFileNofollow } from "./file.js"
import { DEPTH_MAX, listNames, openDirAt, statAt } from "./walk.js"

const SETID = 0o6000n
/** `agent/NAME`, `agent/NAME.d` and what is in it, as latin1. */
const AGENT = /^agent\/([^/]+?)(?:\.d(?:\/.*)?)?$/s

/** Takes one fault: the path below the generation, in bytes, and the reason. */
export type OnFault = (path: Buffer, reason: string) => void

class Walk {
  readonly #dev: bigint
  readonly #owners = new Map<string, bigint | undefined>()

  constructor(
    readonly rootFd: number,
    readonly keeper: bigint,
    readonly onFault: OnFault,
  ) {
    this.#dev = fstatSync(rootFd, { bigint: true }).dev
  }

  dir(dirFd: number, parent: Buffer, depth: number): void {
    for (const name of listNames(dirFd)) {
      const path = parent.length === 0 ? name : Buffer.concat([parent, Buffer.from("/"), name])
      if (depth > DEPTH_MAX) {
        this.onFault(path, `deeper than ${DEPTH_MAX} directories`)
        return
      }
      try {
        this.#node(dirFd, name, path, depth)
      } catch (error) {
        // Gone or changed while it was looked at: the owner of a control directory may do that at any time.
        if (!["ENOENT", "ENOTDIR", "ELOOP"].includes(codeOf(error) ?? "")) throw error
      }
    }
  }

  #node(dirFd: number, name: Buffer, path: Buffer, depth: number): void {
    const stat = statAt(dirFd, name)
    const fault = this.#judge(stat, path.toString("latin1"))
    if (fault !== undefined) this.onFault(path, fault)
    if (!stat.isDirectory() || stat.dev !== this.#dev) return
    const fd = openDirAt(dirFd, name)
    try {
      const opened = fstatSync(fd, { bigint: true })
      if (opened.dev === stat.dev && opened.ino === stat.ino) this.dir(fd, path, depth + 1)
    } finally {
      closeSync(fd)
    }
  }

  #judge(stat: BigIntStats, path: string): string | undefined {
    if (stat.dev !== this.#dev) return "another file system is mounted here"
    const isLink = stat.isSymbolicLink()
    if (!stat.isFile() && !stat.isDirectory() && !isLink && !stat.isSocket()) {
      return "neither file, directory, link nor socket"
    }
    // Aliases of models are the only links of a tree.
    if (isLink && !/^model\/[^/]+$/s.test(path)) return "a link where none belongs"
    const [, agent] = AGENT.exec(path) ?? []
    const owner = agent === undefined ? undefined : this.#ownerOf(agent)
    if (stat.uid !== this.keeper && stat.uid !== owner) return `belongs to uid ${stat.uid}`
    if (isLink || stat.isSocket()) return undefined
    if ((stat.mode & SETID) !== 0n) return "has a set-id bit"
    const others = owner === undefined ? 0o022n : 0o002n
    return (stat.mode & others) === 0n ? undefined : `mode ${(stat.mode & 0o7777n).toString(8)}: others may write it`
  }

  /** The uid in an agent's `owner`; undefined when it says none. */
  #ownerOf(agent: string): bigint | undefined {
    if (!this.#owners.has(agent)) this.#owners.set(agent, this.#readOwner(agent))
    return this.#owners.get(agent)
  }

  #readOwner(agent: string): bigint | undefined {
    try {
      const bytes = readFileNofollow({ dirFd: this.rootFd, name: `agent/${agent}.d/owner` }, CONTROL_MAX)
      const value = parseValue(bytes, "owner")
      return isUid(value) ? BigInt(value) : undefined
    } catch {
      return undefined
    }
  }
}

/**
 * Walks a generation that is open as `rootFd` and tells of every node that has no place in it: by kind, set-id bits,
 * who may write it, whose it is (`keeper`'s, in an agent's control directory also the agent's owner's), links other than
 * the aliases, mounts, depth. Opens directories and `owner` controls only. Errors: `EACCES`, `EIO`. rolling-upgrades.md
 * 3, 7.1
 */
export function walkNodes(rootFd: number, keeper: number, onFault: OnFault): void {
  new Walk(rootFd, BigInt(keeper), onFault).dir(rootFd, Buffer.alloc(0), 1)
}
