import { closeSync, constants, fstatSync, openSync, realpathSync, statSync } from "node:fs"
import { setTimeout as sleep } from "node:timers/promises"
import { CtxError, codeOf } from "../abi/error.js"
import { dataRootOf } from "../abi/path.js"
import { TREE_VERSION } from "../abi/product.js"
import { AT_FDCWD, flock, O_PATH, openat2 } from "../native/sys.js"
import { randomHex } from "./file.js"
import { findState } from "./state.js"

const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = constants
const PIN_RETRY_MS = 50
const PIN_WAIT_MS = 30_000
/** How often a tree that vanishes between its name and its open is looked up again. */
const OPEN_TRIES = 10

/** A reference tree that was resolved once (root-abi.md 8, "Source and data root"). */
export interface Source {
  /** resolved absolute path */
  dir: string
  /** directory descriptor; `O_PATH` from `openSource`, locked shared from `pinSource`; closed by the holder */
  dirFd: number
  /** directory name of the generation, `-` for a plain source */
  generation: string
  /** holds `home/` and `shared/` */
  dataRoot: string
  /** from the state file; 0 without one */
  treeVersion: number
}

function describeSource(dir: string, dirFd: number): Source {
  return { dir, dirFd, ...dataRootOf(dir), treeVersion: findState(dirFd)?.treeVersion ?? 0 }
}

/**
 * Resolves and opens a source for a short-lived reader: no lock, an `O_PATH` descriptor, so that a caller who may not
 * list a generation can still read known names in it (rolling-upgrades.md 3, 8). Errors: `ENOENT`, `ENOTDIR`,
 * `EACCES`, `EINVAL` for a malformed state file.
 */
export function openSource(path: string): Source {
  for (let tries = 1; ; tries++) {
    const dir = realpathSync.native(path)
    let dirFd: number
    try {
      dirFd = openat2(AT_FDCWD, dir, O_PATH | O_DIRECTORY | O_NOFOLLOW)
    } catch (error) {
      // A roll with prune between the two calls took the old name away; the link has a new one.
      if (codeOf(error) === "ENOENT" && tries < OPEN_TRIES) continue
      throw error
    }
    try {
      return describeSource(dir, dirFd)
    } catch (error) {
      closeSync(dirFd)
      throw error
    }
  }
}

/** Whether `path` still leads to the directory that is open as `dirFd`, under the name `dir`. */
function isStill(path: string, dir: string, dirFd: number): boolean {
  try {
    if (realpathSync.native(path) !== dir) return false
    const named = statSync(dir, { bigint: true })
    const opened = fstatSync(dirFd, { bigint: true })
    return named.dev === opened.dev && named.ino === opened.ino
  } catch (error) {
    if (codeOf(error) === "ENOENT") return false
    throw error
  }
}

/**
 * Resolves a source and holds a shared lock on it until the descriptor is closed, as every long-lived consumer must
 * (rolling-upgrades.md 8). While an update is quiescing it waits, at most `waitMs`. A generation is never pinned that
 * `path` no longer leads to. The descriptor is close-on-exec and the base of all later access.
 * Errors: `EBUSY` after the wait, `EPROTO` when a generation has another tree version, `ENOENT`, `ENOTDIR`, `EACCES`.
 */
export async function pinSource(path: string, waitMs = PIN_WAIT_MS): Promise<Source> {
  const deadline = Date.now() + waitMs
  for (;;) {
    const dir = realpathSync.native(path)
    let dirFd: number
    try {
      dirFd = openSync(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
    } catch (error) {
      if (codeOf(error) === "ENOENT" && Date.now() < deadline) continue
      throw error
    }
    let isPinned = false
    try {
      if (flock(dirFd, "sh")) {
        if (isStill(path, dir, dirFd)) {
          const source = describeSource(dir, dirFd)
          if (source.generation !== "-" && source.treeVersion !== TREE_VERSION) {
            throw new CtxError("EPROTO", `${dir} has tree_version ${source.treeVersion}, not ${TREE_VERSION}`, {
              path: dir,
              hint: "run ctx storage update",
            })
          }
          isPinned = true
          return source
        }
        if (Date.now() < deadline) continue
      }
    } finally {
      if (!isPinned) closeSync(dirFd)
    }
    if (Date.now() >= deadline) {
      throw new CtxError("EBUSY", `${dir} is locked by an update`, { path: dir, hint: "wait for ctx storage update" })
    }
    await sleep(PIN_RETRY_MS)
  }
}

/** Ends the hold of `openSource` or `pinSource`. */
export function unpinSource(source: Source): void {
  closeSync(source.dirFd)
}

/** A new generation name: `v<tree_version>-<YYYYMMDD>T<HHMMSS>Z-<8 hex>`, UTC (rolling-upgrades.md 4). */
export function formatGenerationName(treeVersion: number, nowMs = Date.now()): string {
  const stamp = `${new Date(nowMs).toISOString().slice(0, 19).replace(/[-:]/g, "")}Z`
  return `v${treeVersion}-${stamp}-${randomHex(4)}`
}
