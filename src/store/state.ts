import { CtxError, codeOf } from "../abi/error.js"
import { parseJson } from "../abi/json.js"
import { readFileNofollow } from "./file.js"

/** Where the state lies in a reference tree. */
export const STATE_FILE = "bin/cortexfs.bootstrap.json"
const STATE_MAX = 65536
const KEYS = ["schema", "tree_version", "managed_agents", "applied_migrations"]

/** Content of `bin/cortexfs.bootstrap.json` (rolling-upgrades.md 5). */
export interface BootstrapState {
  treeVersion: number
  managedAgents: string[]
  appliedMigrations: string[]
}

function isTextList(value: unknown): value is string[] {
  return Array.isArray(value) && value.every(item => typeof item === "string")
}

/**
 * Parses the state file. Errors: `EINVAL` when it is not JSON, has another schema, a key too much or too few, or a
 * value of the wrong kind (rolling-upgrades.md 5). The version is not compared with anything here.
 */
export function parseState(bytes: Buffer): BootstrapState {
  const refuse = (why: string) => new CtxError("EINVAL", `${STATE_FILE}: ${why}`, { path: STATE_FILE })
  let value: unknown
  try {
    value = parseJson(bytes)
  } catch (cause) {
    throw new CtxError("EINVAL", `${STATE_FILE}: not a JSON document`, { path: STATE_FILE, cause })
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw refuse("not an object")
  const state = value as Record<string, unknown>
  const keys = Object.keys(state)
  if (keys.length !== KEYS.length || !KEYS.every(key => keys.includes(key))) {
    throw refuse(`has the keys ${keys.join(" ")}, not ${KEYS.join(" ")}`)
  }
  if (state.schema !== 1) throw refuse("schema is not 1")
  const version = state.tree_version
  if (typeof version !== "number" || !Number.isSafeInteger(version) || version < 0) {
    throw refuse("tree_version is not a whole number")
  }
  if (!isTextList(state.managed_agents)) throw refuse("managed_agents is not a list of names")
  if (!isTextList(state.applied_migrations)) throw refuse("applied_migrations is not a list of names")
  return { treeVersion: version, managedAgents: state.managed_agents, appliedMigrations: state.applied_migrations }
}

/** The bytes of the state file: two-space indent, fixed key order, one final LF (rolling-upgrades.md 5). */
export function formatState(state: BootstrapState): Buffer {
  const value = {
    schema: 1,
    tree_version: state.treeVersion,
    managed_agents: state.managedAgents,
    applied_migrations: state.appliedMigrations,
  }
  return Buffer.from(`${JSON.stringify(value, null, 2)}\n`)
}

/** Reads the state of the tree below `dirFd`; `undefined` when there is no file. Errors: `EINVAL`, errno of open. */
export function findState(dirFd: number): BootstrapState | undefined {
  try {
    return parseState(readFileNofollow({ dirFd, name: STATE_FILE }, STATE_MAX))
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined
    if (codeOf(error) === "EFBIG") throw new CtxError("EINVAL", `${STATE_FILE}: too long`, { path: STATE_FILE })
    throw error
  }
}
