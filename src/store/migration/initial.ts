import { MODEL_ALIASES } from "../../abi/name.js"
import { planMissing } from "../missing.js"
import { agentItems } from "../reference/agent.js"
import { AGENT_NAMES } from "../reference/profile.js"
import { aliasItems, skeletonItems } from "../reference/skeleton.js"
import { toolItems } from "../reference/tool.js"
import type { Migration } from "../release.js"
import { applyChanges, type Change, type Tree } from "../tree.js"

function plan(tree: Tree): Change[] {
  const { setting } = tree
  return planMissing(tree, [
    ...skeletonItems(setting),
    ...aliasItems(setting, MODEL_ALIASES),
    ...toolItems(setting),
    ...agentItems(tree, AGENT_NAMES),
  ])
}

/**
 * Version 1: from nothing the directories, the aliases, the reference tools and the managed agents
 * (rolling-upgrades.md 6). What is there already is left alone.
 */
export const initialTree: Migration = {
  version: 1,
  id: "initial-tree",
  plan,
  apply: tree => applyChanges(tree, plan(tree)),
}
