// The zones of fuse.md 3 as a table for the native engine: what may be done to an entry is decided by the zone it lies
// in, and that follows from its parent's zone and its own name alone. The engine knows no rule of CortexFS.
import { ERRNO } from "../abi/errno.js"
import { CONTROL_MAX } from "../abi/limit.js"
import { MODEL_ALIASES } from "../abi/name.js"
import { ASK, HIDDEN, type Zone, type ZoneMatch } from "../native/fuse.js"
import { AGENT_FILES, EXECUTABLE_MAX, HOOK_MAX, OPERATOR_CONTROLS, SHELL_CONTROLS } from "./target.js"

const OK = 0
const { EROFS, EPERM, EINVAL } = ERRNO

type Rules = Partial<Omit<Zone, "id" | "name" | "children" | "childDefault">>
type Child = [match: ZoneMatch, zone: ZoneName | "hidden", isListed?: boolean]

/** Names of the zones; entries of the generated tree refer to them through `zoneIds`. */
export type ZoneName = (typeof ZONE_NAMES)[number]

const ZONE_NAMES = [
  "bin",
  "docs",
  "agents",
  "agentexec",
  "agentexectemp",
  "agentnew",
  "agentbad",
  "agentother",
  "agentcontrols",
  "agenthooks",
  "agenthookdir",
  "agenthook",
  "agenthooktemp",
  "agentcontrol",
  "agentcontroltemp",
  "agentlive",
  "agentlog",
  "toolcontrols",
  "shellcontrols",
  "toolhooks",
  "toolcontrol",
  "tooloperator",
  "tooloperatortemp",
  "toollive",
  "homes",
  "home",
  "homeagents",
  "homeagentbad",
  "homeagent",
  "homemodels",
  "homealias",
  "homealiastemp",
  "homemodelother",
  "hometools",
  "spaces",
  "spacebad",
  "space",
  "spaceagents",
  "spaceagent",
  "spacemodels",
  "spacetools",
  "queue",
  "result",
  "toolexec",
  "tooldir",
  "toolfile",
  "toolfilelive",
  "spacetoolexec",
  "spacetooldir",
  "spacetoolfile",
  "plain",
  "sessions",
  "sessionindex",
  "sessionindexdir",
  "session",
  "sessionmessages",
  "sessionevents",
  "history",
  "context",
  "contextentry",
  "terminal",
  "terminalsocket",
  "modelsessions",
  "modelcontrols",
  // An agent's view: the same places without their writers.
  "viewhomemodels",
  "viewhomealias",
  "viewagent",
  "viewspace",
  "viewplain",
  "viewspacerestricted",
  "viewspaceagents",
  "viewspaceagent",
  "viewqueue",
  "viewresult",
  "viewsessions",
  "viewsession",
  "viewsessionmessages",
  "viewsessionevents",
  "viewhistory",
  "viewmodelsessions",
  "viewmodelcontrols",
  "viewtoolcontrols",
  "viewtoolcontrol",
  "viewtoollive",
] as const

/** The id of each zone, as entries and children name it. */
export const zoneIds = Object.fromEntries(ZONE_NAMES.map((name, id) => [name, id])) as Record<ZoneName, number>

/** Nothing may be done to it: the zone `fixed`, and what every other zone starts from. */
const FIXED: Omit<Zone, "id" | "name" | "children" | "childDefault"> = {
  create: EROFS,
  mkdir: EROFS,
  mknodSpecial: EROFS,
  symlink: EROFS,
  linkFrom: EROFS,
  linkTo: EROFS,
  unlink: EROFS,
  rmdir: EROFS,
  renameFrom: EROFS,
  renameTo: EROFS,
  write: EROFS,
  setattr: EROFS,
  kindFile: "ctx.ordinary",
  kindDir: "ctx.ordinary",
  entryTtlMs: 1000,
  attrTtlMs: 1000,
  data: "keep",
  passthrough: false,
  locks: false,
  isVolume: false,
  askMiss: false,
  onlyPlain: true,
}

/** Where links and special files are as they lie; everywhere else the fixed rule holds (fuse.md 3). */
const ANY_TYPE: Rules = { onlyPlain: false }

/** Full POSIX behaviour by the caller's own rights. */
const PLAIN: Rules = {
  ...ANY_TYPE,
  create: OK,
  mkdir: OK,
  mknodSpecial: OK,
  symlink: OK,
  linkFrom: OK,
  linkTo: OK,
  unlink: OK,
  rmdir: OK,
  renameFrom: OK,
  renameTo: OK,
  write: OK,
  setattr: OK,
  passthrough: true,
  locks: true,
}

/** As plain, but no links of either kind and no special files; a link could come in by rename, so that is asked. */
const TOOL: Rules = {
  ...PLAIN,
  symlink: EROFS,
  linkFrom: EROFS,
  linkTo: EROFS,
  mknodSpecial: EPERM,
  renameTo: ASK,
  asksOnlyLinks: true,
}

/** Directly in a `tool` directory: a program with its controls beside is an object, and reads as one. */
const PROGRAM: Rules = { ...TOOL, isObject: true, passthrough: false, entryTtlMs: 0, attrTtlMs: 0 }

/** Read-only history with one writer on the backing path: nothing of it may be old in a cache. */
const HISTORY: Rules = { entryTtlMs: 0, attrTtlMs: 0, passthrough: true }

/** A directory of the session zone that its user may make, and remove when it is empty. */
const SKELETON: Rules = { ...HISTORY, mkdir: ASK, rmdir: ASK }

/** Below context/ and terminal/: written as in plain, but in the session zone, so no links. */
const CONTEXT: Rules = {
  ...PLAIN,
  ...HISTORY,
  symlink: EROFS,
  linkFrom: EROFS,
  linkTo: EROFS,
  renameFrom: ASK,
  renameTo: ASK,
  locks: false,
  asksOnlyLinks: true,
}

const CONTROL: Rules = { data: "drop" }
const LIVE: Rules = { entryTtlMs: 0, attrTtlMs: 0, data: "direct" }

/** Every change but a hard link is decided, and some are made, by TypeScript (fuse.md 6). */
const CONTROLLED: Rules = {
  create: ASK,
  mkdir: ASK,
  mknodSpecial: ASK,
  symlink: ASK,
  unlink: ASK,
  rmdir: ASK,
  renameFrom: ASK,
  renameTo: ASK,
  write: ASK,
  setattr: ASK,
}

const DOT: Child = [{ prefix: "." }, "hidden"]
const INSTALLER_NAMES: Child[] = [
  [{ prefix: ".cortexfs-install-" }, "hidden"],
  [{ prefix: ".cortexfs-cleanup-" }, "hidden"],
  [{ prefix: ".ctx-rollback-" }, "hidden"],
]
const AGENT_KIND = { kindFile: "ctx.agent.control", kindDir: "ctx.agent.control" }
const TOOL_KIND = { kindFile: "ctx.tool.control", kindDir: "ctx.tool.control" }
const SPACE_TOOL_KIND = { kindFile: "ctx.shared.tool.control", kindDir: "ctx.shared.tool.control" }
const QUEUE_KIND = { kindFile: "ctx.shared.queue", kindDir: "ctx.shared.queue" }
const RESULT_KIND = { kindFile: "ctx.shared.result", kindDir: "ctx.shared.result" }
const MODEL_KIND = { kindFile: "ctx.model.control", kindDir: "ctx.model.control" }

/** The owner that is projected in place of 0:0 (root-abi 5): the mounting user in a per-user mount. */
export interface RootOwner {
  uid: number
  gid: number
}

/**
 * The zone table for one mount. `isWritable`: agents and operator controls can be changed in it (fuse.md 6), which no
 * agent's view allows. Implements fuse.md 3, 5, 5.3, 5.5, 8.1, 8.4 and 9.
 */
export function makeZones({ uid, gid }: RootOwner, isWritable: boolean): Zone[] {
  const zones: Partial<Record<ZoneName, Zone>> = {}
  const put = (name: ZoneName, rules: Rules, children: Child[], rest: ZoneName | "hidden" | "self") => {
    const idOf = (zone: ZoneName | "hidden" | "self") =>
      zone === "hidden" ? HIDDEN : zone === "self" ? zoneIds[name] : zoneIds[zone]
    zones[name] = {
      ...FIXED,
      ...rules,
      id: zoneIds[name],
      name,
      children: children.map(([match, zone, isListed]) => ({ match, zone: idOf(zone), isListed: isListed ?? true })),
      childDefault: idOf(rest),
    }
  }
  const exact = (names: readonly string[], zone: ZoneName | "hidden"): Child[] =>
    names.map(name => [{ exact: name }, zone])
  const root = { uid, gid }

  // The generation: bin, documents, controls of system objects.
  put("bin", root, [], "hidden")
  put("docs", {}, [], "self")
  putDefinitions(put, exact, isWritable)
  putToolControls(put, exact, root, isWritable)

  // Homes. A home and its class directories are fixed as entries; a missing home is asked for, since its own user's
  // lookup makes it.
  put("homes", { ...root, dirMode: 0o755 }, [[{ grammar: "uid" }, "home"]], "hidden")
  put(
    "home",
    { setattr: OK, isVolume: true, askMiss: true, kindDir: "ctx.home.dir" },
    [...exact(["agent"], "homeagents"), ...exact(["model"], "homemodels"), ...exact(["tool"], "hometools")],
    "plain",
  )
  put("homeagents", {}, [[{ grammar: "name" }, "homeagent"]], "homeagentbad")
  put("homeagentbad", { mkdir: EINVAL }, [], "self")
  put("homeagent", { mkdir: ASK, rmdir: OK }, exact(["session"], "sessions"), "plain")
  put(
    "homemodels",
    {},
    [
      [{ grammar: "alias" }, "homealias"],
      ...MODEL_ALIASES.map((alias): Child => [{ prefix: `.${alias}.tmp-` }, "homealiastemp", false]),
      DOT,
    ],
    "homemodelother",
  )
  const alias = { ...CONTROL, ...ANY_TYPE, symlink: ASK, unlink: ASK, renameFrom: ASK, renameTo: ASK }
  put("homealias", alias, [], "hidden")
  put("homealiastemp", { ...alias, ...LIVE }, [], "hidden")
  put("homemodelother", HISTORY, [DOT], "modelcontrols")
  put("modelcontrols", { ...HISTORY, ...MODEL_KIND }, [DOT, ...exact(["session"], "modelsessions")], "self")
  put("modelsessions", { ...HISTORY, kindDir: "ctx.ordinary" }, [DOT, ...exact(["index"], "history")], "session")
  put("hometools", {}, [...INSTALLER_NAMES, [{ grammar: "name" }, "toolexec"]], "tooldir")
  put("toolexec", { ...PROGRAM, kindFile: "ctx.tool.exec" }, [], "toolfile")
  put(
    "tooldir",
    { ...TOOL, kindDir: "ctx.tool.control" },
    [DOT, ...exact(["status", "pid", "log"], "toolfilelive")],
    "toolfile",
  )
  put("toolfile", { ...TOOL, ...TOOL_KIND }, [], "self")
  put("toolfilelive", { ...TOOL, ...TOOL_KIND, ...LIVE, passthrough: false }, [], "toolfile")

  // Spaces.
  put(
    "spaces",
    { ...root, dirMode: 0o755 },
    [...exact(["cortexfs-docs"], "hidden"), [{ grammar: "name" }, "space"]],
    "spacebad",
  )
  put("spacebad", { mkdir: EINVAL }, [], "self")
  put(
    "space",
    { mkdir: OK, setattr: OK, isVolume: true, kindDir: "ctx.shared.dir" },
    [
      ...exact(["agent"], "spaceagents"),
      ...exact(["model"], "spacemodels"),
      ...exact(["tool"], "spacetools"),
      ...exact(["queue"], "queue"),
      ...exact(["result"], "result"),
    ],
    "plain",
  )
  put("spaceagents", {}, [[{ grammar: "name" }, "spaceagent"]], "homeagentbad")
  put("spaceagent", { rmdir: OK }, exact(["session"], "sessions"), "plain")
  put("spacemodels", {}, [DOT], "homemodelother")
  put(
    "spacetools",
    { ...TOOL, kindDir: "ctx.ordinary" },
    [...INSTALLER_NAMES, [{ grammar: "name" }, "spacetoolexec"]],
    "spacetooldir",
  )
  put("spacetoolexec", { ...PROGRAM, kindFile: "ctx.shared.tool.exec" }, [], "spacetoolfile")
  put("spacetooldir", { ...TOOL, kindDir: "ctx.shared.tool.control" }, [DOT], "spacetoolfile")
  put("spacetoolfile", { ...TOOL, ...SPACE_TOOL_KIND }, [], "self")
  put("queue", { ...PLAIN, ...QUEUE_KIND }, [], "self")
  put("result", { ...PLAIN, ...RESULT_KIND }, [], "self")
  put("plain", PLAIN, [], "self")

  // Sessions.
  put("sessions", SKELETON, [DOT, ...exact(["index"], "sessionindex")], "session")
  put("sessionindex", SKELETON, [DOT, ...exact(["by-cwd", "by-hash", "by-uuid"], "sessionindexdir")], "history")
  put("sessionindexdir", SKELETON, [DOT], "history")
  put(
    "session",
    { ...HISTORY, rmdir: ASK, kindDir: "ctx.session.dir" },
    [
      DOT,
      ...exact(["messages.jsonl"], "sessionmessages"),
      ...exact(["events.jsonl"], "sessionevents"),
      ...exact(["context"], "context"),
      ...exact(["terminal"], "terminal"),
    ],
    "history",
  )
  put("sessionmessages", { ...HISTORY, kindFile: "ctx.session.messages" }, [], "history")
  put("sessionevents", { ...HISTORY, kindFile: "ctx.session.events" }, [], "history")
  put("history", { ...HISTORY, rmdir: ASK }, [DOT], "self")
  put("context", SKELETON, [], "contextentry")
  put("contextentry", CONTEXT, [], "self")
  put("terminal", SKELETON, exact(["main.sock"], "terminalsocket"), "contextentry")
  put("terminalsocket", { ...LIVE, ...ANY_TYPE, symlink: ASK, unlink: ASK }, [], "hidden")

  // An agent's view (fuse.md 9): what the agent owns is as in the host view, all else can only be read.
  const filed = (zone: Rules) => ({ ...zone, ...ANY_TYPE, passthrough: true, locks: true })
  put("viewagent", {}, exact(["session"], "viewsessions"), "plain")
  put("viewplain", filed({}), [], "self")
  put("viewhomemodels", {}, [[{ grammar: "alias" }, "viewhomealias"], DOT], "viewmodelcontrols")
  put("viewhomealias", { ...CONTROL, ...ANY_TYPE }, [], "hidden")
  put("viewmodelcontrols", { ...HISTORY, ...MODEL_KIND }, [DOT, ...exact(["session"], "viewmodelsessions")], "self")
  put("viewmodelsessions", HISTORY, [DOT, ...exact(["index"], "viewhistory")], "viewsession")
  put("viewsessions", HISTORY, [DOT, ...exact(["index"], "viewhistory")], "viewsession")
  put(
    "viewsession",
    { ...HISTORY, kindDir: "ctx.session.dir" },
    [
      DOT,
      ...exact(["messages.jsonl"], "viewsessionmessages"),
      ...exact(["events.jsonl"], "viewsessionevents"),
      // What begins with a dot is hidden in the session zone, but not in these two.
      ...exact(["context", "terminal"], "viewplain"),
    ],
    "viewhistory",
  )
  put("viewsessionmessages", { ...HISTORY, kindFile: "ctx.session.messages" }, [], "viewhistory")
  put("viewsessionevents", { ...HISTORY, kindFile: "ctx.session.events" }, [], "viewhistory")
  put("viewhistory", HISTORY, [DOT], "self")
  put(
    "viewtoolcontrols",
    { ...CONTROL, ...TOOL_KIND },
    [DOT, ...exact(["status", "pid", "log"], "viewtoollive")],
    "viewtoolcontrol",
  )
  put("viewtoolcontrol", { ...CONTROL, ...TOOL_KIND }, [DOT], "self")
  put("viewtoollive", { ...LIVE, ...TOOL_KIND }, [], "hidden")
  const spaceChildren = (queue: ZoneName, result: ZoneName): Child[] => [
    ...exact(["agent"], "viewspaceagents"),
    ...exact(["model"], "viewmodelcontrols"),
    // Its permitted tools are generated and lie over it.
    ...exact(["tool"], "hidden"),
    ...exact(["queue"], queue),
    ...exact(["result"], result),
  ]
  put("viewspace", { setattr: OK, kindDir: "ctx.shared.dir" }, spaceChildren("queue", "result"), "plain")
  put("viewspacerestricted", { kindDir: "ctx.shared.dir" }, spaceChildren("viewqueue", "viewresult"), "viewplain")
  put("viewspaceagents", {}, [[{ grammar: "name" }, "viewspaceagent"]], "viewplain")
  put("viewspaceagent", {}, exact(["session"], "viewsessions"), "viewplain")
  put("viewqueue", filed(QUEUE_KIND), [], "self")
  put("viewresult", filed(RESULT_KIND), [], "self")

  return ZONE_NAMES.map(name => zones[name] as Zone)
}

type Put = (name: ZoneName, rules: Rules, children: Child[], rest: ZoneName | "hidden" | "self") => void
type Exact = (names: readonly string[], zone: ZoneName | "hidden") => Child[]

/** Definitions of agents (fuse.md 6): unknown names in them are not there, temporaries only for their maker. */
function putDefinitions(put: Put, exact: Exact, isWritable: boolean): void {
  const changed = isWritable ? CONTROLLED : {}
  const file = { ...AGENT_KIND, fileMode: 0o644, dirMode: 0o755 }
  const temp = (sizeMax: number): Rules => ({ ...CONTROLLED, ...LIVE, ...AGENT_KIND, onlyOwner: true, sizeMax })
  const rest = isWritable ? "agentother" : "hidden"
  put("agentother", { ...changed, onlyTree: true }, [], "self")
  put(
    "agents",
    {},
    [
      [{ grammar: "temp" }, "agentexectemp", false],
      [{ suffix: ".d", grammar: "name" }, "agentnew"],
      [{ suffix: ".d" }, "agentbad"],
      [{ grammar: "name" }, "agentexec"],
    ],
    "agentother",
  )
  put("agentexec", { ...changed, onlyTree: true }, [], "hidden")
  put("agentexectemp", temp(EXECUTABLE_MAX), [], "hidden")
  put("agentnew", { ...changed, onlyTree: true }, [], "hidden")
  put("agentbad", { ...changed, onlyTree: true, mkdir: EINVAL }, [], "hidden")

  const temps = (names: readonly string[], zone: ZoneName): Child[] =>
    isWritable ? names.map((name): Child => [{ prefix: `.${name}.tmp-`, grammar: "attempt" }, zone, false]) : []
  put(
    "agentcontrols",
    // The name goes with its agent, and no name is ever invalidated.
    { ...changed, ...CONTROL, ...AGENT_KIND, dirMode: 0o755, ...(isWritable ? { entryTtlMs: 0 } : {}) },
    [
      ...exact(["hooks"], "agenthooks"),
      ...exact(["status", "pid"], "agentlive"),
      ...exact(["log"], "agentlog"),
      ...exact(AGENT_FILES, "agentcontrol"),
      ...temps(AGENT_FILES, "agentcontroltemp"),
    ],
    rest,
  )
  put("agenthooks", { ...changed, ...CONTROL, ...file }, exact(["pre.d", "post.d"], "agenthookdir"), rest)
  put(
    "agenthookdir",
    { ...changed, ...CONTROL, ...AGENT_KIND, dirMode: 0o755 },
    [...(isWritable ? [[{ grammar: "temp" }, "agenthooktemp", false] satisfies Child] : []), [{ prefix: "." }, rest]],
    "agenthook",
  )
  put("agenthook", { ...changed, ...CONTROL, ...AGENT_KIND }, [DOT], "self")
  put("agenthooktemp", temp(HOOK_MAX), [], "hidden")
  // What can be written in place is never cached here: a writer's size would show through the pages of its readers.
  const inPlace = isWritable ? { ...CONTROLLED, ...LIVE, isCopied: true, sizeMax: CONTROL_MAX } : {}
  put("agentcontrol", { ...CONTROL, ...inPlace, ...file }, [], "hidden")
  put("agentcontroltemp", temp(CONTROL_MAX), [], "hidden")
  put("agentlive", { ...LIVE, ...inPlace, ...file }, [], "hidden")
  put("agentlog", { ...changed, ...LIVE, ...file, onlyAppend: isWritable }, [], "hidden")
}

/** Controls of system tools; uid 0 may write some of them (fuse.md 6.5). */
function putToolControls(put: Put, exact: Exact, root: RootOwner, isWritable: boolean): void {
  const file = { ...TOOL_KIND, fileMode: 0o444, dirMode: 0o755, ...root }
  const controls = (operator: readonly string[]): Child[] => [
    ...(isWritable ? operator : []).map(
      (name): Child => [{ prefix: `.${name}.tmp-`, grammar: "attempt" }, "tooloperatortemp", false],
    ),
    DOT,
    ...exact(["hooks"], "toolhooks"),
    ...exact(["log"], "toollive"),
    ...exact(operator, "tooloperator"),
  ]
  const dir = { ...CONTROL, ...TOOL_KIND, dirMode: 0o755, ...root }
  put("toolcontrols", dir, controls(OPERATOR_CONTROLS), "toolcontrol")
  put("shellcontrols", dir, controls(SHELL_CONTROLS), "toolcontrol")
  put("toolhooks", { ...CONTROL, ...file }, [DOT], "self")
  put("toolcontrol", { ...CONTROL, ...file }, [DOT], "self")
  const inPlace = isWritable ? { ...CONTROLLED, ...LIVE, isCopied: true, sizeMax: CONTROL_MAX } : CONTROL
  put("tooloperator", { ...inPlace, ...file, fileMode: 0o644 }, [], "hidden")
  const temp = { ...CONTROLLED, ...LIVE, onlyOwner: true, sizeMax: CONTROL_MAX }
  put("tooloperatortemp", { ...temp, ...TOOL_KIND }, [], "hidden")
  put("toollive", { ...LIVE, ...file }, [], "hidden")
}
