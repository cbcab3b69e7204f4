// Agents and their children, by the controls `parent`, `life` and `owner` (agent-runtime 14.3).

import { readdirSync, readFileSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { isName } from "../abi/name.js"
import { type ParentReference, parseParent } from "../abi/parent.js"
import { rootEntryPath } from "../abi/path.js"
import { AgentControls } from "./control.js"
import type { Places } from "./place.js"

/** An agent as a member of its family. */
export interface Kin {
  agent: string
  owner: number
  controls: AgentControls
  parent: ParentReference | undefined
}

/** Role of an agent by its name; undefined for none. ctx-coreutils 6 */
export function findRole(agent: string): "worker" | undefined {
  return agent === "worker" || agent.startsWith("worker-") ? "worker" : undefined
}

/** pid of a process's parent; undefined when there is no such process. */
export function findParentPid(pid: number): number | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1")
    return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1])
  } catch {
    return undefined
  }
}

/** Names of the agents in the tree, bytewise. */
export function listAgentNames(places: Places): string[] {
  return readdirSync(rootEntryPath("agent", places.root))
    .filter(name => name.endsWith(".d") && isName(name.slice(0, -2)))
    .map(name => name.slice(0, -2))
    .sort()
}

/** Reads one agent's place in its family. Errors: ENOENT (no such agent), EINVAL naming a malformed control. */
export async function readKin(places: Places, agent: string): Promise<Kin> {
  const controls = await AgentControls.open(places, agent)
  const value = await controls.readValue("parent")
  const parent = parseParent(value)
  if (parent === null) {
    const what = `agent/${agent}.d/parent is not agent:A[ session:S][ run:R]`
    throw new CtxError("EINVAL", what, { hint: `ctx cat agent/${agent}.d/parent` })
  }
  return { agent, owner: controls.owner, controls, parent }
}

/**
 * An agent and all its descendants, each after its parent, siblings by name. Only agents of the same owner count: a child
 * inherits its parent's. Errors: ENOENT; EINVAL for a cycle or a malformed control of an agent of this owner.
 */
export async function readDescent(places: Places, agent: string): Promise<Kin[]> {
  const first = await readKin(places, agent)
  const children = new Map<string, Kin[]>()
  for (const name of listAgentNames(places)) {
    if (!(await isOwnedBy(places, name, first.owner))) continue
    const kin = name === agent ? first : await readKin(places, name)
    if (kin.parent !== undefined) children.set(kin.parent.agent, [...(children.get(kin.parent.agent) ?? []), kin])
  }
  const found: Kin[] = []
  const add = (kin: Kin) => {
    if (found.some(known => known.agent === kin.agent)) {
      throw new CtxError("EINVAL", `agent/${kin.agent} is its own ancestor`, {
        hint: `ctx cat agent/${kin.agent}.d/parent`,
      })
    }
    found.push(kin)
    for (const child of children.get(kin.agent) ?? []) add(child)
  }
  add(first)
  return found
}

// An agent that goes while it is looked at, or says no owner, is nobody's child.
async function isOwnedBy(places: Places, agent: string, owner: number): Promise<boolean> {
  try {
    return (await AgentControls.open(places, agent)).owner === owner
  } catch (error) {
    if (["ENOENT", "EINVAL"].includes(codeOf(error) ?? "")) return false
    throw error
  }
}
