import { CtxError, codeOf } from "../abi/error.js"
import { planReconcile } from "./reconcile.js"
import { type Migration, type Release, stateOf } from "./release.js"
import { formatState, parseState, STATE_FILE } from "./state.js"
import { applyChanges, type Change, ShadowTree, type Tree } from "./tree.js"

/** Everything that would be made of a tree, in the order of execution (rolling-upgrades.md 11). */
export interface Plan {
  from: number
  to: number
  /** ids of the migrations that would run */
  migrations: string[]
  changes: Change[]
}

/**
 * The version of a tree; 0 without a state file. Errors: `EINVAL` for a malformed one, `EPROTO` for a version above the
 * release's; there is no downgrade (rolling-upgrades.md 5).
 */
export function readVersion(tree: Tree, release: Release): number {
  let bytes: Buffer
  try {
    bytes = tree.read(STATE_FILE)
  } catch (error) {
    if (codeOf(error) === "ENOENT") return 0
    throw error
  }
  const version = parseState(bytes).treeVersion
  if (version <= release.version) return version
  throw new CtxError("EPROTO", `tree_version ${version} is newer than ${release.version}`, {
    path: STATE_FILE,
    hint: "install the newer release",
  })
}

/** The migrations that a tree of version `from` needs, ascending. */
export function pendingMigrations(release: Release, from: number): Migration[] {
  return release.migrations.filter(migration => migration.version > from)
}

/** The change that writes the state file; none when its bytes are right. */
export function planState(tree: Tree, release: Release): Change[] {
  const data = formatState(stateOf(release))
  const found = tree.find(STATE_FILE)
  if (found?.kind === "file" && found.mode === 0o444 && tree.read(STATE_FILE).equals(data)) return []
  const { uid, gid } = tree.setting
  return [{ action: "write", path: STATE_FILE, entry: { kind: "file", data, mode: 0o444, uid, gid } }]
}

/**
 * Computes, without writing, what a release would make of a tree. Errors: `EINVAL` and `EPROTO` for a tree that is
 * refused, errno of reading.
 */
export function planTree(tree: Tree, release: Release): Plan {
  const from = readVersion(tree, release)
  const shadow = new ShadowTree(tree)
  const changes: Change[] = []
  const add = (more: Change[]) => {
    applyChanges(shadow, more)
    changes.push(...more)
  }
  const pending = pendingMigrations(release, from)
  for (const migration of pending) {
    changes.push({ action: "apply", path: `migration v${migration.version} ${migration.id}` })
    add(migration.plan(shadow))
  }
  add(planReconcile(shadow, release))
  add(planState(shadow, release))
  return { from, to: release.version, migrations: pending.map(migration => migration.id), changes }
}
