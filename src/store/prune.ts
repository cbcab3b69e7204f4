import { closeSync, constants, fsyncSync, readlinkSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isGenerationName } from "../abi/name.js"
import { flock, openat2, RENAME_NOREPLACE, RESOLVE_NO_XDEV, renameat2 } from "../native/sys.js"
import { reach } from "./fault.js"
import { RESOLVE_STRICT } from "./file.js"
import { type Holder, listHolders } from "./lock.js"
import type { Roots } from "./root.js"
import { hasMountBelow, listNames, removeTree } from "./walk.js"

const { O_RDONLY, O_DIRECTORY } = constants

/** A generation that is open. */
export interface Generation {
  name: string
  fd: number
}

/** What a prune did with one entry of `generations/` (rolling-upgrades.md 9). */
export type PruneEntry =
  | { action: "pruned"; name: string }
  | { action: "kept"; name: string; why: "pinned"; pids: number[] }
  | { action: "kept"; name: string; why: "foreign mount" | "not a generation" }

/** The stdout line of an entry: `kept <GEN> pinned pid=812`. */
export function formatPruneEntry(entry: PruneEntry): string {
  if (entry.action === "pruned") return `pruned ${entry.name}`
  if (entry.why === "pinned") return `kept ${entry.name} pinned pid=${entry.pids.join(",")}`
  return `kept ${entry.name} ${entry.why}`
}

/** An error of a call that worked through a descriptor, with the directory that was worked on in its text. */
export function nameFailure(error: unknown, dir: string): unknown {
  const { code, path } = error as NodeJS.ErrnoException
  if (error instanceof CtxError || typeof path !== "string" || !path.startsWith("/proc/self/fd/")) return error
  const name = path.split("/").slice(5).join("/")
  return new CtxError(code as CtxError["code"], `${dir}: ${name} cannot be made, read or removed`, {
    path: dir,
    cause: error,
    hint: code === "EACCES" || code === "EPERM" ? "its owner or root has to remove it" : undefined,
  })
}

function removeLeftover(parentFd: number, name: Buffer, dir: string): void {
  try {
    removeTree(parentFd, name)
  } catch (error) {
    throw nameFailure(error, `${dir}/${name}`)
  }
}

/**
 * Removes what dead updates and prunes left: `.stage-*` and `.gone-*` in `generations/`, `.current-*` in storage
 * (step 4). The update lock is held, so none of them has an owner. Errors: errno of the first removal that fails.
 */
export function sweepLeftovers(roots: Roots): void {
  for (const name of listNames(roots.generationsFd)) {
    if (/^\.(?:stage|gone)-/.test(name.toString("latin1")))
      removeLeftover(roots.generationsFd, name, `${roots.path}/generations`)
  }
  for (const name of listNames(roots.storageFd)) {
    if (name.toString("latin1").startsWith(".current-")) removeLeftover(roots.storageFd, name, roots.path)
  }
}

function pruneOne(roots: Roots, name: string, isHeld: boolean): PruneEntry {
  const { generationsFd } = roots
  let fd: number
  try {
    fd = openat2(generationsFd, name, O_RDONLY | O_DIRECTORY, 0, RESOLVE_STRICT | RESOLVE_NO_XDEV)
  } catch (error) {
    const code = codeOf(error)
    if (code === "EXDEV") return { action: "kept", name, why: "foreign mount" }
    if (["ENOTDIR", "ELOOP"].includes(code ?? "")) return { action: "kept", name, why: "not a generation" }
    throw error
  }
  try {
    // The kernel's own name of the directory: a link above the storage must not hide a mount.
    if (hasMountBelow(readlinkSync(`/proc/self/fd/${fd}`))) return { action: "kept", name, why: "foreign mount" }
    if (!isHeld && !flock(fd, "ex")) {
      const pids = listHolders(fd).map((holder: Holder) => holder.pid)
      return { action: "kept", name, why: "pinned", pids }
    }
    renameat2(generationsFd, name, generationsFd, `.gone-${name}`, RENAME_NOREPLACE)
    fsyncSync(generationsFd)
    reach("pruning")
    removeTree(generationsFd, `.gone-${name}`)
    fsyncSync(generationsFd)
    return { action: "pruned", name }
  } finally {
    closeSync(fd)
  }
}

/**
 * Removes the generations that are neither `selected` nor pinned; all else is kept and said (rolling-upgrades.md 9). `held` is
 * the one that this update has locked itself, so that nobody can pin it between the switch and its removal.
 * Looks at nothing outside `generations/`. Errors: errno of a removal; what is done stays done.
 */
export async function pruneGenerations(
  roots: Roots,
  selected: string,
  held: Generation | undefined,
  check: () => Promise<void>,
): Promise<PruneEntry[]> {
  const entries: PruneEntry[] = []
  for (const bytes of listNames(roots.generationsFd)) {
    const name = bytes.toString()
    if (name === selected) continue
    await check()
    if (isGenerationName(name)) entries.push(pruneOne(roots, name, name === held?.name))
    else entries.push({ action: "kept", name, why: "not a generation" })
  }
  return entries
}
