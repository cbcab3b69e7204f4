// Appends to the two history files of one session (session-abi 6.3, 11). The caller holds the run lock.
import { type BigIntStats, closeSync, ftruncateSync } from "node:fs"
import { setTimeout as pause } from "node:timers/promises"
import { CtxError, codeOf } from "../abi/error.js"
import { ROW_MAX } from "../abi/limit.js"
import { flock } from "../native/sys.js"
import { writeAll } from "../store/file.js"
import { isSameEntry, openPlain, statFd } from "./entry.js"
import { syncFile } from "./fault.js"
import type { HistoryFile, Span } from "./scan.js"

/** Identity, length and times of both files at one moment. Equal stamps: nobody has written since. */
export interface Stamp {
  messages: BigIntStats
  events: BigIntStats
}

/** True when both files are, to all appearance, as they were. */
export function isSameStamp(a: Stamp, b: Stamp): boolean {
  return isSameFile(a.messages, b.messages) && isSameFile(a.events, b.events)
}

function isSameFile(a: BigIntStats, b: BigIntStats): boolean {
  return a.ino === b.ino && a.dev === b.dev && a.size === b.size && a.mtimeNs === b.mtimeNs && a.ctimeNs === b.ctimeNs
}

const HISTORY_WAIT_MS = 10_000

/**
 * Takes the history lock on an open `messages.jsonl`. Readers hold it only while they note two sizes and the recorder for one
 * append, so it is asked for again and again rather than by a waiting thread. Errors: `EIO` when it is not free within 10 s.
 */
export async function lockHistory(fd: number, kind: "sh" | "ex"): Promise<void> {
  const deadline = Date.now() + HISTORY_WAIT_MS
  for (let pauseMs = 1; !flock(fd, kind); pauseMs = Math.min(20, pauseMs * 2)) {
    if (Date.now() >= deadline) {
      throw new CtxError("EIO", "history is locked by another program", {
        path: "messages.jsonl",
        hint: "find it with lslocks",
      })
    }
    await pause(pauseMs)
  }
}

interface Tail {
  name: HistoryFile
  fd: number
  dev: bigint
  ino: bigint
  size: number
}

/**
 * What a failed write means to a client: `ENOSPC` when there is no room, `EAGAIN` when the index is held, otherwise `EIO`.
 */
export function refusalOf(e: unknown, what: string): CtxError {
  const code = codeOf(e)
  if (e instanceof CtxError && /^(EIO|ENOSPC|EMSGSIZE|EINVAL|EAGAIN)$/.test(e.code)) return e
  if (code === "ENOSPC" || code === "EDQUOT") {
    return new CtxError("ENOSPC", `no space for ${what}`, { hint: "free space and send again", cause: e })
  }
  return new CtxError("EIO", `${what} cannot be written`, { hint: "look at the file system", cause: e })
}

/**
 * Both history files, open for appending. Each append is made under the history lock, at exactly the end that was proven,
 * in whole lines; it either succeeds or leaves the file as it was.
 */
export class Journal {
  readonly #dirFd: number
  readonly #messages: Tail
  readonly #events: Tail
  #isBroken = false

  /** Opens both files and checks that they are those of `stamp`. Errors: `EIO`. */
  constructor(dirFd: number, stamp: Stamp) {
    this.#dirFd = dirFd
    this.#messages = openTail(dirFd, "messages.jsonl", stamp.messages)
    try {
      this.#events = openTail(dirFd, "events.jsonl", stamp.events)
    } catch (e) {
      closeSync(this.#messages.fd)
      throw e
    }
  }

  /** Lengths of both files. */
  get sizes(): { messages: number; events: number } {
    return { messages: this.#messages.size, events: this.#events.size }
  }

  /** Identity and times of both files now. */
  stamp(): Stamp {
    return { messages: statFd(this.#messages.fd), events: statFd(this.#events.fd) }
  }

  /**
   * Appends lines, each ending in LF. With `isDurable` they and everything before them in that file are on disk on return.
   * Returns where each line lies. Errors: `EMSGSIZE` a line is longer than a row may be; `EIO` the file is not as it was
   * left, or the disk failed; `ENOSPC`. After an error the file has its old length, or this journal refuses every call.
   */
  async append(file: HistoryFile, lines: readonly string[], isDurable: boolean): Promise<Span[]> {
    const tail = file === "messages.jsonl" ? this.#messages : this.#events
    const rows = lines.map(line => Buffer.from(line))
    if (rows.some(row => row.length > ROW_MAX)) {
      throw new CtxError("EMSGSIZE", `row of ${file} is longer than ${ROW_MAX} bytes`)
    }
    this.#checkSound()
    await lockHistory(this.#messages.fd, "ex")
    try {
      this.#checkTail(tail, tail.size)
      const bytes = Buffer.concat(rows)
      try {
        writeAll(tail.fd, bytes)
        if (isDurable) await syncFile(tail.fd)
      } catch (e) {
        await this.#cut(tail, tail.size, tail.size + bytes.length)
        throw refusalOf(e, file)
      }
      this.#checkTail(tail, tail.size + bytes.length)
      let offset = tail.size
      tail.size += bytes.length
      return rows.map(row => {
        const span = { offset, size: row.length }
        offset += row.length
        return span
      })
    } finally {
      flock(this.#messages.fd, "un")
    }
  }

  /**
   * Takes back what this journal appended since `sizes`, because the request it belonged to is refused as a whole.
   * Errors: `EIO`; then this journal refuses every further call, and what is stored is left to recovery.
   */
  async rollBack(sizes: { messages: number; events: number }): Promise<void> {
    this.#checkSound()
    await lockHistory(this.#messages.fd, "ex")
    try {
      // Events first: a start without its user row could not be proven.
      if (this.#events.size > sizes.events) await this.#cut(this.#events, sizes.events, this.#events.size)
      if (this.#messages.size > sizes.messages) await this.#cut(this.#messages, sizes.messages, this.#messages.size)
    } finally {
      flock(this.#messages.fd, "un")
    }
  }

  /** Closes both files. */
  close(): void {
    closeSync(this.#messages.fd)
    closeSync(this.#events.fd)
  }

  #checkSound(): void {
    if (this.#isBroken) throw new CtxError("EIO", "history could not be brought back to its proven end")
  }

  #checkTail(tail: Tail, size: number): void {
    const stat = statFd(tail.fd)
    const isOurs = stat.ino === tail.ino && stat.dev === tail.dev && isSameEntry(this.#dirFd, tail.name, stat)
    if (isOurs && stat.size === BigInt(size)) return
    this.#isBroken = true
    throw new CtxError("EIO", `${tail.name} is not as it was left`, {
      path: tail.name,
      hint: "another program wrote to it",
    })
  }

  // Only bytes that we wrote under the lock, behind a proven end, are ever cut.
  async #cut(tail: Tail, size: number, writtenEnd: number): Promise<void> {
    try {
      const stat = statFd(tail.fd)
      const isOurs = stat.ino === tail.ino && stat.dev === tail.dev && isSameEntry(this.#dirFd, tail.name, stat)
      if (!isOurs || stat.size < BigInt(size) || stat.size > BigInt(writtenEnd)) {
        throw new CtxError("EIO", `${tail.name} is not as it was left`)
      }
      ftruncateSync(tail.fd, size)
      await syncFile(tail.fd)
      this.#checkTail(tail, size)
      tail.size = size
    } catch (e) {
      this.#isBroken = true
      throw refusalOf(e, tail.name)
    }
  }
}

function openTail(dirFd: number, name: HistoryFile, stat: BigIntStats): Tail {
  const fd = openPlain(dirFd, name, true)
  const now = statFd(fd)
  if (now.ino === stat.ino && now.dev === stat.dev && now.size === stat.size) {
    return { name, fd, dev: now.dev, ino: now.ino, size: Number(now.size) }
  }
  closeSync(fd)
  throw new CtxError("EIO", `${name} is not as it was read`, { path: name, hint: "send again" })
}
