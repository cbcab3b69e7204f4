// The decision: what a policy allows (`tool-policy-abi.md` 7.1). Default deny; every refusal is final.
import type { ErrnoName } from "../abi/errno.js"
import { formatRule, type Policy, type PolicyClass, type Rule } from "./policy.js"

/** Whether something may be done; `rule` is the line that allows it, `code` the errno of the refusal (`naming.md` 4). */
export interface Decision {
  allow: boolean
  rule?: string
  code?: ErrnoName
}

/** The refusal of a policy. */
export const DENIED: Decision = Object.freeze({ allow: false, code: "EACCES" })

/** Classes whose rules are read but grant nothing. */
const WITHOUT_EFFECT: readonly PolicyClass[] = ["session", "mount"]

function findRule(policy: Policy | undefined, is: (r: Rule) => boolean): Decision {
  const rule = policy?.rules.find(is)
  return rule === undefined ? DENIED : { allow: true, rule: formatRule(rule) }
}

/**
 * Whether the policy has a rule for exactly this subject, class, object and permission. No policy (missing, malformed, unreadable)
 * denies everything; so does every question about a `session` or `mount` object.
 */
export function policyAllows(
  policy: Policy | undefined,
  subject: string,
  kind: PolicyClass,
  object: string,
  permission: string,
): Decision {
  if (WITHOUT_EFFECT.includes(kind)) return DENIED
  return findRule(
    policy,
    r => r.subject === subject && r.class === kind && r.object === object && r.permission === permission,
  )
}

/** Whether the policy allows a model by the reference as the agent's control has it, or by the `provider/model` it resolves to. */
export function policyAllowsModel(
  policy: Policy | undefined,
  subject: string,
  reference: string,
  resolved: string,
): Decision {
  const written = policyAllows(policy, subject, "model", reference, "use")
  return written.allow ? written : policyAllows(policy, subject, "model", resolved, "use")
}

/** Whether both the agent's and the tool's own policy allow the subject to execute the tool; `rule` is the agent's. */
export function policyAllowsTool(
  agentPolicy: Policy | undefined,
  toolPolicy: Policy | undefined,
  subject: string,
  tool: string,
): Decision {
  const agent = policyAllows(agentPolicy, subject, "tool", tool, "execute")
  if (!agent.allow) return agent
  const own = policyAllows(toolPolicy, subject, "tool", tool, "execute")
  return own.allow ? agent : own
}
