import { CtxError } from "../abi/error.js"
import type { ReferenceItem } from "./release.js"
import type { Change, Tree } from "./tree.js"

/** The `ensure` changes for items that are not there. Errors: `EINVAL` when something else stands where a directory is needed. */
export function planMissing(tree: Tree, items: ReferenceItem[]): Change[] {
  const changes: Change[] = []
  for (const { path, entry } of items) {
    const found = tree.find(path)
    if (!found) changes.push({ action: "ensure", path, entry })
    else if (entry.kind === "dir" && found.kind !== "dir") {
      throw new CtxError("EINVAL", `${path}: a directory is needed here`, { path, hint: "move it away" })
    }
  }
  return changes
}
