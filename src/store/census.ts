// What a storage holds, for people (ctx-coreutils.md "Further commands"). Reads only and takes no lock.
import { closeSync, constants } from "node:fs"
import { homedir } from "node:os"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import { isGenerationName } from "../abi/name.js"
import { storagePath, userStateDir } from "../abi/path.js"
import { AT_FDCWD, O_PATH, openat2, RESOLVE_NO_XDEV, readlinkat } from "../native/sys.js"
import { RESOLVE_STRICT } from "./file.js"
import { listHolders } from "./lock.js"
import { findState } from "./state.js"
import { listNames } from "./walk.js"

const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = constants

/** One generation as it is listed. */
export interface ListedGeneration {
  name: string
  /** undefined when the state file is missing or malformed */
  treeVersion: number | undefined
  /** `current` leads to it */
  isCurrent: boolean
  /** processes that hold it, as far as this process can see them */
  pids: number[]
}

/** The storage of the caller: that of the system for uid 0, else in the user's state directory (rolling-upgrades.md 2). */
export function defaultStorage(): string {
  if (process.geteuid!() === 0) return storagePath()
  return storagePath(userStateDir({ env: process.env, home: homedir() }))
}

/** Opens the storage directory itself, which may not be a link. Errors: `ENOENT`, `ENOTDIR`, `EACCES`, with a hint. */
export function openStorage(path: string): number {
  try {
    return openat2(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
  } catch (cause) {
    const { code } = toCtxError(cause)
    const hint = code === "ENOENT" ? "run ctx storage update, or name a storage that is there" : "name a real directory"
    throw new CtxError(code, path, { path, cause, hint })
  }
}

/** The generation that `current` names by exactly the text of rolling-upgrades.md 3; undefined for any other text. */
export function parseCurrent(text: string): string | undefined {
  const name = text.slice("generations/".length)
  return text === `generations/${name}` && isGenerationName(name) ? name : undefined
}

function findCurrent(storageFd: number): string | undefined {
  try {
    return parseCurrent(readlinkat(storageFd, "current").toString())
  } catch (error) {
    if (["ENOENT", "EINVAL"].includes(codeOf(error) ?? "")) return undefined
    throw error
  }
}

function findVersion(dirFd: number): number | undefined {
  try {
    return findState(dirFd)?.treeVersion
  } catch {
    return undefined
  }
}

/**
 * The generations of a storage, by name bytewise. What is no directory with the name of a generation is left out.
 * Errors: `ENOENT`, `ENOTDIR`, `ELOOP`, `EACCES`.
 */
export function listGenerations(path: string): ListedGeneration[] {
  const storageFd = openStorage(path)
  try {
    const current = findCurrent(storageFd)
    const generationsFd = openat2(storageFd, "generations", O_RDONLY | O_DIRECTORY, 0, RESOLVE_STRICT)
    try {
      const names = listNames(generationsFd).map(name => name.toString())
      return names.filter(isGenerationName).flatMap(name => {
        const dirFd = findDir(generationsFd, name)
        if (dirFd === undefined) return []
        try {
          const pids = listHolders(dirFd).map(holder => holder.pid)
          return [{ name, treeVersion: findVersion(dirFd), isCurrent: name === current, pids }]
        } finally {
          closeSync(dirFd)
        }
      })
    } finally {
      closeSync(generationsFd)
    }
  } finally {
    closeSync(storageFd)
  }
}

/** A directory whose entries need not be listed; undefined for anything else under the name. */
function findDir(parentFd: number, name: string): number | undefined {
  try {
    return openat2(parentFd, name, O_PATH | O_DIRECTORY, 0, RESOLVE_STRICT | RESOLVE_NO_XDEV)
  } catch (error) {
    if (["ENOENT", "ENOTDIR", "ELOOP", "EXDEV"].includes(codeOf(error) ?? "")) return undefined
    throw error
  }
}
