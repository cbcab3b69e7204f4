// Verdicts that a zone alone cannot give (fuse.md 5.3, 5.5, 6.3): they need the caller's uid, a link's text or both
// sides of a rename. The engine asks once and then does the work itself.
import { ERRNO } from "../abi/errno.js"
import { isAlias, isName, isUid } from "../abi/name.js"
import { homePath, modelPath, terminalSocket } from "../abi/path.js"
import { parseAliasTarget } from "../store/catalogue.js"

const { EACCES, EINVAL, EROFS } = ERRNO
const OK = 0

/** One question of the engine, paths relative to the root of the mount. */
export interface Question {
  op: string
  path: string
  path2?: string
  target?: string
  flags: number
  uid: number
}

/** What the judge may ask of the tree. */
export interface Facts {
  /** R of root-abi 2.1. */
  findRoot(): string
  /** Owner of the agent NAME, undefined when there is none. */
  findOwner(agent: string): number | undefined
  /** True when the backing entry that is visible at `path` is a symlink. */
  isLink(path: string): boolean
}

/** The uid U that the place belongs to: the home's user, or in a space the owner of the agent. */
function findUser(path: string, facts: Facts): number | undefined {
  const parts = path.split("/")
  if (parts[0] === "home" && parts[1] !== undefined && isUid(parts[1])) return Number(parts[1])
  if (parts[0] === "shared" && parts[2] === "agent" && parts[3] !== undefined) return facts.findOwner(parts[3])
  return undefined
}

/** 0 when the engine may go on, else the errno. Order of refusals: fuse.md 4 rule 3. */
export function judge(question: Question, facts: Facts): number {
  const { op, path, path2, uid } = question
  if (op === "rename") return judgeRename(path, path2 ?? "", question.flags, uid, facts)
  if (op === "link") return EROFS
  const isAllowed = uid === findUser(path, facts)
  if (op === "symlink") {
    if (ALIAS.test(path) && !isAliasName(path)) return EROFS
    if (!isAllowed) return EACCES
    return isTargetAllowed(path, question.target ?? "", facts) ? OK : EINVAL
  }
  if (op === "mkdir" || op === "rmdir" || op === "unlink") return isAllowed ? OK : EACCES
  return EROFS
}

const ALIAS = /^home\/[^/]+\/model\/[^/]+$/
/** A temporary of fuse.md 6.1. */
const TEMP = /^\.([^/]*)\.tmp-[0-9]{1,10}-[A-Za-z0-9]{1,32}-[0-9]{1,4}$/
const TERMINAL_SOCKET = /^(home|shared)\/([^/]+)\/agent\/([^/]+)\/session\/([^/]+)\/terminal\/main\.sock$/

/** The last component is one of the six names or a temporary for one of them. */
function isAliasName(path: string): boolean {
  const name = path.slice(path.lastIndexOf("/") + 1)
  return isAlias(TEMP.exec(name)?.[1] ?? name)
}

function isTargetAllowed(path: string, target: string, facts: Facts): boolean {
  if (ALIAS.test(path)) {
    const model = parseAliasTarget(target)
    return model !== undefined && target === modelPath(model, undefined, facts.findRoot())
  }
  const [, , , agent, session] = TERMINAL_SOCKET.exec(path) ?? []
  if (agent === undefined || session === undefined || !isName(agent) || !isName(session)) return false
  const user = findUser(path, facts)
  if (user === undefined) return false
  try {
    return target === terminalSocket(user, agent, session)
  } catch {
    return false
  }
}

const RENAME_EXCHANGE = 2
const CONTEXT = /^(?:home|shared)\/[^/]+\/agent\/[^/]+\/session\/[^/]+\/(?:context|terminal)\/./
const TOOL = /^(?:home|shared)\/[^/]+\/tool\/./

/** Which of the places with rules of their own a path lies in; `plain` for all others that let a rename through. */
function placeOf(path: string): "alias" | "context" | "tool" | "plain" {
  if (ALIAS.test(path)) return "alias"
  if (CONTEXT.test(path)) return "context"
  return TOOL.test(path) ? "tool" : "plain"
}

/** Rows of 5.5 that neither side's zone decides alone: aliases among themselves, context, and links into `tool`. */
function judgeRename(path: string, path2: string, flags: number, uid: number, facts: Facts): number {
  const from = placeOf(path)
  const to = placeOf(path2)
  if (from === "alias" || to === "alias") {
    if (from !== to) return EROFS
    return uid === findUser(path, facts) ? OK : EACCES
  }
  // Context goes to context and plain; a tool is neither.
  if ((from === "context" && to === "tool") || (from === "tool" && to === "context")) return EROFS
  // No symlink is made in `tool` or `context`, so none comes in by another name either.
  if (to !== "plain" && facts.isLink(path)) return EROFS
  if ((flags & RENAME_EXCHANGE) !== 0 && from !== "plain" && facts.isLink(path2)) return EROFS
  return OK
}

/** The uid whose home is looked for at `path`, when `path` is exactly a home; else undefined. */
export function parseHome(path: string): number | undefined {
  const uid = path.slice("home/".length)
  return isUid(uid) && homePath(uid, "/") === `/${path}` ? Number(uid) : undefined
}
