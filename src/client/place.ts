// Where the tree is: CTX_ROOT, CTX_HOME, CTX_PATH.

import { lstatSync, readdirSync } from "node:fs"
import { basename, dirname } from "node:path"
import { CtxError } from "../abi/error.js"
import { isCleanPath } from "../abi/name.js"
import { CTX_ROOT, homePath, isAtOrBelow, rootEntryPath, storageCurrent, userRootPath } from "../abi/path.js"

/** The three resolved locations of ctx-coreutils 2.2, and the caller's uid. All paths absolute. */
export interface Places {
  root: string
  home: string
  path: string
  uid: number
}

/**
 * Resolves CTX_ROOT, CTX_HOME and CTX_PATH; an empty variable counts as unset. Errors: EINVAL when a variable is no
 * clean absolute path. Implements ctx-coreutils 2.2, root-abi 7.
 */
export function resolvePlaces(env: NodeJS.ProcessEnv = process.env, uid = process.getuid?.() ?? 0): Places {
  const root = readVariable(env, "CTX_ROOT") ?? findRoot(uid)
  const home = readVariable(env, "CTX_HOME") ?? homePath(uid, root)
  const path = env.CTX_PATH || `${rootEntryPath("tool", root)}:${home}/tool`
  return { root, home, path, uid }
}

/**
 * The root when nobody names one: that of the system, unless only the user has an installation. What is installed
 * decides, not what is mounted now, so that a roll of the one never leads a command to the other. root-abi 7
 */
function findRoot(uid: number): string {
  const own = userRootPath(uid)
  if (uid === 0 || !isListed(own)) return CTX_ROOT
  return isThere(storageCurrent()) || isThere(rootEntryPath("status")) ? CTX_ROOT : own
}

/** Whether the directory above has such a name; a mount there, which may hang, is not touched. */
function isListed(path: string): boolean {
  try {
    return readdirSync(dirname(path)).includes(basename(path))
  } catch {
    return false
  }
}

function isThere(path: string): boolean {
  try {
    return lstatSync(path, { throwIfNoEntry: false }) !== undefined
  } catch {
    // What cannot be looked at is something all the same: a dead mount.
    return true
  }
}

/** True when the tree is that of the user's own installation, whose units his own service manager has. units 2.12 */
export function isUserRoot(places: Places): boolean {
  return places.uid !== 0 && places.root === userRootPath(places.uid)
}

/** The words that speak to the manager of this tree's units, for hints: `systemctl` or `systemctl --user`. */
export function systemctlOf(places: Places): string {
  return isUserRoot(places) ? "systemctl --user" : "systemctl"
}

/** Joins a root or directory and a relative path; a root `/` gives no double slash. */
export function join(dir: string, name: string): string {
  return dir === "/" ? `/${name}` : `${dir}/${name}`
}

/** ABI path (relative to CTX_ROOT) or absolute path to absolute path. Empty: the root. ctx-coreutils 2.3 PATH. */
export function absolutePath(places: Places, path: string): string {
  if (path.includes("\0")) throw new CtxError("EINVAL", "path holds a NUL byte", { hint: "give a path without NUL" })
  if (path === "" || path === ".") return places.root
  return path.startsWith("/") ? path : join(places.root, path)
}

/**
 * Makes sure that a tree is mounted at CTX_ROOT: it shows a `status` file. Errors: EHOSTDOWN. One lstat, so that
 * reading commands may ask first. Implements ctx-coreutils 2.5, 2.6.
 */
export function checkMounted(places: Places): void {
  try {
    if (lstatSync(rootEntryPath("status", places.root)).isFile()) return
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    if (code === "EACCES" || code === "EPERM") throw error
  }
  throw notMounted(places)
}

/** The same for a path, when it lies in the tree; a path outside needs no mount. Errors: EHOSTDOWN. */
export function checkMountedFor(places: Places, path: string): void {
  if (isAtOrBelow(path, places.root)) checkMounted(places)
}

/** The error for a missing mount: EHOSTDOWN with the command that starts it. */
export function notMounted(places: Places): CtxError {
  const isOfUnit = places.root === CTX_ROOT || isUserRoot(places)
  const hint = isOfUnit ? `${systemctlOf(places)} start cortexfs.service` : "start its mount or correct CTX_ROOT"
  return new CtxError("EHOSTDOWN", `${places.root} is not mounted`, { hint })
}

function readVariable(env: NodeJS.ProcessEnv, name: string): string | undefined {
  const value = env[name]
  if (value === undefined || value === "") return undefined
  if (!isCleanPath(value)) {
    throw new CtxError("EINVAL", `${name} is no clean absolute path`, { hint: `set ${name} to a path such as /ctx` })
  }
  return value
}
