// The view of one agent (fuse.md 9): a filter for sight, recomputed with the snapshot. It authorises nothing.
import { CONTROL_MAX, parseList, parseValue } from "../abi/control.js"
import { DOCS_SPACE, isCleanPath, isName } from "../abi/name.js"
import { CTX_ROOT, homePath, rootEntryPath } from "../abi/path.js"
import { policyAllows } from "../policy/decision.js"
import { isSubject, type Policy, parsePolicy } from "../policy/policy.js"
import { compareBytes } from "../store/tree.js"
import { Listing } from "./entry.js"
import { addSystem } from "./host.js"
import { addAgents, addTools, type FoundTool, findTools, type Place, type ToolDir } from "./object.js"
import type { Seen, Sources } from "./source.js"

/** Whose view it is. `owner` was read once at start: it selects the home and does not change while the mount lives. */
export interface Viewer {
  name: string
  owner: number
}

/** Directories of durable data, and how a volume in them is registered with the engine. */
export interface ViewData {
  homesFd: number
  spacesFd: number
  /** The volume of `home/<uid>` or `shared/<space>`, opened when first asked for. */
  openVolume(kind: "home" | "shared", name: string, seen: Seen): { volume: number; dirFd: number } | undefined
}

/** What the agent's controls let it see; `undefined` when one of them is invalid, so that it sees nothing of others. */
interface Sight {
  subject: string
  policy: Policy
  path: string[]
}

/** The generated tree of `viewer`'s view as the sources are now. */
export function listView(sources: Sources, place: Place, viewer: Viewer, data: ViewData, mtimeMs: number): Listing {
  const listing = new Listing(place.owner, mtimeMs)
  const sight = findSight(sources, place, viewer)
  addSystem(listing, sources, place)
  addAgents(listing, sources, place, false, name => name === viewer.name || hasAgentRule(sight, name))

  const spaces = findSpaces(sources, data, sight)
  const homeSeen = sources.find(data.homesFd, String(viewer.owner))
  const home = homeSeen?.type === "dir" ? data.openVolume("home", String(viewer.owner), homeSeen) : undefined
  const toolDirs = findToolDirs(sources, place, viewer, home, spaces)
  const shown = findShownTools(sources, sight, toolDirs)

  listing.addDir("tool")
  addTools(listing, sources, toolDirs[0]!, tool => shown.has(`tool/${tool.name}`))

  listing.addDir("home")
  if (home && homeSeen) addHome(listing, sources, viewer, home, homeSeen, toolDirs, shown)

  listing.addDir("shared")
  for (const { space, isWritable, volume, dirFd } of spaces) {
    const path = `shared/${space}`
    listing.addBacking(path, volume, "", isWritable ? "viewspace" : "viewspacerestricted")
    const seen = sources.find(dirFd, "tool")
    const dir = toolDirs.find(one => one.path === `${path}/tool`)
    if (seen?.type !== "dir" || !dir) continue
    listing.addDir(dir.path, seen.mode, { uid: seen.uid, gid: seen.gid, mtimeMs: Number(seen.mtimeNs / 1_000_000n) })
    addTools(listing, sources, dir, tool => shown.has(`${dir.path}/${tool.name}`))
  }
  return listing
}

interface OpenVolume {
  volume: number
  dirFd: number
}

/** `home/<owner>` with its three directories, rules and skills, and nothing else. */
function addHome(
  listing: Listing,
  sources: Sources,
  { name, owner }: Viewer,
  { volume, dirFd }: OpenVolume,
  homeSeen: Seen,
  toolDirs: ToolDir[],
  shown: Set<string>,
): void {
  const path = `home/${owner}`
  const facts = (seen: Seen) => ({ uid: seen.uid, gid: seen.gid, mtimeMs: Number(seen.mtimeNs / 1_000_000n) })
  listing.addDir(path, homeSeen.mode, { ...facts(homeSeen), kind: "ctx.home.dir" })
  for (const child of [".agents", "AGENTS.md", "agent", "model", "tool"]) {
    const seen = sources.find(dirFd, child)
    if (child === "AGENTS.md" ? seen?.type !== "file" : seen?.type !== "dir") continue
    if (child === "agent") {
      listing.addDir(`${path}/agent`, seen!.mode, facts(seen!))
      if (sources.find(dirFd, `agent/${name}`)?.type === "dir")
        listing.addBacking(`${path}/agent/${name}`, volume, `agent/${name}`, "viewagent")
    } else if (child === "model") listing.addBacking(`${path}/model`, volume, "model", "viewhomemodels")
    else if (child === "tool") {
      const dir = toolDirs.find(one => one.path === `${path}/tool`)!
      listing.addDir(dir.path, seen!.mode, facts(seen!))
      addTools(listing, sources, dir, tool => shown.has(`${dir.path}/${tool.name}`))
    } else listing.addBacking(`${path}/${child}`, volume, child, "viewplain")
  }
}

/** Parses `label`, `policy` and `path`; undefined when one is absent where it must be there, or malformed. */
function findSight(sources: Sources, { source }: Place, { name, owner }: Viewer): Sight | undefined {
  const read = (control: string) => sources.read(source.dirFd, `agent/${name}.d/${control}`, CONTROL_MAX)
  // All three are looked at whatever the first says, so that a repair of any is seen.
  const [label, policy, path] = [read("label"), read("policy"), read("path")]
  const isPathThere = sources.find(source.dirFd, `agent/${name}.d/path`) !== undefined
  try {
    if (label === undefined || policy === undefined) return undefined
    const fields = parseValue(label, "label").split(":")
    const subject = fields[2]
    if (fields.length !== 4 || subject === undefined || !isSubject(subject)) return undefined
    if (path === undefined && isPathThere) return undefined
    const dirs = path === undefined ? [toolDirOf(), toolDirOf(owner)] : parseList(path, "path")
    if (!dirs.every(dir => isCleanPath(dir))) return undefined
    return { subject, policy: parsePolicy(policy), path: dirs }
  } catch {
    return undefined
  }
}

/** `/ctx/tool`, or with a uid the tool directory of that home, as `path` names them. */
function toolDirOf(uid?: number): string {
  return uid === undefined ? rootEntryPath("tool") : `${homePath(uid)}/tool`
}

function hasAgentRule(sight: Sight | undefined, name: string): boolean {
  if (!sight) return false
  return sight.policy.rules.some(
    rule => rule.subject === sight.subject && rule.class === "agent" && rule.object === name,
  )
}

interface SpacePlace extends OpenVolume {
  space: string
  isWritable: boolean
}

/** The spaces that a `shared:<space>` line names, in byte order. */
function findSpaces(sources: Sources, data: ViewData, sight: Sight | undefined): SpacePlace[] {
  const spaces: SpacePlace[] = []
  if (!sight) return spaces
  const named = sight.policy.rules.filter(rule => rule.subject === sight.subject && rule.class === "shared")
  const names = [...new Set(named.map(rule => rule.object))].sort(compareBytes)
  for (const space of names) {
    if (!isName(space) || space === DOCS_SPACE) continue
    const seen = sources.find(data.spacesFd, space)
    if (seen?.type !== "dir") continue
    const opened = data.openVolume("shared", space, seen)
    if (!opened) continue
    const isWritable = policyAllows(sight.policy, sight.subject, "shared", space, "write").allow
    spaces.push({ space, isWritable, ...opened })
  }
  return spaces
}

/** Every tool directory of the tree that this view has; the system's first. */
function findToolDirs(
  sources: Sources,
  place: Place,
  { owner }: Viewer,
  home: OpenVolume | undefined,
  spaces: SpacePlace[],
): ToolDir[] {
  const { source } = place
  const dirs: ToolDir[] = [
    {
      path: "tool",
      dirFd: source.dirFd,
      hostPath: `${source.dir}/tool`,
      volume: place.sourceVolume,
      rel: "tool",
      isSystem: true,
      kindExec: "ctx.tool.exec",
      zone: "toolcontrols",
    },
  ]
  const other = { rel: "tool", isSystem: false, zone: "viewtoolcontrols" as const }
  const hostPath = (path: string) => `${source.dataRoot}/${path}/tool`
  if (home)
    dirs.push({
      ...other,
      ...home,
      hostPath: hostPath(`home/${owner}`),
      path: `home/${owner}/tool`,
      kindExec: "ctx.tool.exec",
    })
  for (const { space, volume, dirFd } of spaces)
    dirs.push({
      ...other,
      volume,
      dirFd,
      hostPath: hostPath(`shared/${space}`),
      path: `shared/${space}/tool`,
      kindExec: "ctx.shared.tool.exec",
    })
  return dirs.filter(dir => dir.isSystem || sources.find(dir.dirFd, dir.rel)?.type === "dir")
}

/**
 * The tools the agent may see, as `<directory>/<NAME>`: T is shown in the directory of `path` that its lookup hits, and
 * there only when NAME's policy and T's own both let it execute. Directories of `path` outside of the tree hold no
 * visible tool and are not looked at.
 */
function findShownTools(sources: Sources, sight: Sight | undefined, dirs: ToolDir[]): Set<string> {
  const shown = new Set<string>()
  if (!sight) return shown
  const decided = new Set<string>()
  for (const path of sight.path) {
    const dir = dirs.find(one => `${CTX_ROOT}/${one.path}` === path)
    if (!dir) continue
    for (const tool of findTools(sources, dir.dirFd, dir.rel)) {
      if (!tool.hasExecutable || decided.has(tool.name)) continue
      decided.add(tool.name)
      if (isToolAllowed(sources, sight, dir, tool)) shown.add(`${dir.path}/${tool.name}`)
    }
  }
  return shown
}

function isToolAllowed(sources: Sources, { policy, subject }: Sight, dir: ToolDir, { name }: FoundTool): boolean {
  if (!policyAllows(policy, subject, "tool", name, "execute").allow) return false
  const bytes = sources.read(dir.dirFd, `${dir.rel}/${name}.d/policy`, CONTROL_MAX)
  if (bytes === undefined) return false
  try {
    return policyAllows(parsePolicy(bytes), subject, "tool", name, "execute").allow
  } catch {
    return false
  }
}
