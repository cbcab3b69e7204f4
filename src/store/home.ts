import { closeSync, constants, fchownSync, fstatSync, readdirSync } from "node:fs"
import { codeOf } from "../abi/error.js"
import { mkdirat, openat2, RESOLVE_NO_XDEV } from "../native/sys.js"
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
