// What a path below `agent/` or a system tool's `.d` names, as far as something may be written there (fuse.md 6).
import { AGENT_CONTROLS, CONTROL_MAX } from "../abi/control.js"
import { isName } from "../abi/name.js"

/** Most bytes of an agent's executable and of a hook (fuse.md 6.1). */
export const EXECUTABLE_MAX = 16 * 1024 * 1024
export const HOOK_MAX = 1024 * 1024

/** The controls of a system tool that uid 0 writes (fuse.md 6.5); `config` only those of `tsh`. */
export const OPERATOR_CONTROLS: readonly string[] = ["policy", "timeout", "cache"]
export const SHELL_CONTROLS: readonly string[] = [...OPERATOR_CONTROLS, "config"]

/** The controls of an agent that are files (root-abi 4.4). */
export const AGENT_FILES: readonly string[] = AGENT_CONTROLS.filter(one => one.kind !== "dir").map(one => one.name)

/** A temporary of fuse.md 6.1; the first group is its target. */
const TEMP = /^\.(.+)\.tmp-[0-9]{1,10}-[A-Za-z0-9]{1,32}-[0-9]{1,4}$/

/**
 * What may be written at a path.
 * `dir` is the directory it lies in, `name` its last component, both as they are on the backing side.
 */
export interface Target {
  kind: "executable" | "definition" | "control" | "hooks" | "hook" | "socket" | "other"
  dir: string
  name: string
  /** The agent whose name the path is, when it is one. */
  agent?: string
  /** The tool whose control the path is. */
  tool?: string
  /** Of a temporary: the name it may be renamed to; `kind` is then the kind of that name. */
  publishes?: string
}

/** What `path`, relative to the root of the mount and below `agent/` or `tool/`, names. */
export function parseTarget(path: string): Target {
  const slash = path.lastIndexOf("/")
  const dir = path.slice(0, slash)
  const name = path.slice(slash + 1)
  const other: Target = { kind: "other", dir, name }
  const [top, owner = "", ...below] = path.split("/")
  if (top === "tool") {
    const tool = owner.slice(0, -2)
    const controls = tool === "tsh" ? SHELL_CONTROLS : OPERATOR_CONTROLS
    return below.length === 1 ? written({ ...other, tool }, "control", one => controls.includes(one)) : other
  }
  if (below.length === 0) {
    if (name.endsWith(".sock")) return { ...other, kind: "socket" }
    if (name.endsWith(".d") && isName(name.slice(0, -2)))
      return { ...other, kind: "definition", agent: name.slice(0, -2) }
    const target = written(other, "executable", isName)
    return target.kind === "other" ? target : { ...target, agent: target.publishes ?? name }
  }
  const inAgent: Target = { ...other, agent: owner.slice(0, -2) }
  if (below.length === 1)
    return name === "hooks"
      ? { ...inAgent, kind: "hooks" }
      : written(inAgent, "control", one => AGENT_FILES.includes(one))
  if (below[0] !== "hooks" || !["pre.d", "post.d"].includes(below[1] ?? "")) return inAgent
  if (below.length === 2) return { ...inAgent, kind: "hooks" }
  return below.length === 3 ? written(inAgent, "hook", isName) : inAgent
}

/** `target` as the file `kind` or as a temporary for one, when `isTarget` knows its name. */
function written(target: Target, kind: Target["kind"], isTarget: (name: string) => boolean): Target {
  if (isTarget(target.name)) return { ...target, kind }
  const publishes = TEMP.exec(target.name)?.[1]
  return publishes !== undefined && isTarget(publishes) ? { ...target, kind, publishes } : target
}

/** Most bytes a file of this kind may have. */
export function sizeMax({ kind }: Target): number {
  return kind === "executable" ? EXECUTABLE_MAX : kind === "hook" ? HOOK_MAX : CONTROL_MAX
}
