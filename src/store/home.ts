import { closeSync, constants, fchownSync, fstatSync, readdirSync } from "node:fs"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import { AT_FDCWD, mkdirat, O_PATH, openat2, RESOLVE_NO_XDEV } from "../native/sys.js"
import { type Identity, readIdentity } from "./account.js"
import { RESOLVE_STRICT } from "./file.js"

const { O_RDONLY, O_DIRECTORY } = constants
const TIERS = ["agent", "model", "tool"]
const AGENT_DIRS = [
  "root",
  "session",
  "session/index",
  "session/index/by-cwd",
  "session/index/by-hash",
  "session/index/by-uuid",
  "data",
  "cache",
  "log",
]

/** Opens a directory below another one without following a link; `undefined` when something else has the name. */
function findDir(parentFd: number, path: string): number | undefined {
  try {
    return openat2(parentFd, path, O_RDONLY | O_DIRECTORY, 0, RESOLVE_STRICT | RESOLVE_NO_XDEV)
  } catch (error) {
    if (["ELOOP", "ENOTDIR", "ENOENT", "EXDEV", "EACCES"].includes(codeOf(error) ?? "")) return undefined
    throw error
  }
}

/** Makes a directory where nothing has the name. True when it was made. */
function ensureDir(parentFd: number, name: string, mode: number): boolean {
  try {
    mkdirat(parentFd, name, mode)
    return true
  } catch (error) {
    if (codeOf(error) === "EEXIST") return false
    throw error
  }
}

/**
 * Gives a directory to its owner when it is root's and empty: one that was just made, or one that an earlier run was
 * killed over. Works on the descriptor, so that no name an owner swaps meanwhile is handed over. It takes no rights of
 * the owner: the unit of an update may change files, but not become another user.
 */
function giveDir(parentFd: number, name: string, owner: Identity): void {
  const dirFd = findDir(parentFd, name)
  if (dirFd === undefined) return
  try {
    if (fstatSync(dirFd).uid === 0 && readdirSync(`/proc/self/fd/${dirFd}`).length === 0)
      fchownSync(dirFd, owner.uid, owner.gid)
  } finally {
    closeSync(dirFd)
  }
}

/** Makes the missing directories of `paths`, parents first, below an open home. What has a name already is left alone. */
function ensureBelow(homeFd: number, paths: string[], owner: Identity): void {
  for (const path of paths) {
    const cut = path.lastIndexOf("/")
    const parentFd = findDir(homeFd, cut < 0 ? "." : path.slice(0, cut))
    // Its owner has put a file or a link there; he may, and it must not stop the roll of everybody.
    if (parentFd === undefined) continue
    try {
      const name = path.slice(cut + 1)
      ensureDir(parentFd, name, 0o700)
      if (process.geteuid!() === 0 && owner.uid !== 0) giveDir(parentFd, name, owner)
    } finally {
      closeSync(parentFd)
    }
  }
}

/** `home/<uid>` of an owner, 0700 and his; one of root's that an earlier run was killed over is given to him. */
function openHome(rootFd: number, owner: Identity): number | undefined {
  const homesFd = openat2(rootFd, "home", O_RDONLY | O_DIRECTORY, 0, RESOLVE_STRICT)
  try {
    ensureDir(homesFd, String(owner.uid), 0o700)
    // A home may be a file system of its own.
    const homeFd = openat2(homesFd, String(owner.uid), O_RDONLY | O_DIRECTORY, 0, RESOLVE_STRICT)
    if (fstatSync(homeFd).uid === 0 && owner.uid !== 0) fchownSync(homeFd, owner.uid, owner.gid)
    return homeFd
  } finally {
    closeSync(homesFd)
  }
}

/** A managed agent and its owner's uid. */
export interface Resident {
  agent: string
  owner: number
}

/**
 * Makes what is missing of `home/`, `shared/`, the owners' homes and the agents' durable skeleton below a data root
 * (rolling-upgrades.md 6.1). It only creates, for the owner, never follows a link and changes nothing that is there.
 * Errors: errno of the system calls.
 */
export function ensureSkeleton(rootFd: number, residents: Resident[], dirMode: number): void {
  for (const name of ["home", "shared"]) ensureDir(rootFd, name, dirMode)
  for (const { agent, owner } of residents) {
    const identity = owner === 0 ? { uid: 0, gid: 0, groups: [] } : readIdentity(String(owner), `agent/${agent}`)
    const homeFd = openHome(rootFd, identity)
    if (homeFd === undefined) continue
    try {
      const paths = [...TIERS, `agent/${agent}`, ...AGENT_DIRS.map(dir => `agent/${agent}/${dir}`)]
      ensureBelow(homeFd, paths, identity)
    } finally {
      closeSync(homeFd)
    }
  }
}

/** Directories of one agent that a run needs, below `home/<uid>`. */
const RUN_DIRS = ["", "/root", "/session", "/data", "/cache", "/log"]

/**
 * Makes again what is missing of an agent's durable skeleton, as its owner, before a run. It only creates, 0700, never
 * follows a link and changes nothing that is there. Errors: those of the system calls, naming the directory and the
 * command that makes it.
 */
export function ensureAgentHome(dataRoot: string, owner: number, agent: string): void {
  const home = `home/${owner}`
  let at = home
  let homeFd: number | undefined
  const rootFd = openat2(AT_FDCWD, dataRoot, O_PATH | O_DIRECTORY)
  try {
    homeFd = openat2(rootFd, home, O_PATH | O_DIRECTORY, 0, RESOLVE_STRICT)
    for (const dir of ["agent", ...RUN_DIRS.map(name => `agent/${agent}${name}`)]) {
      at = `${home}/${dir}`
      ensureAt(homeFd, dir)
    }
  } catch (error) {
    const code = toCtxError(error).code
    const text = `${dataRoot}/${at} cannot be made or entered (${code}); see ls -ld of it, or run ctx storage update`
    throw new CtxError(code, text, { path: `${dataRoot}/${at}`, cause: error })
  } finally {
    if (homeFd !== undefined) closeSync(homeFd)
    closeSync(rootFd)
  }
}

function ensureAt(homeFd: number, dir: string): void {
  const cut = dir.lastIndexOf("/")
  const parent = cut < 0 ? "." : dir.slice(0, cut)
  const parentFd = openat2(homeFd, parent, O_PATH | O_DIRECTORY, 0, RESOLVE_STRICT | RESOLVE_NO_XDEV)
  try {
    ensureDir(parentFd, dir.slice(cut + 1), 0o700)
  } finally {
    closeSync(parentFd)
  }
}
