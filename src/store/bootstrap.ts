import { closeSync, constants, readlinkSync, realpathSync } from "node:fs"
import { CtxError, toCtxError } from "../abi/error.js"
import { dataRootOf } from "../abi/path.js"
import type { DoctorWord } from "../abi/status.js"
import { AT_FDCWD, flock, O_PATH, openat2, syncfs } from "../native/sys.js"
import { ensureSkeleton } from "./home.js"
import { formatHolders, listHolders } from "./lock.js"
import { type Plan, planTree } from "./plan.js"
import { RELEASE, type Release } from "./release.js"
import { listResidents } from "./resident.js"
import { checkRoot } from "./root.js"
import { readSetting, type SettingOptions } from "./setting.js"
import { findState, parseState, STATE_FILE } from "./state.js"
import { applyChanges, type Change, DiskTree } from "./tree.js"

const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = constants

/** How a bootstrap runs. */
export interface BootstrapOptions extends SettingOptions {
  /** another release than this product's: what tests of migrations use */
  release?: Release
}

/** What a check says of a tree (rolling-upgrades.md 11). */
export interface Checked {
  state: DoctorWord
  /** the one line to print */
  line: string
}

/** The real path of a source. Errors: `ENOENT`, `ENOTDIR` and others, with the path. */
function resolveSource(path: string): string {
  try {
    return realpathSync.native(path)
  } catch (cause) {
    const { code } = toCtxError(cause)
    throw new CtxError(code, path, { path, cause, hint: "name a directory that is there" })
  }
}

/** Opens the tree at `path` for reading, also where the caller may not list it. */
function openTree(path: string, options: BootstrapOptions): DiskTree {
  const dir = resolveSource(path)
  return new DiskTree(openat2(AT_FDCWD, dir, O_PATH | O_DIRECTORY | O_NOFOLLOW), readSetting(options))
}

/**
 * Says what this release would make of the tree at `path`. Writes nothing and takes no lock.
 * Errors: `EINVAL` and `EPROTO` for a tree that is refused, `ENOENT`, `ENOTDIR`, `EACCES`.
 */
export function planBootstrap(path: string, options: BootstrapOptions = {}): Plan {
  const tree = openTree(path, options)
  try {
    return planTree(tree, options.release ?? RELEASE)
  } finally {
    closeSync(tree.dirFd)
  }
}

/** The version in a tree's state file, also one that is refused; `undefined` when it cannot be told. */
export function findTreeVersion(path: string): number | undefined {
  const dirFd = openat2(AT_FDCWD, resolveSource(path), O_PATH | O_DIRECTORY | O_NOFOLLOW)
  try {
    return findState(dirFd)?.treeVersion
  } catch {
    return undefined
  } finally {
    closeSync(dirFd)
  }
}

/**
 * Compares the tree at `path` with this release. Writes nothing. What is wrong with the tree is in the result; errors
 * are only those of reaching it: `ENOENT`, `ENOTDIR`, `EACCES`, and those of the arguments.
 */
export function checkBootstrap(path: string, options: BootstrapOptions = {}): Checked {
  const release = options.release ?? RELEASE
  const tree = openTree(path, options)
  try {
    if (!tree.find(STATE_FILE)) return { state: "missing", line: "missing bootstrap" }
    const { from, to, changes } = planTree(tree, release)
    if (changes.length > 0) return { state: "stale", line: `stale bootstrap tree_version=${from}->${to}` }
    const migrations = parseState(tree.read(STATE_FILE)).appliedMigrations.join(",")
    return { state: "ok", line: `ok bootstrap tree_version=${to} migrations=${migrations}` }
  } catch (error) {
    if (!(error instanceof CtxError) || !["EINVAL", "EPROTO", "EFBIG"].includes(error.code)) throw error
    return { state: "invalid", line: `invalid bootstrap ${error.message}` }
  } finally {
    closeSync(tree.dirFd)
  }
}

/** Opens and locks a plain source for writing. */
function lockSource(path: string): number {
  const dir = resolveSource(path)
  const fd = openat2(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
  try {
    // The kernel's own name, so that no link makes a published generation look like a plain directory.
    if (dataRootOf(readlinkSync(`/proc/self/fd/${fd}`)).generation !== "-") {
      throw new CtxError("EBUSY", `${dir} is a published generation`, { path: dir, hint: "use ctx storage update" })
    }
    checkRoot(fd, dir)
    if (flock(fd, "ex")) return fd
    throw new CtxError("EBUSY", `${dir} is in use by ${formatHolders(listHolders(fd))}`, {
      path: dir,
      hint: "stop it, then run again",
    })
  } catch (error) {
    closeSync(fd)
    throw error
  }
}

/**
 * Brings a plain source directory to this release in place, the state file last (rolling-upgrades.md 11); killed
 * anywhere it leaves a tree that a second run completes. The durable skeleton of the managed agents is made below the
 * directory too, since it is its own data root. Consumers must be stopped.
 * Errors: `EBUSY` for a published generation and while a consumer or another run has the directory; `EINVAL`, `EPROTO`
 * for a tree that is refused, before anything is written; `EACCES` when others may write the directory.
 */
export function applyBootstrap(path: string, options: BootstrapOptions = {}): Plan {
  const release = options.release ?? RELEASE
  const setting = readSetting(options)
  const fd = lockSource(path)
  const umask = process.umask(0o022)
  try {
    const tree = new DiskTree(fd, setting)
    const plan = planTree(tree, release)
    const isState = (change: Change) => change.action === "write"
    applyChanges(
      tree,
      plan.changes.filter(change => !isState(change)),
    )
    ensureSkeleton(fd, listResidents(tree, release), setting.dirMode)
    if (plan.changes.length > 0) syncfs(fd)
    applyChanges(tree, plan.changes.filter(isState))
    if (plan.changes.some(isState)) syncfs(fd)
    return plan
  } finally {
    closeSync(fd)
    process.umask(umask)
  }
}

/** The lines of a plan in the order of execution; an up-to-date tree has only the first (rolling-upgrades.md 11). */
export function formatPlan(plan: Plan): string {
  const lines = [`tree_version=${plan.from}->${plan.to}`]
  if (plan.migrations.length > 0) lines.push(`migrations=${plan.migrations.join(",")}`)
  lines.push(...plan.changes.map(change => `would_${change.action} ${change.path}`))
  return lines.map(line => `${line}\n`).join("")
}
