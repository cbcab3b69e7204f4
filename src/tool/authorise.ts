import { closeSync, constants, fstatSync, type Stats } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import type { JsonObject } from "../abi/json.js"
import { ARGS_MAX } from "../abi/limit.js"
import { isName } from "../abi/name.js"
import { homePath, rootEntryPath, sharedPath } from "../abi/path.js"
import {
  AT_FDCWD,
  fstatat,
  MS_NOEXEC,
  mountFlags,
  O_PATH,
  openat2,
  RESOLVE_BENEATH,
  RESOLVE_NO_MAGICLINKS,
  RESOLVE_NO_SYMLINKS,
} from "../native/sys.js"
import { policyAllows } from "../policy/decision.js"
import type { Interpreter } from "../policy/interpreter.js"
import { type Policy, parsePolicy } from "../policy/policy.js"
import { type Agent, backingPath } from "../store/agent.js"
import type { Source } from "../store/generation.js"
import { readTool, type Tool, type ToolPlace } from "../store/tool.js"
import type { ToolMode } from "./env.js"
import { findArgs, findJson, hasArgsProperty, isReferenceTool, parseArgs } from "./form.js"
import { validateInput } from "./schema.js"

const STRICT = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
const { O_DIRECTORY, O_NOFOLLOW, S_IFMT, S_IFREG } = constants

/** One call that was asked for. */
export interface ToolRequest {
  /** Read anew for this call. */
  agent: Agent
  source: Source
  name: string
  args: JsonObject
  /** The host's interpreter with what it is told besides; undefined when there is none. */
  interpreter?: Interpreter
  session?: string
  run?: string
  /** Told where the tool was found, `isSystem` in the tree, before anything else of it is judged. */
  onFound?: (place: ToolPlace, isSystem: boolean) => void
}

/** What a call is handed to the tool as. */
export type ToolInput =
  | { mode: "native"; input: JsonObject }
  | { mode: Exclude<ToolMode, "native">; args: string[]; stdin: string }

/** An authorised call. Holds the checked inode until `close`. */
export interface ToolGrant {
  tool: Tool
  agent: Agent
  /** O_PATH descriptor of the executable. */
  fd: number
  /** Backing path under which it was found. */
  path: string
  call: ToolInput
  close(): void
}

interface Hit {
  place: ToolPlace
  fd: number
  isSystem: boolean
}

function denied(name: string, why: string): CtxError {
  return new CtxError("EACCES", `tool/${name}: ${why}`)
}

function readPolicy(bytes: Buffer | undefined): Policy | undefined {
  try {
    return bytes && parsePolicy(bytes)
  } catch {
    return undefined
  }
}

/** The place behind a directory of CTX_PATH that the agent may see, opened; undefined when there is none. */
function findPlace(agent: Agent, source: Source, policy: Policy | undefined, dir: string): ToolPlace | undefined {
  const space = dir.startsWith(`${rootEntryPath("shared")}/`) ? dir.split("/")[3] : undefined
  const isVisible =
    dir === rootEntryPath("tool") ||
    dir === `${homePath(agent.owner)}/tool` ||
    (isName(space) &&
      dir === `${sharedPath(space)}/tool` &&
      policyAllows(policy, agent.subject, "shared", space, "read").allow)
  if (!isVisible) return undefined
  const path = backingPath(source, dir).slice(0, -"/tool".length)
  try {
    return { dir: path, dirFd: openat2(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0, RESOLVE_NO_MAGICLINKS) }
  } catch (e) {
    if (["ENOENT", "ENOTDIR", "ELOOP"].includes(codeOf(e) ?? "")) return undefined
    throw e
  }
}

function isProgram(mode: number): boolean {
  return (mode & S_IFMT) === S_IFREG && (mode & 0o111) !== 0
}

/** The executable of a name in one place; undefined when it is no hit. Errors: ELOOP when a link is put there meanwhile. */
function findProgram(place: ToolPlace, name: string): number | undefined {
  let dirFd: number
  try {
    dirFd = openat2(place.dirFd, "tool", O_PATH | O_DIRECTORY, 0, STRICT)
  } catch (e) {
    if (["ENOENT", "ENOTDIR", "ELOOP"].includes(codeOf(e) ?? "")) return undefined
    throw e
  }
  try {
    if (!isProgram(fstatat(dirFd, name).mode)) return undefined
    const fd = openat2(dirFd, name, O_PATH | O_NOFOLLOW, 0, STRICT)
    if (isProgram(fstatSync(fd).mode)) return fd
    closeSync(fd)
    return undefined
  } catch (e) {
    if (codeOf(e) === "ENOENT") return undefined
    throw e
  } finally {
    closeSync(dirFd)
  }
}

function findHit(request: ToolRequest, policy: Policy | undefined): Hit | undefined {
  const { agent, source, name } = request
  for (const dir of agent.path) {
    const place = findPlace(agent, source, policy, dir)
    if (place === undefined) continue
    let fd: number | undefined
    try {
      fd = findProgram(place, name)
      if (fd !== undefined) return { place, fd, isSystem: dir === rootEntryPath("tool") }
    } finally {
      if (fd === undefined) closeSync(place.dirFd)
    }
  }
  return undefined
}

/** Whether the mode bits let this identity execute the file. */
function isExecutable(file: Stats, agent: Agent): boolean {
  if (file.uid === agent.uid) return (file.mode & 0o100) !== 0
  if (file.gid === agent.gid || agent.groups.includes(file.gid)) return (file.mode & 0o010) !== 0
  return (file.mode & 0o001) !== 0
}

async function checkPolicies(request: ToolRequest, policy: Policy | undefined, readOwn: () => Tool): Promise<Tool> {
  const { agent, name, interpreter, session = "", run = "" } = request
  if (!policyAllows(policy, agent.subject, "tool", name, "execute").allow) {
    throw denied(name, `no rule of agent/${agent.name}.d/policy allows it`)
  }
  const tool = readOwn()
  if (!policyAllows(readPolicy(tool.policy), agent.subject, "tool", name, "execute").allow) {
    throw denied(name, `no rule of tool/${name}.d/policy allows ${agent.subject}`)
  }
  const question = {
    subject: agent.subject,
    class: "tool",
    object: name,
    permission: "execute",
    agent: agent.name,
    uid: agent.uid,
    session,
    run,
  } as const
  if (interpreter !== undefined && !(await interpreter.isAllowed(question))) {
    throw denied(name, "the policy interpreter does not allow it")
  }
  return tool
}

/** How the arguments reach the tool (tool-policy-abi 3.1), the input of a JSON form validated. */
async function readInput(tool: Tool, args: JsonObject, isReference: boolean): Promise<ToolInput> {
  const words = hasArgsProperty(tool.schema) ? undefined : findArgs(args)
  let input = args
  if (words !== undefined) {
    if (words.length > ARGS_MAX) throw new CtxError("EINVAL", `more than ${ARGS_MAX} arguments`)
    if (words.some(word => word.includes("\0"))) throw new CtxError("EINVAL", "an argument holds NUL")
    const json = isReference ? parseArgs(tool.name, words) : findJson(words)
    if (json === undefined) return { mode: "cli", args: words, stdin: "" }
    input = json
  }
  const filled = await validateInput(tool.schema, input, isReference)
  if (!tool.cap.includes("raw")) return { mode: "native", input: filled }
  const { args: rawArgs = [], stdin = "" } = filled
  if (!Array.isArray(rawArgs) || !rawArgs.every(arg => typeof arg === "string" && !arg.includes("\0"))) {
    throw new CtxError("EINVAL", "args of a raw tool are strings without NUL")
  }
  if (typeof stdin !== "string") throw new CtxError("EINVAL", "stdin of a raw tool is a string")
  return { mode: "raw", args: rawArgs as string[], stdin }
}

/**
 * Steps 3 to 10 of agent-tool-security 5.2 for one call: declared, found, opened, executable, allowed by both policies
 * and the interpreter, input valid. Everything is read anew; the first refusal is final and nothing is kept open.
 * The grant's inode is the one that must be executed; close the grant after the call.
 * Errors: EACCES, ENOENT, ELOOP, EINVAL.
 */
export async function authoriseTool(request: ToolRequest): Promise<ToolGrant> {
  const { agent, name, args } = request
  if (!isName(name)) throw new CtxError("EINVAL", `${JSON.stringify(name)} is not a tool name`)
  if (!agent.tools.includes(name)) throw denied(name, `not listed in agent/${agent.name}.d/tools`)
  const policy = readPolicy(agent.policy)
  const hit = findHit(request, policy)
  if (hit === undefined) throw new CtxError("ENOENT", `tool/${name}: not found in CTX_PATH`)
  let isGranted = false
  try {
    request.onFound?.(hit.place, hit.isSystem)
    if (!isExecutable(fstatSync(hit.fd), agent)) throw denied(name, `uid ${agent.uid} may not execute it`)
    if ((mountFlags(hit.fd) & MS_NOEXEC) !== 0) throw denied(name, "it lies on a noexec mount")
    const tool = await checkPolicies(request, policy, () => readTool(hit.place, name))
    const call = await readInput(tool, args, hit.isSystem && isReferenceTool(name))
    isGranted = true
    let isOpen = true
    const close = () => {
      if (isOpen) closeSync(hit.fd)
      isOpen = false
    }
    return { tool, agent, fd: hit.fd, path: tool.executable, call, close }
  } finally {
    closeSync(hit.place.dirFd)
    if (!isGranted) closeSync(hit.fd)
  }
}
