import { closeSync, constants, lstatSync, openSync, readdirSync, type Stats } from "node:fs"
import { codeOf } from "../abi/error.js"
import { TEXT_MAX } from "./read.js"

const OPEN_DIR = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NONBLOCK

/** Input of `fs.list`, defaults filled in. */
export interface ListInput {
  path: string
  depth: number
  hidden: boolean
  limit: number
}

/** A name in an open directory; no other path is ever walked, so that nobody can put a link into it. */
function at(dirFd: number, name: Buffer): Buffer {
  return Buffer.concat([Buffer.from(`/proc/self/fd/${dirFd}/`), name])
}

function typeOf(facts: Stats): string {
  if (facts.isFile()) return "f"
  if (facts.isDirectory()) return "d"
  return facts.isSymbolicLink() ? "l" : "o"
}

class Lister {
  private lines: string[] = []
  private sizeBytes = 0
  private skipped = 0
  private isCut = false

  constructor(
    private readonly input: ListInput,
    private readonly escapeName: (name: Uint8Array) => string,
  ) {}

  text(): string {
    const { lines, skipped } = this
    const notes = this.isCut ? [`[cut: ${lines.length} entries shown; more exist]\n`] : []
    if (skipped > 0) notes.push(`[skipped: ${skipped} unreadable ${skipped === 1 ? "directory" : "directories"}]\n`)
    return [...lines, ...notes].join("")
  }

  list(dirFd: number, prefix: string, depth: number): void {
    const names = readdirSync(`/proc/self/fd/${dirFd}`, { encoding: "buffer" }).sort(Buffer.compare)
    for (const name of names) {
      if (this.isCut) return
      if (!this.input.hidden && name[0] === 0x2e) continue
      let facts: Stats
      try {
        facts = lstatSync(at(dirFd, name))
      } catch (e) {
        // Removed since the names were read.
        if (codeOf(e) === "ENOENT") continue
        throw e
      }
      const type = typeOf(facts)
      const path = prefix + this.escapeName(name)
      this.add(`${type}\t${type === "f" ? facts.size : "-"}\t${path}\n`)
      if (type === "d" && depth > 1 && !this.isCut) this.enter(dirFd, name, `${path}/`, depth - 1)
    }
  }

  private add(line: string): void {
    const size = Buffer.byteLength(line)
    if (this.lines.length >= this.input.limit || this.sizeBytes + size > TEXT_MAX) this.isCut = true
    else {
      this.lines.push(line)
      this.sizeBytes += size
    }
  }

  private enter(dirFd: number, name: Buffer, prefix: string, depth: number): void {
    let fd: number
    try {
      fd = openSync(at(dirFd, name), OPEN_DIR | constants.O_NOFOLLOW)
    } catch (e) {
      // No longer a directory: it was listed as what it was.
      if (!["ENOENT", "ENOTDIR", "ELOOP"].includes(codeOf(e) ?? "")) this.skipped++
      return
    }
    try {
      this.list(fd, prefix, depth)
    } finally {
      closeSync(fd)
    }
  }
}

/**
 * The result text of `fs.list`: one line an entry, depth first, by name in byte order, at most `limit` of them and
 * 15,360 bytes. Links below `path` are not followed. `escapeName` makes a name printable (ctx-coreutils 2.4).
 * Errors: ENOENT, ENOTDIR, EACCES for `path` itself. tool-policy-abi 5.3
 */
export function listDirectory(input: ListInput, escapeName: (name: Uint8Array) => string): string {
  const fd = openSync(input.path, OPEN_DIR)
  try {
    const lister = new Lister(input, escapeName)
    lister.list(fd, "", input.depth)
    return lister.text()
  } finally {
    closeSync(fd)
  }
}
