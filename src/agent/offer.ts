import { closeSync, constants } from "node:fs"
import { codeOf } from "../abi/error.js"
import type { ToolOffer } from "../model/driver.js"
import { AT_FDCWD, O_PATH, openat2 } from "../native/sys.js"
import { policyAllowsTool } from "../policy/decision.js"
import { checkPolicy, type Policy } from "../policy/policy.js"
import { type Agent, backingPath } from "../store/agent.js"
import type { Source } from "../store/generation.js"
import { readTool, type Tool } from "../store/tool.js"

function readPolicy(bytes: Buffer | undefined): Policy | undefined {
  return bytes && checkPolicy(bytes).policy
}

/** The first tool of that name on the agent's path that has a program; what cannot be read is not there. */
function findTool(source: Source, agent: Agent, name: string): Tool | undefined {
  for (const dir of agent.path) {
    try {
      const path = backingPath(source, dir).slice(0, -"/tool".length)
      const dirFd = openat2(AT_FDCWD, path, O_PATH | constants.O_DIRECTORY | constants.O_NOFOLLOW)
      try {
        const tool = readTool({ dir: path, dirFd }, name)
        if (tool.program !== undefined) return tool
      } finally {
        closeSync(dirFd)
      }
    } catch (e) {
      if (codeOf(e) === undefined) throw e
    }
  }
  return undefined
}

/**
 * What a model is shown of the tools in `names`: those that both policies let the agent run now, with description and
 * schema. It is a filter for sight; every call is authorised where it is made. tool-policy-abi 4
 */
export function listOffers(source: Source, agent: Agent, names: readonly string[]): ToolOffer[] {
  const policy = readPolicy(agent.policy)
  const offers: ToolOffer[] = []
  for (const name of names) {
    const tool = findTool(source, agent, name)
    if (tool === undefined || !policyAllowsTool(policy, readPolicy(tool.policy), agent.subject, name).allow) continue
    offers.push({ name, description: tool.description, schema: tool.schema })
  }
  return offers
}
