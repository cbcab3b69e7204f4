import { parseValue } from "../abi/control.js"
import { refuse } from "../abi/issue.js"
import { isUid } from "../abi/name.js"
import type { Resident } from "./home.js"
import type { Release } from "./release.js"
import type { Tree } from "./tree.js"

/** The managed agents of a tree with the uid in their `owner` control. Errors: `EINVAL` when it is malformed, `ENOENT`. */
export function listResidents(tree: Tree, release: Release): Resident[] {
  return release.agents.map(agent => {
    const path = `agent/${agent}.d/owner`
    const owner = parseValue(tree.read(path), path)
    if (!isUid(owner)) refuse(path, "is not a decimal uid", 1)
    return { agent, owner: Number(owner) }
  })
}
