import { CONTROL_MAX } from "../abi/control.js"
import { CtxError, codeOf } from "../abi/error.js"
import type { Decision } from "../policy/decision.js"
import { checkPolicy } from "../policy/policy.js"
import type { Agent } from "../store/agent.js"
import { readFileNofollow } from "../store/file.js"
import type { Host } from "./host.js"

/**
 * The EACCES of something that an agent's policy had to allow and did not, with the true reason: `wanted` is the rule
 * that is missing, unless the policy is malformed or cannot be read, or allows it (`decision`) and the interpreter does
 * not. Without a policy that can be read everything is denied. tool-policy-abi 7.1
 */
export function explainDenial(host: Host, agent: Agent, wanted: string, decision: Decision): CtxError {
  const what = `agent/${agent.name}.d/policy`
  if (decision.allow) return new CtxError("EACCES", `the policy interpreter of this host does not allow: ${wanted}`)
  if (agent.policy === undefined)
    return new CtxError("EACCES", `${what} ${findFault(host, what)}, so nothing is allowed`)
  const { issue } = checkPolicy(agent.policy, what)
  if (issue === undefined) return new CtxError("EACCES", `policy of agent ${agent.name} has no line: ${wanted}`)
  const place = issue.at === undefined ? what : `${what} line ${issue.at}`
  return new CtxError("EACCES", `${place}: EINVAL ${issue.why}, so nothing is allowed`)
}

function findFault(host: Host, what: string): string {
  try {
    readFileNofollow({ dirFd: host.source.dirFd, name: what }, CONTROL_MAX)
    return "could not be read a moment ago; send again"
  } catch (error) {
    const code = codeOf(error)
    if (code === "ENOENT") return "is missing"
    if (code === "ELOOP") return "is a symbolic link"
    if (code === "EISDIR" || code === "EINVAL") return "is not a regular file"
    if (code === "EFBIG") return `has more than ${CONTROL_MAX} bytes`
    return `cannot be read by the owner (${code})`
  }
}
