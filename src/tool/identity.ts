import { CtxError } from "../abi/error.js"
import { findAccount } from "../native/sys.js"
import type { Agent } from "../store/agent.js"

/** What a payload runs as. */
export interface Identity {
  uid: number
  gid: number
  groups: number[]
  /** The launcher has another identity and must take this one before it starts bubblewrap. */
  isTaken: boolean
}

/**
 * The identity of an agent's payloads, checked against what the launcher may honour (agent-tool-security 3.1).
 * Errors: EPERM for uid 0, for a uid, gid or group the launcher cannot or may not set, and for a supplementary group
 * of an unprivileged launcher that `groups` does not list; EINVAL when `iso` and `uid` do not fit.
 */
export function checkIdentity(agent: Agent): Identity {
  const { uid, gid } = agent
  const groups = agent.groups.filter(group => group !== gid)
  if (uid === 0) throw new CtxError("EPERM", `agent ${agent.name}: a payload never runs as uid 0; set owner to a user`)
  if (agent.iso === "uid" ? uid === agent.owner : uid !== agent.owner) {
    throw new CtxError(
      "EINVAL",
      `agent/${agent.name}.d/uid: ${uid} does not go with owner ${agent.owner} and iso ${agent.iso}`,
    )
  }
  if (process.geteuid!() === 0) {
    checkMembership(agent, groups)
    return { uid, gid, groups, isTaken: false }
  }
  checkOwn(agent, groups)
  return { uid, gid, groups, isTaken: true }
}

/** A privileged launcher gives no group that the owner's account does not have. */
function checkMembership(agent: Agent, groups: number[]): void {
  const account = findAccount(agent.owner) ?? { gid: agent.owner, groups: [] }
  const allowed = new Set([account.gid, ...account.groups])
  if (agent.iso === "uid") allowed.add(findAccount(agent.uid)?.gid ?? agent.uid)
  for (const group of [agent.gid, ...groups]) {
    if (!allowed.has(group)) {
      throw new CtxError(
        "EPERM",
        `agent ${agent.name}: gid ${group} is not a group of uid ${agent.owner}; correct gid or groups`,
      )
    }
  }
}

/** An unprivileged launcher has the identity already or cannot get it. */
function checkOwn(agent: Agent, groups: number[]): void {
  const own = { uid: process.geteuid!(), gid: process.getegid!() }
  if (own.uid !== agent.uid || own.gid !== agent.gid) {
    throw new CtxError(
      "EPERM",
      `agent ${agent.name}: uid ${own.uid} gid ${own.gid} cannot run as ${agent.uid}:${agent.gid}; start it as its owner`,
    )
  }
  const has = new Set(process.getgroups!().filter(group => group !== agent.gid))
  for (const group of new Set([...has, ...groups])) {
    if (has.has(group) === groups.includes(group)) continue
    const why = has.has(group) ? "is not listed in groups" : "is not a group of this process"
    throw new CtxError("EPERM", `agent ${agent.name}: gid ${group} ${why}; make groups equal to those of the account`)
  }
}
