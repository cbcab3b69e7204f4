// Which files of an index name which session: `by-cwd`, `by-hash`, `by-uuid`, each file read once (session-abi 13).
import { type BigIntStats, closeSync } from "node:fs"
import { codeOf } from "../abi/error.js"
import { INDEX_FILE_MAX } from "../abi/limit.js"
import { isName, isSessionName } from "../abi/name.js"
import { fstatat, RENAME_NOREPLACE } from "../native/sys.js"
import { isSameEntry, listNames, openDirectory, readEntry, removeEntry, statFd } from "./entry.js"
import { renameEntry } from "./fault.js"
import { KEY_DIRS } from "./indices.js"

/** One file of an index that names a session. */
export interface BoundKey {
  dirFd: number
  key: string
  dev: bigint
  ino: bigint
  ctimeNs: bigint
  session: string | undefined
}

interface KeyDir {
  fd: number
  /** Time of its last change as of the last reading; undefined before. */
  ctimeNs: bigint | undefined
  keys: Map<string, BoundKey>
}

/** The keys of one index. Every method but `close` needs the index lock. */
export class Bound {
  readonly #dirs: KeyDir[] = []
  #bySession = new Map<string, BoundKey[]>()

  /** `indexFd` is the open `index` directory. A directory of keys that is missing holds none. Errors: `EIO`. */
  constructor(indexFd: number) {
    for (const name of KEY_DIRS) {
      try {
        this.#dirs.push({ fd: openDirectory(name, indexFd), ctimeNs: undefined, keys: new Map() })
      } catch (e) {
        if (codeOf(e) !== "ENOENT") {
          this.close()
          throw e
        }
      }
    }
  }

  /** The open directories of keys. */
  get dirFds(): number[] {
    return this.#dirs.map(dir => dir.fd)
  }

  /** Reads what was changed by others since the last call; a file whose inode is known is not opened again. */
  refresh(): void {
    let isChanged = false
    for (const dir of this.#dirs) {
      const { ctimeNs } = statFd(dir.fd)
      if (ctimeNs === dir.ctimeNs) continue
      dir.keys = readKeys(dir)
      dir.ctimeNs = ctimeNs
      isChanged = true
    }
    if (!isChanged) return
    this.#bySession = new Map()
    for (const dir of this.#dirs) {
      for (const key of dir.keys.values()) {
        if (key.session === undefined) continue
        const keys = this.#bySession.get(key.session)
        if (keys === undefined) this.#bySession.set(key.session, [key])
        else keys.push(key)
      }
    }
  }

  /** Takes the changes that this process made under the lock as seen. */
  settle(): void {
    for (const dir of this.#dirs) dir.ctimeNs = statFd(dir.fd).ctimeNs
  }

  /** The keys that name a session. */
  keysOf(session: string): readonly BoundKey[] {
    return this.#bySession.get(session) ?? []
  }

  close(): void {
    for (const { fd } of this.#dirs) closeSync(fd)
  }
}

function readKeys(dir: KeyDir): Map<string, BoundKey> {
  const keys = new Map<string, BoundKey>()
  for (const key of listNames(dir.fd)) {
    if (!isName(key)) continue
    const known = dir.keys.get(key)
    const stat = findStat(dir.fd, key)
    if (stat === undefined) continue
    const { dev, ino, ctimeNs } = stat
    const isKnown = known !== undefined && known.dev === dev && known.ino === ino && known.ctimeNs === ctimeNs
    keys.set(key, isKnown ? known : { dirFd: dir.fd, key, dev, ino, ctimeNs, session: readTarget(dir.fd, key) })
  }
  return keys
}

function findStat(dirFd: number, name: string): ReturnType<typeof fstatat> | undefined {
  try {
    return fstatat(dirFd, name)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return undefined
    throw e
  }
}

/** The session that a file of an index names; undefined for one that names none, is no plain file or cannot be read. */
export function readTarget(dirFd: number, name: string): string | undefined {
  try {
    const text = readEntry(dirFd, name, INDEX_FILE_MAX)?.toString("latin1")
    const session = text?.slice(0, -1)
    return text?.endsWith("\n") && isSessionName(session) ? session : undefined
  } catch {
    return undefined
  }
}

const HIDDEN = /^\.(.+)\.gc-([0-9a-f]{1,16})$/

/** The key and the session's inode that the name of a hidden key says; undefined for any other name. */
export function parseHidden(name: string): { key: string; ino: bigint } | undefined {
  const match = HIDDEN.exec(name)
  return match === null || !isName(match[1]) ? undefined : { key: match[1], ino: BigInt(`0x${match[2]}`) }
}

/** The name of a hidden key of the session with that inode number. session-abi 13 */
export function formatHidden(key: string, ino: bigint): string {
  return `.${key}.gc-${ino.toString(16)}`
}

/**
 * Hides a key behind the session's inode number. False when it is another file by now, which then stays where it is.
 * Errors: `EEXIST` the hidden name is taken, and the system calls'.
 */
export function hideKey(key: BoundKey, session: Pick<BigIntStats, "ino">): boolean {
  const hidden = formatHidden(key.key, session.ino)
  try {
    renameEntry(key.dirFd, key.key, hidden, RENAME_NOREPLACE)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return false
    throw e
  }
  if (isSameEntry(key.dirFd, hidden, key)) return true
  showKey(key.dirFd, hidden, key.key)
  return false
}

/** Gives a hidden key its name back; where that was taken meanwhile the newer one counts. Errors: the system calls'. */
export function showKey(dirFd: number, hidden: string, key: string): void {
  try {
    renameEntry(dirFd, hidden, key, RENAME_NOREPLACE)
  } catch (e) {
    if (codeOf(e) === "EEXIST") removeEntry(dirFd, hidden)
    else if (codeOf(e) !== "ENOENT") throw e
  }
}
