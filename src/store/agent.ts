import { readdirSync } from "node:fs"
import { isAgentAbi, parseList, parsePairs, parseText, parseValue } from "../abi/control.js"
import { CtxError } from "../abi/error.js"
import { issueError, refuse } from "../abi/issue.js"
import { ENV_PAIRS_MAX, ENV_SIZE_MAX } from "../abi/limit.js"
import { isCleanPath, isModelReference, isName, isUid, validateName } from "../abi/name.js"
import { type ParentReference, parseParent } from "../abi/parent.js"
import { agentHomePath, CTX_ROOT, homePath, isAtOrBelow, rootEntryPath } from "../abi/path.js"
import { AGENT_ABI } from "../abi/product.js"
import { findAccount } from "../native/sys.js"
import { findControl } from "./control.js"
import type { Source } from "./generation.js"

/** One agent's definition as it is in the backing tree now; every control parsed and checked (agent-runtime.md 1). */
export interface Agent {
  name: string
  owner: number
  uid: number
  gid: number
  groups: number[]
  /** `user:role:type:level` */
  label: string
  /** the type field of the label */
  subject: string
  iso: "shared" | "uid" | "userns"
  /** `undefined` for a top-level agent */
  parent?: ParentReference
  life: "owned" | "temp"
  root: string
  cwd: string
  /** pairs of `env`, knobs included */
  env: Map<string, string>
  /** tool directories in order; joined with `:` they are `CTX_PATH` */
  path: string[]
  /** bytes of `mount`; empty when absent. Parsed and judged by `src/policy` */
  mount: Buffer
  /** alias or MODEL, as written */
  model: string
  abi: typeof AGENT_ABI
  /** bytes of `policy`; `undefined` when missing or unreadable, which denies everything */
  policy: Buffer | undefined
  approval: "auto" | "ask"
  /** declared direct-native tools; empty when the control is malformed */
  tools: string[]
  /** why `tools` counts as empty, to be reported in the run (agent-runtime.md 1) */
  toolsFault: CtxError | undefined
  /** tokens, or `auto` */
  window: number | "auto"
  /** `system.md`, `""` when absent */
  systemText: string
  /** `prompt.template.md`, `""` for the built-in one */
  templateText: string
  /** backing path of the program */
  executable: string
  /** backing path of `<name>.d` */
  controlDir: string
}

const TOOLS_MAX = 64
const LABEL = /^[A-Za-z0-9_]{1,32}:[A-Za-z0-9_]{1,32}:([A-Za-z0-9_]{1,80}):[A-Za-z0-9_]{1,32}$/
const ENV_KEY = /^[A-Za-z_][A-Za-z0-9_]{0,63}$/
/** Knobs that an agent's `env` may set, each with its range (agent-runtime.md 1). */
const KNOBS: Record<string, [number, number]> = {
  CTX_AGENT_STEPS: [1, 255],
  CTX_AGENT_APPROVAL_S: [1, 3600],
  CTX_AGENT_PENDING_S: [60, 604800],
  CTX_AGENT_SUMMARY: [0, 1],
  CTX_AGENT_LESSONS: [0, 1],
}
/** Names the runtime sets itself (agent-runtime.md 3). */
const RESERVED_ENV = new Set(["HOME", "PATH", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "PWD"])

/** True when `s` is a whole number without sign or leading zero within the range. */
function isNumber(s: string, low: number, high: number): boolean {
  return /^(?:0|[1-9][0-9]{0,9})$/.test(s) && Number(s) >= low && Number(s) <= high
}

/** Reads controls of one agent; every refusal names the control. */
class Controls {
  constructor(
    readonly source: Source,
    readonly name: string,
  ) {}

  what(control: string): string {
    return `agent/${this.name}.d/${control}`
  }

  find(control: string): Buffer | undefined {
    return findControl(this.source.dirFd, this.what(control))
  }

  findValue(control: string): string | undefined {
    const bytes = this.find(control)
    return bytes && parseValue(bytes, this.what(control))
  }

  /** A value that must be there; `isGood` decides whether it is accepted, `why` says what is needed. */
  getValue(control: string, isGood: (value: string) => boolean, why: string): string {
    const value = this.findValue(control)
    if (value === undefined) throw issueError({ kind: "missing", what: this.what(control), why: "is missing" })
    return isGood(value) ? value : refuse(this.what(control), why, 1)
  }

  /** As `getValue`, with a default for an absent file. */
  readValue(control: string, absent: string, isGood: (value: string) => boolean, why: string): string {
    const value = this.findValue(control) ?? absent
    return isGood(value) ? value : refuse(this.what(control), why, 1)
  }

  readText(control: string): string {
    const bytes = this.find(control)
    return bytes ? parseText(bytes, this.what(control)) : ""
  }
}

function readParent(controls: Controls): Agent["parent"] {
  const value = controls.findValue("parent") ?? ""
  const parent = parseParent(value)
  return parent === null ? refuse(controls.what("parent"), "is not agent:A[ session:S][ run:R]", 1) : parent
}

function readEnv(controls: Controls): Map<string, string> {
  const bytes = controls.find("env")
  const what = controls.what("env")
  const env = bytes ? parsePairs(bytes, what) : new Map<string, string>()
  if (env.size > ENV_PAIRS_MAX || (bytes?.length ?? 0) > ENV_SIZE_MAX)
    refuse(what, `is over ${ENV_PAIRS_MAX} pairs or ${ENV_SIZE_MAX} bytes`)
  let line = 0
  for (const [key, value] of env) {
    line++
    if (!ENV_KEY.test(key)) refuse(what, `${key} is longer than 64 bytes`, line)
    const range = Object.hasOwn(KNOBS, key) ? KNOBS[key] : undefined
    if (range) {
      if (!isNumber(value, ...range)) refuse(what, `${key} is not a number from ${range[0]} to ${range[1]}`, line)
    } else if (/^(?:CTX_|LD_)/.test(key) || RESERVED_ENV.has(key)) {
      refuse(what, `${key} is not an agent's to set`, line)
    }
  }
  return env
}

function readGroups(controls: Controls): number[] {
  const bytes = controls.find("groups")
  const what = controls.what("groups")
  return (bytes ? parseList(bytes, what) : []).map((line, i) =>
    isUid(line) ? Number(line) : refuse(what, "is not a decimal gid", i + 1),
  )
}

function readPath(controls: Controls, owner: number): string[] {
  const bytes = controls.find("path")
  const what = controls.what("path")
  if (!bytes) return [rootEntryPath("tool"), `${homePath(owner)}/tool`]
  return parseList(bytes, what).map((line, i) => {
    // A colon would make two directories of one in CTX_PATH.
    if (!isCleanPath(line) || line.includes(":")) refuse(what, "is not an absolute directory", i + 1)
    return line
  })
}

function parseTools(bytes: Buffer, what: string): string[] {
  const names = parseList(bytes, what)
  if (names.length > TOOLS_MAX) refuse(what, `has more than ${TOOLS_MAX} lines`)
  names.forEach((name, i) => {
    if (!isName(name)) refuse(what, "is not a tool name", i + 1)
    if (name === "tsh") refuse(what, "names tsh, which is always there", i + 1)
    if (names.indexOf(name) !== i) refuse(what, `has ${name} a second time`, i + 1)
  })
  return names
}

/** `tools` fails closed: malformed counts as empty, with the fault to report. */
function readTools(controls: Controls): { tools: string[]; toolsFault: CtxError | undefined } {
  try {
    const bytes = controls.find("tools")
    return { tools: bytes ? parseTools(bytes, controls.what("tools")) : [], toolsFault: undefined }
  } catch (error) {
    if (error instanceof CtxError && error.code === "EINVAL") return { tools: [], toolsFault: error }
    throw error
  }
}

/** `policy` fails closed: what cannot be read denies everything. */
function readPolicy(controls: Controls): Buffer | undefined {
  try {
    return controls.find("policy")
  } catch {
    return undefined
  }
}

/**
 * Reads the definition of an agent from the backing tree. Nothing is cached: call it for every run.
 * Errors: `EINVAL` for a name or a malformed control, with the control in the text (agent-runtime.md 1); `ENOENT` when
 * there is no such agent or a control without default is missing. An unreadable `policy` and a malformed `tools` are
 * not errors; they fail closed. `mount` and `policy` are given as bytes, judged by `src/policy`.
 */
export function readAgent(source: Source, name: string): Agent {
  validateName(name)
  const controls = new Controls(source, name)
  const owner = Number(controls.getValue("owner", isUid, "is not a decimal uid"))
  const uid = Number(controls.readValue("uid", String(owner), isUid, "is not a decimal uid"))
  const gidValue = controls.findValue("gid")
  if (gidValue !== undefined && !isUid(gidValue)) refuse(controls.what("gid"), "is not a decimal gid", 1)
  const gid = gidValue === undefined ? (findAccount(owner)?.gid ?? owner) : Number(gidValue)
  const label = controls.getValue("label", value => LABEL.test(value), "is not user:role:type:level")
  const iso = controls.readValue(
    "iso",
    "shared",
    value => /^(?:shared|uid|userns)$/.test(value),
    "is not shared, uid or userns",
  )
  if (iso === "uid" ? uid === owner : uid !== owner) {
    refuse(controls.what("iso"), `${iso} does not go with uid ${uid} of owner ${owner}`, 1)
  }
  const life = controls.readValue("life", "owned", value => /^(?:owned|temp)$/.test(value), "is not owned or temp")
  if (!isAgentAbi(controls.find("abi") ?? Buffer.alloc(0))) refuse(controls.what("abi"), `is not ${AGENT_ABI}`, 1)
  const approval = controls.readValue("approval", "auto", value => /^(?:auto|ask)$/.test(value), "is not auto or ask")
  const window = controls.readValue(
    "window",
    "auto",
    value => value === "auto" || isNumber(value, 1, 4294967295),
    "is not auto or a number from 1 to 4294967295",
  )
  const isDir = "is not an absolute path without . and .."
  return {
    name,
    owner,
    uid,
    gid,
    groups: readGroups(controls),
    label,
    subject: LABEL.exec(label)![1]!,
    iso: iso as Agent["iso"],
    parent: readParent(controls),
    life: life as Agent["life"],
    root: controls.readValue("root", `${agentHomePath(owner, name)}/root`, isCleanPath, isDir),
    cwd: controls.readValue("cwd", "/workspace", isCleanPath, isDir),
    env: readEnv(controls),
    path: readPath(controls, owner),
    mount: controls.find("mount") ?? Buffer.alloc(0),
    model: controls.getValue("model", isModelReference, "is not an alias or provider/model"),
    abi: AGENT_ABI,
    policy: readPolicy(controls),
    approval: approval as Agent["approval"],
    ...readTools(controls),
    window: window === "auto" ? "auto" : Number(window),
    systemText: controls.readText("system.md"),
    templateText: controls.readText("prompt.template.md"),
    executable: `${source.dir}/agent/${name}`,
    controlDir: `${source.dir}/agent/${name}.d`,
  }
}

/** Names of the agents that have a control directory, bytewise. Errors: errno of reading `agent/`. */
export function listAgents(source: Source): string[] {
  return readdirSync(`/proc/self/fd/${source.dirFd}/agent`, { withFileTypes: true })
    .filter(entry => entry.isDirectory() && entry.name.endsWith(".d") && isName(entry.name.slice(0, -2)))
    .map(entry => entry.name.slice(0, -2))
    .sort((a, b) => (a < b ? -1 : 1))
}

/** The backing path of an ABI path of the view's own tree, for tool directories: `/ctx/tool`, homes and spaces. */
export function backingPath(source: Source, abiPath: string): string {
  const below = isAtOrBelow(abiPath, CTX_ROOT) ? abiPath.slice(CTX_ROOT.length + 1) : ""
  if (!isCleanPath(abiPath) || below === "") throw new CtxError("EINVAL", `${abiPath} is not a path below ${CTX_ROOT}`)
  const isDurable = /^(?:home|shared)\//.test(below) && !/^shared\/cortexfs-docs(?:\/|$)/.test(below)
  return `${isDurable ? source.dataRoot : source.dir}/${below}`
}
