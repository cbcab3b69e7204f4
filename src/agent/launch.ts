import { readFileSync } from "node:fs"
import { basename } from "node:path"
import { escapeUnitName } from "../abi/path.js"
import type { UnitReceipt } from "../store/receipt.js"

/**
 * The unit that runs this process as the runtime of agent `name`: its own name from the cgroup, its invocation from the
 * environment. Undefined outside of such a unit, also for a process that merely inherited the variable from the unit it
 * was started in by hand. agent-runtime 16
 */
export function findUnit(name: string, env: NodeJS.ProcessEnv = process.env): UnitReceipt | undefined {
  const invocation = env.INVOCATION_ID
  if (invocation === undefined || !/^[0-9a-f]{32}$/.test(invocation)) return undefined
  const unit = `cortexfs-agent@${escapeUnitName(name)}.service`
  return listGroups().some(group => basename(group) === unit) ? { unit, invocation, isOwnedStart: true } : undefined
}

/** The cgroups of this process, of each hierarchy. */
function listGroups(): string[] {
  try {
    const lines = readFileSync("/proc/self/cgroup", "utf8").split("\n").filter(Boolean)
    return lines.map(line => line.slice(line.indexOf(":", line.indexOf(":") + 1) + 1))
  } catch {
    return []
  }
}
