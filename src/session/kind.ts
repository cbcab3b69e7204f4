// Which kind of entry each name of a session directory must be (session-abi 7).
import { fstatat } from "../native/sys.js"
import { listNames, wrongKind } from "./entry.js"

const FILES: ReadonlySet<string> = new Set([
  "messages.jsonl",
  "events.jsonl",
  "latest.md",
  "state",
  "cwd",
  "created_at",
  "updated_at",
  "meta.json",
  "AGENTS.md",
  "SKILLS.md",
])
const TORN = /^(messages|events)\.jsonl\.torn-[0-9]+$/
const DIRECTORIES: ReadonlySet<string> = new Set(["context", "pending", "snapshot", "terminal"])

const S_IFMT = 0o170000
const S_IFREG = 0o100000
const S_IFDIR = 0o040000

/**
 * Looks at every entry that has a name of the session layout, without opening any, so that no FIFO or socket can make it
 * wait. What is missing and what has another name is no matter. Errors: `EIO` a link, a special file, a directory for a file
 * or the reverse; `EACCES`.
 */
export function checkKinds(dirFd: number): void {
  for (const name of listNames(dirFd)) {
    const kind = FILES.has(name) || TORN.test(name) ? S_IFREG : DIRECTORIES.has(name) ? S_IFDIR : undefined
    if (kind !== undefined && (fstatat(dirFd, name).mode & S_IFMT) !== kind) throw wrongKind(name)
  }
}
