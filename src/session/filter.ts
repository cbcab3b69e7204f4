// Which sessions a gc is about (session-abi 13). Reads only.
import { matchGlob } from "./glob.js"
import { readLineValue, readMeta } from "./meta.js"

/** What must hold of a session, all of it; an empty filter selects every session. Ages are seconds. */
export interface Filter {
  /** The whole name matches one of these patterns. */
  match?: readonly string[]
  /** Created longer ago than this. */
  olderThanS?: number
  /** Last changed longer ago than this. */
  idleS?: number
  /** `temp`: the lifetime is `idle:N` and the session is idle longer than N; `keep`: it is kept. */
  lifetime?: "temp" | "keep"
}

/** True when the filter selects a session by its name. */
export function isNameSelected(filter: Filter, name: string): boolean {
  const { match } = filter
  return match === undefined || match.length === 0 || match.some(glob => matchGlob(glob, name))
}

/** True when a filter asks for more than the name. */
export function isAboutFiles(filter: Filter): boolean {
  return filter.olderThanS !== undefined || filter.idleS !== undefined || filter.lifetime !== undefined
}

/** True when the filter selects the open session directory by its files. What a filter needs and cannot read is not selected. */
export function isSelected(filter: Filter, dirFd: number, nowMs: number): boolean {
  const { olderThanS, idleS, lifetime } = filter
  try {
    if (olderThanS !== undefined && !isPast(dirFd, "created_at", olderThanS, nowMs)) return false
    if (idleS !== undefined && !isPast(dirFd, "updated_at", idleS, nowMs)) return false
    if (lifetime === undefined) return true
    const value = readMeta(dirFd).lifetime
    if (lifetime === "keep") return value === undefined || value === "keep"
    const idle = typeof value === "string" ? /^idle:([1-9][0-9]{0,8})$/.exec(value)?.[1] : undefined
    return idle !== undefined && isPast(dirFd, "updated_at", Number(idle), nowMs)
  } catch {
    return false
  }
}

function isPast(dirFd: number, file: string, ageS: number, nowMs: number): boolean {
  const text = readLineValue(dirFd, file)
  return text !== undefined && /^[0-9]{1,11}$/.test(text) && nowMs / 1000 - Number(text) > ageS
}
