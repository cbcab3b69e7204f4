// A check of a storage as it lies on the disk: roots, links, state files, every node of every generation. It opens
// nothing outside of the storage, follows no link, opens no FIFO or device, and writes nothing.
import { type BigIntStats, closeSync, constants, fstatSync, readlinkSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isGenerationName } from "../abi/name.js"
import { openat2, RESOLVE_NO_XDEV, readlinkat } from "../native/sys.js"
import { openStorage, parseCurrent } from "./census.js"
import { RESOLVE_STRICT } from "./file.js"
import { walkNodes } from "./nodes.js"
import { planTree } from "./plan.js"
import { RELEASE, type Release } from "./release.js"
import { readSetting } from "./setting.js"
import { parseState, STATE_FILE } from "./state.js"
import { DiskTree, type Setting } from "./tree.js"
import { verifyAgent, verifyTree } from "./verify.js"
import { hasMountBelow, listNames, statAt } from "./walk.js"

const { O_RDONLY, O_DIRECTORY } = constants
const PERMISSIONS = 0o7777n
/** An error text that begins with the path it is about. */
const NAMED = /^((?:agent|bin|model|shared|tool)(?:\/[^\s:]+)?): (.*)$/s

/** One thing that is wrong; the path is absolute, its bytes may be no UTF-8. */
export interface StorageFault {
  path: Buffer
  reason: string
}

/** What is wrong, each path once. */
class Faults {
  readonly found: StorageFault[] = []
  readonly #paths = new Set<string>()

  constructor(readonly dir: Buffer) {}

  /** `path` is relative to the directory; empty for the directory itself. */
  add(path: Buffer | string, reason: string): void {
    const bytes = Buffer.from(path)
    const key = bytes.toString("latin1")
    if (this.#paths.has(key)) return
    this.#paths.add(key)
    this.found.push({
      path: bytes.length === 0 ? this.dir : Buffer.concat([this.dir, Buffer.from("/"), bytes]),
      reason,
    })
  }
}

function formatMode(mode: bigint): string {
  return (mode & PERMISSIONS).toString(8).padStart(4, "0")
}

class Check {
  readonly faults: Faults
  readonly #setting: Setting

  constructor(
    readonly path: string,
    readonly storageFd: number,
    readonly release: Release,
    libRoot: string | undefined,
  ) {
    this.faults = new Faults(Buffer.from(path))
    // A storage is its keeper's: root's, or the user's of a per-user installation, which root may check too.
    const uid = Number(fstatSync(storageFd, { bigint: true }).uid)
    this.#setting = { ...readSetting({ libRoot }), uid }
  }

  get #keeper(): bigint {
    return BigInt(this.#setting.uid)
  }

  run(): StorageFault[] {
    this.#checkRoot("", fstatSync(this.storageFd, { bigint: true }))
    this.#checkLock()
    const current = this.#checkCurrent()
    const generationsFd = this.#open(this.storageFd, "generations", "generations")
    if (generationsFd === undefined) return this.faults.found
    try {
      this.#checkRoot("generations", fstatSync(generationsFd, { bigint: true }))
      const names = listNames(generationsFd).map(name => name.toString())
      if (current !== undefined && !names.includes(current)) this.faults.add("current", "leads to nothing")
      for (const name of names.filter(isGenerationName)) this.#checkGeneration(generationsFd, name, name === current)
    } finally {
      closeSync(generationsFd)
    }
    return this.faults.found
  }

  /** Opens a directory of the storage; anything else under the name is a fault. */
  #open(parentFd: number, name: string, path: string): number | undefined {
    try {
      return openat2(parentFd, name, O_RDONLY | O_DIRECTORY, 0, RESOLVE_STRICT | RESOLVE_NO_XDEV)
    } catch (error) {
      const code = codeOf(error)
      if (code === "ENOENT") this.faults.add(path, "missing")
      else if (code === "ENOTDIR" || code === "ELOOP") this.faults.add(path, "no real directory")
      else if (code === "EXDEV") this.faults.add(path, "another file system is mounted here")
      else throw error
      return undefined
    }
  }

  #checkRoot(path: string, stat: BigIntStats): void {
    const own = [this.#keeper, BigInt(process.geteuid!()), 0n]
    if (!own.includes(stat.uid) || (stat.uid !== this.#keeper && stat.uid !== 0n)) {
      this.faults.add(path, `belongs to uid ${stat.uid}`)
    } else if ((stat.mode & 0o022n) !== 0n) this.faults.add(path, `mode ${formatMode(stat.mode)}: others may write it`)
  }

  #stat(name: string): BigIntStats | undefined {
    try {
      return statAt(this.storageFd, name)
    } catch (error) {
      if (codeOf(error) === "ENOENT") return undefined
      throw error
    }
  }

  #checkLock(): void {
    const stat = this.#stat(".update.lock")
    if (stat === undefined) return
    if (!stat.isFile()) this.faults.add(".update.lock", "no regular file")
    else if (stat.uid !== this.#keeper) this.faults.add(".update.lock", `belongs to uid ${stat.uid}`)
    else if ((stat.mode & PERMISSIONS) !== 0o600n) {
      this.faults.add(".update.lock", `mode ${formatMode(stat.mode)}, not 0600`)
    }
  }

  /** The name of the selected generation. */
  #checkCurrent(): string | undefined {
    const stat = this.#stat("current")
    if (stat === undefined) this.faults.add("current", "missing")
    else if (!stat.isSymbolicLink()) this.faults.add("current", "no link")
    if (!stat?.isSymbolicLink()) return undefined
    const text = readlinkat(this.storageFd, "current").toString()
    const name = parseCurrent(text)
    if (name === undefined) this.faults.add("current", `leads to ${JSON.stringify(text)}, not to generations/GEN`)
    return name
  }

  #checkGeneration(generationsFd: number, name: string, isCurrent: boolean): void {
    const path = `generations/${name}`
    const fd = this.#open(generationsFd, name, path)
    if (fd === undefined) {
      if (isCurrent) this.faults.add("current", "leads to no directory")
      return
    }
    try {
      // The kernel's own name of the directory: a link above the storage must not hide a mount.
      if (hasMountBelow(readlinkSync(`/proc/self/fd/${fd}`))) {
        this.faults.add(path, "something is mounted in it")
        return
      }
      const stat = fstatSync(fd, { bigint: true })
      const mode = this.#setting.uid === 0 ? 0o711n : 0o700n
      if (stat.uid !== this.#keeper) this.faults.add(path, `belongs to uid ${stat.uid}`)
      else if ((stat.mode & PERMISSIONS) !== mode) {
        this.faults.add(path, `mode ${formatMode(stat.mode)}, not ${formatMode(mode)}`)
      }
      walkNodes(fd, this.#setting.uid, (below, reason) => {
        this.faults.add(Buffer.concat([Buffer.from(`${path}/`), below]), reason)
      })
      this.#checkTree(fd, path, isCurrent)
    } finally {
      closeSync(fd)
    }
  }

  /** The content: the selected tree is held to the release, others to what their own state says. */
  #checkTree(fd: number, path: string, isCurrent: boolean): void {
    const tree = new DiskTree(fd, this.#setting)
    const faults = this.faults
    const add = (below: string, reason: string) => faults.add(below === "" ? path : `${path}/${below}`, reason)
    const guard = (below: string, work: () => void) => {
      try {
        work()
      } catch (error) {
        if (!["EINVAL", "ENOENT", "ENOTDIR", "ELOOP", "EXDEV", "EFBIG", "EPROTO"].includes(codeOf(error) ?? ""))
          throw error
        const { message } = error as Error
        const [, named, why] = NAMED.exec(message) ?? []
        add(named ?? (error instanceof CtxError ? error.path : undefined) ?? below, why ?? message)
      }
    }
    guard(STATE_FILE, () => {
      if (!tree.find(STATE_FILE)) return add(STATE_FILE, "missing")
      const state = parseState(tree.read(STATE_FILE))
      if (tree.find("home")) add("home", "a generation has no home")
      for (const name of state.managedAgents) guard(`agent/${name}`, () => verifyAgent(tree, name))
      if (state.treeVersion > this.release.version) {
        return add(
          STATE_FILE,
          `tree_version ${state.treeVersion} is newer than ${this.release.version} of this program`,
        )
      }
      // An older tree is whole in its own way until the next update.
      if (!isCurrent || state.treeVersion !== this.release.version) return
      const { changes } = planTree(tree, this.release)
      for (const change of changes) add(change.path, `not as in this release (would ${change.action})`)
      if (changes.length === 0) verifyTree(tree, this.release, { isGeneration: true })
    })
  }
}

/** What a storage is held to; the running product by default. */
export interface CheckOptions {
  release?: Release
  /** the installation that the executables of the selected generation name */
  libRoot?: string
}

/**
 * Checks a storage and gives what is wrong with it, in the order of the walk; nothing for a sound one. Leftovers of a
 * killed update are none of it: the next update removes them. Takes no lock; an update that runs meanwhile may be seen
 * half done. Errors: `ENOENT`, `ENOTDIR`, `ELOOP`, `EACCES` where the caller may not look, `EIO`. rolling-upgrades.md 3,
 * 5, 7.1; ctx-coreutils.md "Further commands"
 */
export function checkStorage(path: string, { release = RELEASE, libRoot }: CheckOptions = {}): StorageFault[] {
  const storageFd = openStorage(path)
  try {
    return new Check(path, storageFd, release, libRoot).run()
  } finally {
    closeSync(storageFd)
  }
}
