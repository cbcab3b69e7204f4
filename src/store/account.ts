import { execFileSync } from "node:child_process"
import { CtxError } from "../abi/error.js"
import { isUid } from "../abi/name.js"
import { findAccount } from "../native/sys.js"

/**
 * The uid of a user name through the host's name service; `undefined` when there is none.
 * Errors: `EHOSTDOWN` when the name service cannot be asked.
 */
function findUid(user: string): number | undefined {
  // A word that begins with `-` would be an option of getent and is no user name.
  if (!/^[A-Za-z0-9_][A-Za-z0-9_.@$-]*$/.test(user)) return undefined
  let line: string
  try {
    line = execFileSync("/usr/bin/getent", ["passwd", user], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] })
  } catch (cause) {
    if ((cause as { status?: unknown }).status === 2) return undefined
    throw new CtxError("EHOSTDOWN", `account ${user}: getent gave no answer`, { cause, hint: "check /usr/bin/getent" })
  }
  const [name, , uid] = line.split(":")
  return name === user && isUid(uid) ? Number(uid) : undefined
}

/** uid, gid and supplementary groups (without the gid) that a new agent's controls get (agent-tool-security.md 3.1). */
export interface Identity {
  uid: number
  gid: number
  groups: number[]
}

/** The identity of the calling process. */
export function readOwnIdentity(): Identity {
  const uid = process.geteuid!()
  const gid = process.getegid!()
  const groups = process.getgroups!().filter(group => group !== gid)
  return { uid, gid, groups: [...new Set(groups)].sort((a, b) => a - b) }
}

/**
 * The identity for a uid or user name given by a person. A uid without an account has gid = uid; groups are empty.
 * Errors: `EINVAL` for uid 0, for text that is neither, and for a user that does not exist.
 */
export function readIdentity(user: string, what: string): Identity {
  const uid = isUid(user) ? Number(user) : findUid(user)
  if (uid === undefined) {
    throw new CtxError("EINVAL", `${what}: there is no user ${JSON.stringify(user)}`, { hint: "name a user or a uid" })
  }
  if (uid === 0)
    throw new CtxError("EINVAL", `${what}: agents never belong to uid 0`, { hint: "name an ordinary user" })
  return { uid, gid: findAccount(uid)?.gid ?? uid, groups: [] }
}

/** As `readIdentity`; `undefined` when there is no such user. */
export function findIdentity(user: string): Identity | undefined {
  return findUid(user) === undefined ? undefined : readIdentity(user, user)
}
