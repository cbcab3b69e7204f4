// Where taken sessions go: an archive directory, or a hidden name that is removed afterwards (session-abi 13).
import { closeSync, constants, openSync } from "node:fs"
import { basename, dirname } from "node:path"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import { isAtOrBelow } from "../abi/path.js"
import { fstatat, O_PATH } from "../native/sys.js"
import { openDurable } from "./backing.js"
import { openDirectory, statFd } from "./entry.js"
import { ensureDirectory } from "./indices.js"
import type { Place } from "./place.js"

/** Name of the directory in a home that archived sessions lie in. */
export const ARCHIVE = "archived_sessions"

/** The directory `<base>/<name>/<agent>` that sessions of one agent are archived to. It is made when the first one is. */
export class Destination {
  /** Path as a person sees it. */
  readonly path: string
  readonly #base: () => number
  readonly #names: readonly [string, string]

  private constructor(path: string, base: () => number, names: readonly [string, string]) {
    this.path = path
    this.#base = base
    this.#names = names
  }

  /** `archived_sessions/<agent>` of an open home on the durable tree, shown at `home`. */
  static inHome(homeFd: number, home: string, agent: string): Destination {
    return new Destination(`${home}/${ARCHIVE}/${agent}`, () => openDirectory(".", homeFd), [ARCHIVE, agent])
  }

  /** `<dir>/<agent>`; `dir` is a clean absolute path whose parent exists. */
  static in(dir: string, agent: string): Destination {
    return new Destination(`${dir}/${agent}`, () => openDurable(dirname(dir)), [basename(dir), agent])
  }

  /**
   * Opens the directory if it is there. `dev` is the device it has or would have.
   * Errors: `ENOENT` nothing stands where it is to be made; `EIO` a link or file stands there; `EACCES`.
   */
  probe(): { fd: number | undefined; dev: bigint } {
    let fd = this.#base()
    for (const name of this.#names) {
      let next: number
      try {
        next = openDirectory(name, fd)
      } catch (e) {
        const { dev } = statFd(fd)
        closeSync(fd)
        if (codeOf(e) === "ENOENT") return { fd: undefined, dev }
        throw e
      }
      closeSync(fd)
      fd = next
    }
    return { fd, dev: statFd(fd).dev }
  }

  /** Opens the directory, making it durably, 0700, with the place's owner, where it is missing. Errors: as `probe`, `ENOSPC`. */
  async open(place: Place): Promise<number> {
    let fd = this.#base()
    for (const name of this.#names) {
      try {
        const next = await ensureDirectory(fd, name, this.path, place, [])
        closeSync(fd)
        fd = next
      } catch (e) {
        closeSync(fd)
        throw e
      }
    }
    return fd
  }
}

/**
 * What keeps a session from going into the open archive directory: `EXDEV` another device, `EEXIST` the name is taken.
 * `archiveFd` is undefined while the directory is not made.
 */
export function findObstacle(
  archiveFd: number | undefined,
  archiveDev: bigint,
  name: string,
  sessionDev: bigint,
): "EEXIST" | "EXDEV" | undefined {
  if (archiveDev !== sessionDev) return "EXDEV"
  if (archiveFd === undefined) return undefined
  try {
    fstatat(archiveFd, name)
    return "EEXIST"
  } catch (e) {
    if (codeOf(e) === "ENOENT") return undefined
    throw e
  }
}

/** The error of a session that could not be taken to `path`; `path` undefined when it was to be deleted. */
export function explainFailure(error: unknown, agent: string, session: string, path: string | undefined): CtxError {
  const { code, message, hint, syscall } = toCtxError(error)
  const what = `agent/${agent} session ${session}`
  const facts = (text: string) => ({ path, hint: text, cause: error })
  if (code === "EEXIST" && path !== undefined) {
    return new CtxError(code, `${what}: ${path} exists`, facts("move it away, or choose another --archive-dir"))
  }
  if (code === "EXDEV" && path !== undefined) {
    const text = `${what}: ${path} lies on another file system`
    return new CtxError(code, text, facts("choose an --archive-dir on the file system of the home"))
  }
  if (syscall === undefined) return new CtxError(code, `${what}: ${message}`, facts(hint ?? "run it again"))
  const hints =
    code === "EACCES" || code === "EPERM" ? "it is in place; act as its owner" : "it is in place; run it again"
  return new CtxError(code, `${what}: it cannot be moved`, facts(hints))
}

/** Makes sure that an archive directory and the live sessions of a home do not overlap. Errors: `EINVAL`. session-abi 13 */
export function checkApart(archiveDir: string, home: string, homeFd: number): void {
  const live = `${home}/agent`
  const overlap = new CtxError("EINVAL", `${archiveDir} overlaps the live sessions below ${live}`, {
    path: archiveDir,
    hint: `choose a directory that is neither above nor below ${live}`,
  })
  if (isAtOrBelow(archiveDir, live) || isAtOrBelow(live, archiveDir)) throw overlap
  // By inode too: a link, a bind and the durable tree's own path lead to the same place.
  const liveFd = findFd(() => openDirectory("agent", homeFd))
  if (liveFd === undefined) return
  try {
    const found = findFd(() => openDurable(archiveDir))
    const archiveFd = found ?? openDurable(dirname(archiveDir))
    try {
      if (isInside(archiveFd, liveFd) || (found !== undefined && isInside(liveFd, found))) throw overlap
    } finally {
      closeSync(archiveFd)
    }
  } finally {
    closeSync(liveFd)
  }
}

function findFd(open: () => number): number | undefined {
  try {
    return open()
  } catch (e) {
    if (codeOf(e) === "ENOENT") return undefined
    throw e
  }
}

// True when the directory is `outerFd` or lies below it.
function isInside(dirFd: number, outerFd: number): boolean {
  const outer = statFd(outerFd)
  let fd = openSync(`/proc/self/fd/${dirFd}`, constants.O_DIRECTORY | O_PATH)
  for (;;) {
    const now = statFd(fd)
    if (now.dev === outer.dev && now.ino === outer.ino) {
      closeSync(fd)
      return true
    }
    const up = openSync(`/proc/self/fd/${fd}/..`, constants.O_DIRECTORY | O_PATH)
    closeSync(fd)
    fd = up
    const above = statFd(fd)
    if (above.dev === now.dev && above.ino === now.ino) {
      closeSync(fd)
      return false
    }
  }
}
