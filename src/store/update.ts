import { closeSync, constants, fchmodSync, fstatSync, fsyncSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isGenerationName } from "../abi/name.js"
import {
  fstatat,
  mkdirat,
  openat2,
  RENAME_NOREPLACE,
  RESOLVE_NO_XDEV,
  readlinkat,
  renameat2,
  symlinkat,
  syncfs,
  unlinkat,
} from "../native/sys.js"
import { cloneTree } from "./clone.js"
import { reach } from "./fault.js"
import { RESOLVE_STRICT, randomHex } from "./file.js"
import { formatGenerationName } from "./generation.js"
import { ensureSkeleton } from "./home.js"
import { formatHolders, listHolders, tryLock } from "./lock.js"
import { pendingMigrations, planState, readVersion } from "./plan.js"
import { type Generation, nameFailure, type PruneEntry, pruneGenerations, sweepLeftovers } from "./prune.js"
import { planReconcile } from "./reconcile.js"
import { RELEASE, type Release } from "./release.js"
import { listResidents } from "./resident.js"
import { checkRoot, closeRoots, lockUpdate, openRoots, type Roots, validateStoragePath } from "./root.js"
import { readSetting, type SettingOptions } from "./setting.js"
import { Interrupt } from "./signal.js"
import { applyChanges, DiskTree, type Setting } from "./tree.js"
import { verifyTree } from "./verify.js"
import { listNames, removeTree, syncTree } from "./walk.js"

const { O_RDONLY, O_DIRECTORY } = constants
const QUIESCE_MS = 2000
const NAME_TRIES = 3

/** How an update runs. */
export interface UpdateOptions extends SettingOptions {
  prune?: boolean
  /** another release than this product's: what tests of migrations use */
  release?: Release
}

/** What an update selected. */
export interface Updated {
  /** absolute path of the selected generation */
  path: string
  generation: string
  /** false when the selected generation was valid already */
  changed: boolean
  treeVersion: number
  /** what prune did with each other entry */
  entries: PruneEntry[]
}

class Update {
  constructor(
    readonly roots: Roots,
    readonly release: Release,
    readonly setting: Setting,
    readonly interrupt: Interrupt,
  ) {}

  readonly #check = () => this.interrupt.check()

  /** The generation that was selected before; locked when it was rolled. Its descriptor is closed by the caller. */
  current: Generation | undefined

  /** Steps 4 to 16. */
  async run(): Promise<{ generation: string; changed: boolean }> {
    reach("locked")
    sweepLeftovers(this.roots)
    reach("swept")
    await this.#check()
    const selected = this.#findCurrent()
    const current = selected ?? this.#findOnly()
    this.current = current
    if (current && this.#isValid(current)) {
      if (selected === undefined) this.#select(current)
      return { generation: current.name, changed: selected === undefined }
    }
    if (current) await this.#quiesce(current)
    reach("quiesced")
    await this.#check()
    return { generation: await this.#roll(current), changed: true }
  }

  /** Step 5. Never repaired or guessed. */
  #findCurrent(): Generation | undefined {
    const { storageFd, path } = this.roots
    const refuse = (why: string) =>
      new CtxError("EINVAL", `${path}/current: ${why}`, {
        path: `${path}/current`,
        hint: "remove or correct it by hand",
      })
    let text: string
    try {
      fstatat(storageFd, "current")
      text = readlinkat(storageFd, "current").toString()
    } catch (error) {
      if (codeOf(error) === "ENOENT") return undefined
      if (codeOf(error) === "EINVAL") throw refuse("not a symbolic link")
      throw error
    }
    const name = text.slice("generations/".length)
    if (text !== `generations/${name}` || !isGenerationName(name)) throw refuse(`leads to ${JSON.stringify(text)}`)
    try {
      return this.#open(name)
    } catch (error) {
      if (["ENOENT", "ENOTDIR", "ELOOP", "EXDEV"].includes(codeOf(error) ?? "")) {
        throw refuse(`generations/${name} is no directory`)
      }
      throw error
    }
  }

  /**
   * Step 5 without `current`: the only generation that was published, by a first run that was killed before its switch,
   * or one whose link was lost. Several are not guessed among.
   */
  #findOnly(): Generation | undefined {
    const { generationsFd, path } = this.roots
    const names = listNames(generationsFd)
      .map(name => name.toString())
      .filter(isGenerationName)
    if (names.length === 0) return undefined
    if (names.length === 1) return this.#open(names[0]!)
    throw new CtxError("EINVAL", `${path}/current: missing, beside ${names.sort().join(" ")}`, {
      path: `${path}/current`,
      hint: `ln -s generations/NAME ${path}/current`,
    })
  }

  #open(name: string): Generation {
    const { generationsFd, path } = this.roots
    const fd = openat2(generationsFd, name, O_RDONLY | O_DIRECTORY, 0, RESOLVE_STRICT | RESOLVE_NO_XDEV)
    try {
      checkRoot(fd, `${path}/generations/${name}`)
      return { name, fd }
    } catch (error) {
      closeSync(fd)
      throw error
    }
  }

  /** Steps 6 and 7. */
  #isValid(current: Generation): boolean {
    const tree = new DiskTree(current.fd, this.setting)
    readVersion(tree, this.release)
    try {
      verifyTree(tree, this.release, { isGeneration: true })
      return true
    } catch (error) {
      // A tree that has a fault is what a roll is for; it stops there if it cannot mend it.
      if (["EINVAL", "ENOENT"].includes(codeOf(error) ?? "")) return false
      throw error
    }
  }

  /** Step 8. */
  async #quiesce(current: Generation): Promise<void> {
    if (await tryLock(current.fd, QUIESCE_MS, this.#check)) return
    throw new CtxError("EBUSY", `generation ${current.name} pinned by ${formatHolders(listHolders(current.fd))}`, {
      path: `${this.roots.path}/generations/${current.name}`,
      hint: "stop its unit, then run again",
    })
  }

  /** Steps 9 to 16. */
  async #roll(current: Generation | undefined): Promise<string> {
    const stage = this.#makeStage()
    try {
      let isPublished = false
      try {
        await this.#fill(stage, current)
        this.#publish(stage)
        isPublished = true
        reach("published")
      } catch (error) {
        const named = nameFailure(error, `${this.roots.path}/generations/.stage-${stage.name}`)
        if (!isPublished) this.#removeStage(stage, named)
        throw named
      }
      this.#select(stage)
    } finally {
      closeSync(stage.fd)
    }
    return stage.name
  }

  #makeStage(): Generation {
    const { generationsFd } = this.roots
    for (let tries = 1; ; tries++) {
      const name = formatGenerationName(this.release.version)
      try {
        if (this.#exists(name)) throw new CtxError("EEXIST", `generations/${name} is taken`, { hint: "run it again" })
        mkdirat(generationsFd, `.stage-${name}`, 0o700)
        return { name, fd: openat2(generationsFd, `.stage-${name}`, O_RDONLY | O_DIRECTORY, 0, RESOLVE_STRICT) }
      } catch (error) {
        if (codeOf(error) !== "EEXIST" || tries === NAME_TRIES) throw error
      }
    }
  }

  #exists(name: string): boolean {
    try {
      fstatat(this.roots.generationsFd, name)
      return true
    } catch (error) {
      if (codeOf(error) === "ENOENT") return false
      throw error
    }
  }

  async #fill(stage: Generation, current: Generation | undefined): Promise<void> {
    reach("staged")
    await this.#check()
    if (current) await cloneTree(current.fd, stage.fd, this.#check)
    reach("cloned")
    const tree = new DiskTree(stage.fd, this.setting)
    for (const migration of pendingMigrations(this.release, readVersion(tree, this.release))) {
      await this.#check()
      migration.apply(tree)
    }
    reach("migrated")
    await this.#check()
    applyChanges(tree, planReconcile(tree, this.release))
    ensureSkeleton(this.roots.dataRootFd, listResidents(tree, this.release), this.setting.dirMode)
    reach("reconciled")
    await this.#check()
    applyChanges(tree, planState(tree, this.release))
    reach("stated")
    await this.#check()
    syncTree(stage.fd)
    syncfs(stage.fd)
    reach("synced")
    await this.#check()
    verifyTree(tree, this.release, { isGeneration: true })
    reach("validated")
    await this.#check()
  }

  /** Step 15: the stage gets its name only after every byte of it has reached the disk. */
  #publish(stage: Generation): void {
    const { generationsFd } = this.roots
    fchmodSync(stage.fd, this.setting.dirMode & 0o711)
    fsyncSync(stage.fd)
    renameat2(generationsFd, `.stage-${stage.name}`, generationsFd, stage.name, RENAME_NOREPLACE)
    fsyncSync(generationsFd)
  }

  /** Step 16: no signal is let in here. */
  #select(generation: Generation): void {
    const { storageFd } = this.roots
    const link = `.current-${randomHex(4)}`
    symlinkat(`generations/${generation.name}`, storageFd, link)
    try {
      fsyncSync(storageFd)
      reach("linked")
      renameat2(storageFd, link, storageFd, "current")
    } catch (error) {
      try {
        unlinkat(storageFd, link)
      } catch {
        // The next sweep takes it away.
      }
      throw error
    }
    reach("switched")
    fsyncSync(storageFd)
    this.#confirm(generation)
    reach("confirmed")
  }

  #confirm(generation: Generation): void {
    const again = this.#findCurrent()
    if (!again) throw new CtxError("internal", "current is gone right after the switch", { hint: "run it again" })
    try {
      const [read, made] = [fstatSync(again.fd, { bigint: true }), fstatSync(generation.fd, { bigint: true })]
      if (read.dev !== made.dev || read.ino !== made.ino) {
        throw new CtxError("internal", `current leads to ${again.name}, not ${generation.name}`, {
          hint: "run it again",
        })
      }
      const tree = new DiskTree(again.fd, this.setting)
      if (readVersion(tree, this.release) !== this.release.version || planState(tree, this.release).length > 0) {
        throw new CtxError("internal", `${again.name} has not the state of this release`, { hint: "run it again" })
      }
    } finally {
      closeSync(again.fd)
    }
  }

  #removeStage(stage: Generation, error: unknown): void {
    try {
      removeTree(this.roots.generationsFd, `.stage-${stage.name}`)
    } catch (residue) {
      const why = error instanceof Error ? error.message : String(error)
      const code = codeOf(error)
      throw new CtxError(
        (code ?? "internal") as CtxError["code"],
        `${why}; .stage-${stage.name} is left: ${codeOf(residue)}`,
        {
          cause: error,
          hint: "the next update removes it",
        },
      )
    }
  }
}

/** Checks the arguments of an update (step 1) without touching anything. Errors: `EINVAL`, `EPERM`. */
export function checkUpdateArguments(path: string, options: UpdateOptions = {}): Setting {
  validateStoragePath(path)
  return readSetting(options)
}

/**
 * Selects a valid generation of the storage at `path`, making one only when the current one is not (rolling-upgrades.md
 * 7). Whatever fails, `current` leads to the old valid generation or to the new one.
 * Errors: `EINVAL`, `EPROTO`, `ELOOP`, `ENOTDIR`, `EACCES`, `EBUSY` (another update, or a pinned generation when a new
 * one is needed), `EINTR` after a signal, errno of the system calls.
 */
export async function updateStorage(path: string, options: UpdateOptions = {}): Promise<Updated> {
  const setting = checkUpdateArguments(path, options)
  const release = options.release ?? RELEASE
  // Modes in section 3 are exact; a stricter umask of the caller must not change them.
  const umask = process.umask(0o022)
  const interrupt = new Interrupt()
  try {
    const roots = openRoots(path)
    try {
      const lockFd = lockUpdate(roots)
      const update = new Update(roots, release, setting, interrupt)
      try {
        const done = await update.run()
        const held = update.current?.name === done.generation ? undefined : update.current
        const entries = options.prune
          ? await pruneGenerations(roots, done.generation, held, () => interrupt.check())
          : []
        return { path: `${path}/generations/${done.generation}`, ...done, treeVersion: release.version, entries }
      } finally {
        if (update.current) closeSync(update.current.fd)
        closeSync(lockFd)
      }
    } finally {
      closeRoots(roots)
    }
  } finally {
    interrupt.close()
    process.umask(umask)
  }
}
