import { fstatSync, readFileSync } from "node:fs"
import { basename } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import { flock } from "../native/sys.js"

const RETRY_MS = 50

/** A process that holds a lock, with the name of its program. */
export interface Holder {
  pid: number
  program: string
}

function readProgram(pid: number): string {
  try {
    const words = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0")
    const own = words.map(word => basename(word).replace(/\.js$/, "")).find(word => /^(?:cortexfs-|ctx)/.test(word))
    return own ?? readFileSync(`/proc/${pid}/comm`, "utf8").trim()
  } catch {
    return "-"
  }
}

/** `st_dev` as /proc/locks writes it. */
function formatDevice(dev: bigint): string {
  const major = ((dev >> 8n) & 0xfffn) | ((dev >> 32n) & 0xfffff000n)
  const minor = (dev & 0xffn) | ((dev >> 12n) & 0xffffff00n)
  return `${major.toString(16).padStart(2, "0")}:${minor.toString(16).padStart(2, "0")}`
}

/**
 * The processes that hold a flock on the open file, from /proc/locks, without this one. Where a file system shows
 * another device number there than to stat, the inode number alone decides. Holders outside this pid namespace are
 * not shown by the kernel.
 */
export function listHolders(fd: number): Holder[] {
  const stat = fstatSync(fd, { bigint: true })
  const rows = readFileSync("/proc/locks", "utf8")
    .split("\n")
    .map(line => line.trim().split(/\s+/))
    .filter(fields => fields[1] === "FLOCK" && fields[5]?.endsWith(`:${stat.ino}`))
  const exact = rows.filter(fields => fields[5] === `${formatDevice(stat.dev)}:${stat.ino}`)
  const pids = (exact.length > 0 ? exact : rows).map(fields => Number(fields[4]))
  return [...new Set(pids)]
    .filter(pid => pid > 0 && pid !== process.pid)
    .sort((a, b) => a - b)
    .map(pid => ({ pid, program: readProgram(pid) }))
}

/** Holders as a person reads them: `pid 812 cortexfs-mount`, several joined by a comma. */
export function formatHolders(holders: Holder[]): string {
  return holders.map(holder => `pid ${holder.pid} ${holder.program}`).join(", ") || "a process outside this namespace"
}

/**
 * Takes the exclusive lock, trying again until `waitMs` have passed; false when it is still held elsewhere.
 * It never blocks, so a signal is seen between two tries through `check`.
 */
export async function tryLock(fd: number, waitMs: number, check: () => Promise<void>): Promise<boolean> {
  const deadline = Date.now() + waitMs
  while (!flock(fd, "ex")) {
    if (Date.now() >= deadline) return false
    await sleep(RETRY_MS)
    await check()
  }
  return true
}
