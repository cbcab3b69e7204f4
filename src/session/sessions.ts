import { closeSync } from "node:fs"
import { basename, dirname } from "node:path"
import { codeOf } from "../abi/error.js"
import { RECOVER_MAX } from "../abi/limit.js"
import { validateSessionName } from "../abi/name.js"
import { fstatat } from "../native/sys.js"
import { openDirectory } from "./entry.js"
import { checkIndex, ensureDirectory, ensureIndex, type IndexKeys, readCurrent, readList } from "./indices.js"
import { createSession, type Made, removeMade } from "./layout.js"
import type { Place } from "./place.js"
import { type Creation, Session } from "./session.js"

// The deepest place is .../home/<uid>/model/<provider>/<model>.d/session below an existing home.
const MISSING_MAX = 4

/** The sessions of one place and their index. */
export class Sessions {
  readonly place: Place
  readonly #known = new Map<string, { session: Session; ino: bigint; dev: bigint }>()

  constructor(place: Place) {
    this.place = place
  }

  /** The session of that name, undefined when absent. Errors: `EINVAL` name; `EIO` a symlink or special file stands there. */
  find(name: string): Session | undefined {
    validateSessionName(name)
    const sessionsFd = this.#openPlace()
    if (sessionsFd === undefined) return undefined
    try {
      const dirFd = openDirectory(name, sessionsFd)
      try {
        return this.#know(name, fstatat(dirFd, ""))
      } finally {
        closeSync(dirFd)
      }
    } catch (e) {
      if (codeOf(e) !== "ENOENT") throw e
      this.#known.delete(name)
      return undefined
    } finally {
      closeSync(sessionsFd)
    }
  }

  /**
   * Makes a session whole and shows it by one rename (session-abi 6.3 step 6); the run lock is held on return and its
   * history is open. Errors: `EEXIST` somebody was faster: find it; `EINVAL` name; `ENOENT` the home or space is missing;
   * `EIO`, `ENOSPC`.
   */
  async create(name: string, creation: Creation): Promise<Session> {
    validateSessionName(name)
    const made: Made[] = []
    let sessionsFd: number | undefined
    try {
      sessionsFd = await this.#ensurePlace(made)
      made.push(...(await ensureIndex(sessionsFd, this.place)))
      const lockFd = await createSession(sessionsFd, name, this.place, creation)
      const session = this.#know(name, fstatat(lockFd, ""))
      session.adoptLock(lockFd)
      try {
        await session.open()
      } catch (e) {
        session.close()
        throw e
      }
      return session
    } catch (e) {
      if (codeOf(e) !== "EEXIST") removeMade(made)
      throw e
    } finally {
      if (sessionsFd !== undefined) closeSync(sessionsFd)
    }
  }

  /** Checks the index files a send will touch (6.3 step 4). Errors: `EINVAL` bad body, or key bound to another session; `EIO`. */
  checkIndex(name: string, keys: IndexKeys): void {
    this.#withPlace(sessionsFd => checkIndex(sessionsFd, name, keys), undefined)
  }

  /** Names of the sessions, newest first. Errors: `EINVAL`, `EIO`. */
  list(): string[] {
    return this.#withPlace(readList, [])
  }

  /** `index/current`, undefined when missing. Errors: `EINVAL`, `EIO`. */
  readCurrent(): string | undefined {
    return this.#withPlace(readCurrent, undefined)
  }

  /** True when the named session holds a claim of that id; absence and damage are false (6.2, row 9). Changes nothing. */
  async hasClaim(name: string, clientId: string): Promise<boolean> {
    try {
      const session = this.find(name)
      await session?.inspect()
      return session?.findClaim(clientId) !== undefined
    } catch {
      return false
    }
  }

  /**
   * Opens, and so recovers, those of the newest `limit` listed sessions whose state is `active` (11). Returns their names,
   * with the code when one was refused.
   */
  async recoverActive(limit = RECOVER_MAX): Promise<{ session: string; code?: string }[]> {
    const opened: { session: string; code?: string }[] = []
    for (const name of this.list().slice(0, limit)) {
      try {
        const session = this.find(name)
        if (session?.readState() !== "active") continue
        await session.open()
        opened.push({ session: name })
      } catch (e) {
        opened.push({ session: name, code: codeOf(e) ?? "internal" })
      }
    }
    return opened
  }

  /** Gives up unsettled runs and releases every lock. */
  close(): void {
    for (const { session } of this.#known.values()) session.close()
    this.#known.clear()
  }

  #know(name: string, stat: { ino: bigint; dev: bigint }): Session {
    const known = this.#known.get(name)
    if (known !== undefined && known.ino === stat.ino && known.dev === stat.dev) return known.session
    const session = new Session(this.place, name)
    this.#known.set(name, { session, ino: stat.ino, dev: stat.dev })
    return session
  }

  #openPlace(): number | undefined {
    try {
      return openDirectory(this.place.dir)
    } catch (e) {
      if (codeOf(e) === "ENOENT") return undefined
      throw e
    }
  }

  #withPlace<T>(work: (sessionsFd: number) => T, absent: T): T {
    const sessionsFd = this.#openPlace()
    if (sessionsFd === undefined) return absent
    try {
      return work(sessionsFd)
    } finally {
      closeSync(sessionsFd)
    }
  }

  // Opens `session`, making what is missing above it, but never the home or space itself.
  async #ensurePlace(made: Made[]): Promise<number> {
    const missing: string[] = []
    let path = this.place.dir
    let fd: number
    for (;;) {
      try {
        fd = openDirectory(path)
        break
      } catch (e) {
        if (codeOf(e) !== "ENOENT" || missing.length === MISSING_MAX) throw e
        missing.unshift(basename(path))
        path = dirname(path)
      }
    }
    for (const name of missing) {
      let next: number
      try {
        next = await ensureDirectory(fd, name, path, this.place, made)
      } finally {
        closeSync(fd)
      }
      fd = next
      path = `${path}/${name}`
    }
    return fd
  }
}
