import { type Dirent, lstatSync, readdirSync, type Stats, statSync } from "node:fs"
import { string } from "@oclif/core/args"
import { ROOT_ENTRIES } from "../abi/path.js"
import { CtxCommand } from "../client/command.js"
import { escapeBytes } from "../client/escape.js"
import { absolutePath, checkMountedFor } from "../client/place.js"

/** `ctx ls [PATH]`: names of a directory. Implements ctx-coreutils 3. */
export default class Ls extends CtxCommand {
  static override summary = "List a directory of the tree, one name a line"
  static override description =
    "The root in its fixed order, every other directory in byte order. Of a file its name is printed. Control characters in names are escaped. With --json rows of name and type: file, dir, link, socket or other."
  static override examples = ["<%= config.bin %> ls", "<%= config.bin %> ls agent", "<%= config.bin %> ls tool --json"]
  static override args = {
    path: string({ description: "path relative to CTX_ROOT, or absolute; default the root" }),
  }

  async run(): Promise<unknown> {
    const { args } = await this.parse(Ls)
    const path = absolutePath(this.places, args.path ?? "")
    checkMountedFor(this.places, path)
    const entries = statOrLink(path).isDirectory() ? readEntries(path, path === this.places.root) : [ownEntry(path)]
    await this.text(entries.map(entry => `${escapeBytes(entry.bytes)}\n`).join(""))
    return entries.map(({ bytes, type }) => ({ name: nameText(bytes), type }))
  }
}

interface Entry {
  bytes: Buffer
  type: "file" | "dir" | "link" | "socket" | "other"
}

// A dangling alias is listed by its name like any file.
function statOrLink(path: string): Stats {
  return statSync(path, { throwIfNoEntry: false }) ?? lstatSync(path)
}

function readEntries(path: string, isRoot: boolean): Entry[] {
  const found = readdirSync(path, { withFileTypes: true, encoding: "buffer" }) as unknown as Dirent<Buffer>[]
  const order = new Map<string, number>(isRoot ? ROOT_ENTRIES.map((name, i) => [name, i]) : [])
  const rank = (entry: Dirent<Buffer>): number => order.get(entry.name.toString("latin1")) ?? order.size
  found.sort((a, b) => rank(a) - rank(b) || Buffer.compare(a.name, b.name))
  return found.map(entry => ({ bytes: entry.name, type: typeOf(entry) }))
}

function ownEntry(path: string): Entry {
  const name = path.replace(/\/+$/, "").split("/").pop() ?? ""
  return { bytes: Buffer.from(name), type: typeOf(lstatSync(path)) }
}

// JSON has escapes of its own, but no way to hold a name that is no UTF-8.
function nameText(bytes: Buffer): string {
  const text = bytes.toString("utf8")
  return Buffer.from(text).equals(bytes) ? text : escapeBytes(bytes)
}

function typeOf(entry: Pick<Stats, "isFile" | "isDirectory" | "isSymbolicLink" | "isSocket">): Entry["type"] {
  if (entry.isFile()) return "file"
  if (entry.isDirectory()) return "dir"
  if (entry.isSymbolicLink()) return "link"
  return entry.isSocket() ? "socket" : "other"
}
