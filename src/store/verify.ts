import { closeSync } from "node:fs"
import { isAgentAbi, parseValue } from "../abi/control.js"
import { CtxError, codeOf } from "../abi/error.js"
import { isModelReference, isUid } from "../abi/name.js"
import { parseAliasTarget } from "./catalogue.js"
import { planTree } from "./plan.js"
import { binNames, type Release } from "./release.js"
import type { DiskTree, Tree } from "./tree.js"
import { DEPTH_MAX, listNames, openDirAt, statAt } from "./walk.js"

const SETID = 0o6000n
const LABEL = /^(?:[A-Za-z0-9_]{1,32}:){2}[A-Za-z0-9_]{1,80}:[A-Za-z0-9_]{1,32}$/
const REQUIRED: [string, (value: string) => boolean][] = [
  ["owner", isUid],
  ["label", value => LABEL.test(value)],
  ["model", isModelReference],
]

function fault(path: string, why: string): CtxError {
  return new CtxError("EINVAL", `${path}: ${why}`, { path })
}

/** An agent as validity needs it: an executable, well-formed required controls. Errors: `EINVAL` naming the path. */
export function verifyAgent(tree: Tree, name: string): void {
  const path = `agent/${name}`
  const program = tree.find(path)
  if (program?.kind !== "file" || (program.mode & 0o111) === 0) throw fault(path, "no executable file")
  for (const [control, isGood] of REQUIRED) {
    const at = `${path}.d/${control}`
    if (!tree.find(at)) throw fault(at, "missing")
    if (!isGood(parseValue(tree.read(at), at))) throw fault(at, "malformed")
  }
  if (!isAgentAbi(tree.read(`${path}.d/abi`))) throw fault(`${path}.d/abi`, "not sdk-envelope-v1")
}

/**
 * Only regular files, directories, links and sockets, none with a set-id bit. By bytes and descriptors, since names and
 * depth are up to the owners of the control directories.
 */
function verifyKinds(dirFd: number, dir: string, depth: number): void {
  if (depth > DEPTH_MAX) throw fault(dir, `deeper than ${DEPTH_MAX} directories`)
  for (const name of listNames(dirFd)) {
    const path = dir === "" ? name.toString() : `${dir}/${name}`
    const stat = statAt(dirFd, name)
    const isKnown = stat.isFile() || stat.isDirectory() || stat.isSymbolicLink() || stat.isSocket()
    if (!isKnown) throw fault(path, "neither file, directory, link nor socket")
    if (!stat.isSymbolicLink() && (stat.mode & SETID) !== 0n) throw fault(path, "has a set-id bit")
    if (stat.isDirectory()) verifyKindsAt(dirFd, name, path, depth + 1)
  }
}

function verifyKindsAt(parentFd: number, name: Buffer | string, path: string, depth: number): void {
  const fd = openDirAt(parentFd, name)
  try {
    verifyKinds(fd, path, depth)
  } finally {
    closeSync(fd)
  }
}

/** How much of a tree the caller can list and is to be held to the shape of a generation. */
export interface VerifyOptions {
  /** a generation or a stage: no `home`, no space but `cortexfs-docs`; false for a plain source, which has both */
  isGeneration: boolean
}

/**
 * Proves that a tree on the disk is a valid tree of the release (rolling-upgrades.md 7.1). Writes nothing.
 * Errors: `EINVAL` naming the first fault, `EPROTO` for a newer tree, errno of reading.
 */
export function verifyTree(tree: DiskTree, release: Release, { isGeneration }: VerifyOptions): void {
  const plan = planTree(tree, release)
  const first = plan.changes[0]
  if (first) throw fault(first.path, `not as in this release (would ${first.action})`)
  for (const name of release.agents) verifyAgent(tree, name)
  for (const alias of release.aliases) {
    const path = `model/${alias}`
    if (tree.find(path)?.kind !== "link" || parseAliasTarget(tree.readLink(path)) === undefined) {
      throw fault(path, "not an alias of a model")
    }
  }
  const bin = tree.list("bin")
  const wanted = binNames(release.listItems(tree))
  if (bin.join("\n") !== wanted.join("\n")) throw fault("bin", `holds ${bin.join(" ")}, not ${wanted.join(" ")}`)
  if (isGeneration) {
    const shared = tree.list("shared")
    if (shared.join("\n") !== "cortexfs-docs") throw fault("shared", `holds ${shared.join(" ")}, not cortexfs-docs`)
    if (tree.find("home")) throw fault("home", "a generation has no home")
  }
  for (const dir of topDirs(tree, isGeneration)) verifyKindsAt(tree.dirFd, dir, dir === "." ? "" : dir, 1)
}

/** The directories to walk: the root, or what the tree must have when the root may not be listed or holds durable data. */
function topDirs(tree: Tree, isGeneration: boolean): string[] {
  const known = ["bin", "model", "agent", "tool", "shared"]
  if (!isGeneration) return known.slice(0, -1)
  try {
    tree.list("")
    return ["."]
  } catch (error) {
    if (codeOf(error) === "EACCES") return known
    throw error
  }
}
