import { MODEL_ALIASES } from "../abi/name.js"
import { TREE_VERSION } from "../abi/product.js"
import { initialTree } from "./migration/initial.js"
import { agentItems } from "./reference/agent.js"
import { docItems } from "./reference/docs.js"
import { AGENT_NAMES } from "./reference/profile.js"
import { aliasItems, binItems, skeletonItems } from "./reference/skeleton.js"
import { toolItems } from "./reference/tool.js"
import { STATE_FILE } from "./state.js"
import type { Change, Entry, Tree } from "./tree.js"

/** One node of the reference tree: `release` is made equal to the release, `operator` made when missing (6.1). */
export interface ReferenceItem {
  path: string
  rule: "release" | "operator"
  entry: Entry
}

/** One step of the tree's form (rolling-upgrades.md 6). */
export interface Migration {
  /** `tree_version` after it, contiguous from 1 */
  version: number
  id: string
  /** Reads only; the changes it would make, in order; empty when there is nothing to do. Errors: `EINVAL` naming the path. */
  plan(tree: Tree): Change[]
  /** Makes exactly the changes that `plan` gives for the same tree. */
  apply(tree: Tree): void
}

/** What one product version makes of a tree. */
export interface Release {
  version: number
  migrations: Migration[]
  agents: readonly string[]
  aliases: readonly string[]
  /** directories in which nothing but the release's own is left */
  exactDirs: readonly string[]
  /** The reference tree in the order in which it is made. `tree` says whose the managed agents are that exist. */
  listItems(tree: Tree): ReferenceItem[]
}

/** The release of this product. */
export const RELEASE: Release = {
  version: TREE_VERSION,
  migrations: [initialTree],
  agents: AGENT_NAMES,
  aliases: MODEL_ALIASES,
  exactDirs: ["bin", "shared/cortexfs-docs"],
  listItems,
}

function listItems(tree: Tree): ReferenceItem[] {
  return [
    ...skeletonItems(tree.setting),
    ...aliasItems(tree.setting),
    ...toolItems(tree.setting),
    ...agentItems(tree),
    ...docItems(tree.setting),
    ...binItems(tree.setting),
  ]
}

/** The state file of a release (rolling-upgrades.md 5). */
export function stateOf(release: Release) {
  return {
    treeVersion: release.version,
    managedAgents: [...release.agents],
    appliedMigrations: release.migrations.map(migration => migration.id),
  }
}

/** Names in `bin/` of a release, the state file among them. */
export function binNames(items: ReferenceItem[]): string[] {
  const names = items.filter(item => /^bin\/[^/]+$/.test(item.path)).map(item => item.path.slice(4))
  return [...names, STATE_FILE.slice(4)].sort()
}
