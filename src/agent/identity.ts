import { parseList, parseValue } from "../abi/control.js"
import { CtxError } from "../abi/error.js"
import { isUid } from "../abi/name.js"
import { findAccount } from "../native/sys.js"
import { findControl } from "../store/control.js"
import type { Source } from "../store/generation.js"

/** What a runtime becomes: the owner with the groups of the agent's controls. */
export interface Identity {
  uid: number
  gid: number
  groups: number[]
}

function readNumber(text: string, what: string): number {
  if (!isUid(text)) throw new CtxError("EINVAL", `${what} is not a decimal number`)
  return Number(text)
}

/**
 * Reads `owner`, `gid` and `groups` of an agent, the only controls that are looked at with the rights of root.
 * A gid or group that the owner's account does not have is refused. Errors: ENOENT (no such agent), EINVAL (malformed),
 * EPERM (owner 0, foreign group). agent-tool-security 3.1
 */
export function readIdentity(source: Source, name: string): Identity {
  const what = (control: string) => `agent/${name}.d/${control}`
  const owner = findControl(source.dirFd, what("owner"))
  if (owner === undefined) throw new CtxError("ENOENT", `agent ${name} does not exist`)
  const uid = readNumber(parseValue(owner, what("owner")), what("owner"))
  if (uid === 0) throw new CtxError("EPERM", `${what("owner")} is 0; an agent never runs as root`)
  const account = findAccount(uid) ?? { gid: uid, groups: [] }
  const gidBytes = findControl(source.dirFd, what("gid"))
  const gid = gidBytes === undefined ? account.gid : readNumber(parseValue(gidBytes, what("gid")), what("gid"))
  const groupBytes = findControl(source.dirFd, what("groups"))
  const lines = groupBytes === undefined ? [] : parseList(groupBytes, what("groups"))
  const groups = lines.map(line => readNumber(line, what("groups"))).filter(group => group !== gid)
  if (process.geteuid!() === 0) {
    const own = new Set([account.gid, ...account.groups])
    for (const group of [gid, ...groups]) {
      if (!own.has(group))
        throw new CtxError("EPERM", `gid ${group} is not a group of uid ${uid}; correct ${what("groups")}`)
    }
  }
  return { uid, gid, groups }
}

/** An unprivileged process must be the owner already. Errors: EPERM. units 2.12 */
export function checkOwner(identity: Identity): void {
  const uid = process.geteuid!()
  if (uid === 0 || uid === identity.uid) return
  throw new CtxError("EPERM", `uid ${uid} does not own this agent; start it as uid ${identity.uid}`)
}

/** Gives up root for good: groups, gid, uid, in this order. Nothing to give up is no error. Errors: EPERM. units 2.6 */
export function takeIdentity(identity: Identity): void {
  if (process.geteuid!() !== 0) return
  process.setgroups!(identity.groups)
  process.setgid!(identity.gid)
  process.setuid!(identity.uid)
  if (canBecomeRoot()) throw new CtxError("EPERM", "root rights could not be given up")
}

function canBecomeRoot(): boolean {
  try {
    process.setuid!(0)
    return true
  } catch {
    return false
  }
}
