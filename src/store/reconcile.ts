import { CtxError } from "../abi/error.js"
import type { ReferenceItem, Release } from "./release.js"
import { STATE_FILE } from "./state.js"
import type { Change, Entry, Found, Tree } from "./tree.js"

/** Whether a file of the release is there with its bytes and mode. */
function isEqual(tree: Tree, path: string, found: Found, entry: Entry): boolean {
  if (entry.kind === "file") return found.mode === entry.mode && tree.read(path).equals(entry.data)
  return entry.kind === "link" ? tree.readLink(path) === entry.target : true
}

function planItem(tree: Tree, { path, rule, entry }: ReferenceItem): Change[] {
  const found = tree.find(path)
  if (!found) return [{ action: "ensure", path, entry }]
  const isDir = entry.kind === "dir"
  if (isDir !== (found.kind === "dir") || (rule === "release" && found.kind !== entry.kind)) {
    // A person's link in place of an operator control is his; its reader judges it.
    if (rule === "operator" && !isDir) return []
    throw new CtxError("EINVAL", `${path}: a ${entry.kind} is needed here, not a ${found.kind}`, {
      path,
      hint: "move it away",
    })
  }
  return rule === "operator" || isEqual(tree, path, found, entry) ? [] : [{ action: "change", path, entry }]
}

/** What lies in a directory of the release and is not its own, children first. */
function planStale(tree: Tree, dir: string, wanted: Set<string>): Change[] {
  const changes: Change[] = []
  for (const name of tree.list(dir)) {
    const path = `${dir}/${name}`
    if (tree.find(path)?.kind === "dir") changes.push(...planStale(tree, path, wanted))
    if (!wanted.has(path)) changes.push({ action: "remove", path })
  }
  return changes
}

/**
 * The pass that brings a tree to the shape of a release (rolling-upgrades.md 6.1): content of the release is made
 * equal byte for byte, what operators may change is made when missing, all else is kept.
 * Errors: `EINVAL` naming a path whose kind is wrong, and where no owner can be told for a new agent.
 */
export function planReconcile(tree: Tree, release: Release): Change[] {
  const items = release.listItems(tree)
  const wanted = new Set([STATE_FILE, ...items.map(item => item.path)])
  const changes = items.flatMap(item => planItem(tree, item))
  for (const dir of release.exactDirs) {
    if (tree.find(dir)) changes.push(...planStale(tree, dir, wanted))
  }
  return changes
}
