// Models, agents and tools as generated entries (root-abi 4.3 to 4.5): an executable that reads as metadata text, the
// computed socket alias, the control directory.
import { CONTROL_MAX, parseValue } from "../abi/control.js"
import { parseJson } from "../abi/json.js"
import { isName, isUid, MODEL_ALIASES } from "../abi/name.js"
import { modelPath, modelSocket, systemAgentSocket } from "../abi/path.js"
import { listModels, parseAliasTarget } from "../store/catalogue.js"
import type { Source } from "../store/generation.js"
import { formatMetadata } from "../store/metadata.js"
import { compareBytes } from "../store/tree.js"
import type { Listing } from "./entry.js"
import type { Sources } from "./source.js"
import type { RootOwner } from "./zone.js"

/** What all entries of one mount have in common. */
export interface Place {
  source: Source
  /** The volume that `source.dirFd` is registered as. */
  sourceVolume: number
  /** R of root-abi 2.1: the text in front of alias targets. */
  root: string
  /** Run directory: the text in front of listener paths. */
  run: string
  /** Owner of what is 0:0 in root-abi 5. */
  owner: RootOwner
}

/** Fallback of an absent egress table (root-abi 4.3). */
const DEFAULT_ROUTE = "fallback: direct\n"

/** Adds `model/` with aliases, route, providers and models (root-abi 4.3). A malformed alias is left out. */
export function addModels(listing: Listing, sources: Sources, place: Place): void {
  const { source } = place
  const models = listModels(source)
  const top = new Map<string, () => void>()
  for (const alias of MODEL_ALIASES) {
    const target = sources.readLink(source.dirFd, `model/${alias}`)
    const model = target === undefined ? undefined : parseAliasTarget(target)
    if (model === undefined) continue
    const seen = sources.find(source.dirFd, `model/${alias}`)
    const mtimeMs = seen && Number(seen.mtimeNs / 1_000_000n)
    top.set(alias, () =>
      listing.addLink(`model/${alias}`, modelPath(model, undefined, place.root), "control", { mtimeMs }),
    )
  }
  const route = sources.find(source.dirFd, "model/route")
  top.set("route", () => {
    if (route?.type === "file")
      listing.addBacking("model/route", place.sourceVolume, "model/route", "toolcontrol", {
        mode: 0o444,
        ...place.owner,
      })
    else listing.addFile("model/route", Buffer.from(DEFAULT_ROUTE), 0o444, "control")
  })
  for (const provider of new Set(models.map(model => model.provider))) {
    top.set(provider, () => {
      listing.addDir(`model/${provider}`)
      for (const { model, controls, metadata } of models.filter(one => one.provider === provider)) {
        const path = `model/${provider}/${model}`
        listing.addFile(path, Buffer.from(metadata), 0o555, "live", { kind: "ctx.model.exec" })
        listing.addDir(`${path}.d`, 0o755, { kind: "ctx.model.control" })
        for (const name of Object.keys(controls).sort(compareBytes)) {
          const body = Buffer.from(controls[name as keyof typeof controls])
          const fileClass = name === "status" || name === "log" ? "live" : "control"
          listing.addFile(`${path}.d/${name}`, body, 0o444, fileClass, { kind: "ctx.model.control" })
        }
        if (controls.session === "socket\n")
          listing.addLink(`${path}.sock`, modelSocket(`${provider}/${model}`, place.run), "live")
      }
    })
  }
  listing.addDir("model")
  for (const name of [...top.keys()].sort(compareBytes)) top.get(name)!()
}

/** An agent as far as the tree shows it. `owner` is undefined while the control is absent or malformed. */
interface FoundAgent {
  name: string
  owner: number | undefined
  gid: number
}

/** The agents of the source with a control directory, in byte order. */
function findAgents(sources: Sources, { source, owner }: Place): FoundAgent[] {
  const agents: FoundAgent[] = []
  for (const entry of sources.list(source.dirFd, "agent")) {
    const name = entry.slice(0, -2)
    if (!entry.endsWith(".d") || !isName(name)) continue
    const seen = sources.find(source.dirFd, `agent/${entry}`)
    if (seen?.type !== "dir") continue
    const gid = readUid(sources, source, `agent/${entry}/gid`)
    const uid = readUid(sources, source, `agent/${entry}/owner`)
    // In a per-user mount the user stands for everyone, since nobody else gets in.
    if (owner.uid !== 0) agents.push({ name, owner: uid === undefined ? undefined : owner.uid, gid: owner.gid })
    else agents.push({ name, owner: uid, gid: gid ?? seen.gid })
  }
  return agents
}

/** The number in a value control that holds a uid or gid; undefined when absent or malformed. */
function readUid(sources: Sources, source: Source, rel: string): number | undefined {
  const text = readValue(sources, source.dirFd, rel)
  return text !== undefined && isUid(text) ? Number(text) : undefined
}

function readValue(sources: Sources, dirFd: number, rel: string): string | undefined {
  const bytes = sources.read(dirFd, rel, CONTROL_MAX)
  if (bytes === undefined) return undefined
  try {
    return parseValue(bytes, rel)
  } catch {
    return undefined
  }
}

/**
 * Adds `agent/` with the agents that `isShown` lets through (root-abi 4.4, fuse.md 6.3). `isWritable`: definitions can be
 * made and changed in it (fuse.md 6), so that it lies over the backing directory.
 */
export function addAgents(
  listing: Listing,
  sources: Sources,
  place: Place,
  isWritable: boolean,
  isShown: (name: string) => boolean,
): void {
  const { source } = place
  const entries = new Map<string, () => void>()
  for (const { name, owner, gid } of findAgents(sources, place)) {
    if (!isShown(name)) continue
    const controls = `agent/${name}.d`
    const executable = sources.find(source.dirFd, `agent/${name}`)
    if (executable?.type === "file" && owner !== undefined) {
      const body = formatMetadata("agent", {
        id: name,
        name,
        description: readDescription(sources, source, controls) ?? name,
        owned_by: String(owner),
        model: readFirstLine(sources, source.dirFd, `${controls}/model`),
        abi: readFirstLine(sources, source.dirFd, `${controls}/abi`),
        life: readFirstLine(sources, source.dirFd, `${controls}/life`),
      })
      entries.set(name, () =>
        listing.addFile(`agent/${name}`, Buffer.from(body), 0o755, "live", {
          uid: owner,
          gid,
          kind: "ctx.agent.exec",
          zone: isWritable ? "agentexec" : undefined,
          backingPath: `${source.dir}/agent/${name}`,
        }),
      )
    }
    entries.set(`${name}.d`, () => {
      const facts = owner === undefined ? { mode: 0o755 } : { mode: 0o755, uid: owner, gid }
      listing.addBacking(controls, place.sourceVolume, controls, "agentcontrols", facts)
    })
    const socket = findSocketText(name, place.run)
    if (socket !== undefined) entries.set(`${name}.sock`, () => listing.addLink(`agent/${name}.sock`, socket, "live"))
  }
  if (isWritable) listing.addBacking("agent", place.sourceVolume, "agent", "agents", { mode: 0o1777, ...place.owner })
  else listing.addDir("agent", 0o1777)
  for (const name of [...entries.keys()].sort(compareBytes)) entries.get(name)!()
}

/** The listener's path; undefined when the run directory makes it too long for any socket (root-abi 8). */
function findSocketText(name: string, run: string): string | undefined {
  try {
    return systemAgentSocket(name, run)
  } catch {
    return undefined
  }
}

/** The string `description` of `meta.json` (object-abi 2). */
function readDescription(sources: Sources, source: Source, controls: string): string | undefined {
  const bytes = sources.read(source.dirFd, `${controls}/meta.json`, CONTROL_MAX)
  if (bytes === undefined) return undefined
  try {
    const value = parseJson(bytes)
    if (typeof value !== "object" || value === null || !("description" in value)) return undefined
    return typeof value.description === "string" ? value.description : undefined
  } catch {
    return undefined
  }
}

/** A value control's bytes without the final LF, as metadata shows them: not judged, only made one line. */
function readFirstLine(sources: Sources, dirFd: number, rel: string): Buffer | undefined {
  const bytes = sources.read(dirFd, rel, CONTROL_MAX)
  if (bytes === undefined) return undefined
  return bytes.at(-1) === 0x0a ? bytes.subarray(0, -1) : bytes
}

/** A tool as it lies in one tool directory. */
export interface FoundTool {
  name: string
  hasExecutable: boolean
  hasControls: boolean
}

/** The tools in the directory `rel` of `dirFd`: regular files with an x bit and control directories, in byte order. */
export function findTools(sources: Sources, dirFd: number, rel: string): FoundTool[] {
  const tools = new Map<string, FoundTool>()
  const toolOf = (name: string) => {
    const tool = tools.get(name) ?? { name, hasExecutable: false, hasControls: false }
    tools.set(name, tool)
    return tool
  }
  for (const entry of sources.list(dirFd, rel)) {
    const seen = sources.find(dirFd, `${rel}/${entry}`)
    if (entry.endsWith(".d") && isName(entry.slice(0, -2))) {
      if (seen?.type === "dir") toolOf(entry.slice(0, -2)).hasControls = true
    } else if (isName(entry) && seen?.type === "file" && (seen.mode & 0o111) !== 0) toolOf(entry).hasExecutable = true
  }
  return [...tools.values()]
}

/**
 * The metadata text of the tool whose executable is at `rel` below `dirFd` (object-abi 2). `ownerUid` is shown as its owner,
 * without it the owner of the file.
 */
export function formatTool(sources: Sources, dirFd: number, rel: string, ownerUid?: number): Buffer {
  const name = rel.slice(rel.lastIndexOf("/") + 1)
  const cap = readFirstLine(sources, dirFd, `${rel}.d/cap`)
  const text = formatMetadata("tool", {
    id: name,
    name,
    description: readFirstLine(sources, dirFd, `${rel}.d/description`),
    owned_by: String(ownerUid ?? sources.find(dirFd, rel)?.uid ?? 0),
    cap: cap?.toString("latin1").split("\n").join(","),
  })
  return Buffer.from(text)
}

/** Where the tools of one directory lie and how they are shown. */
export interface ToolDir {
  /** Path in the tree, `tool` or `home/<uid>/tool`. */
  path: string
  dirFd: number
  /** Host path of `rel`. */
  hostPath: string
  volume: number
  rel: string
  isSystem: boolean
  kindExec: string
  zone: "toolcontrols" | "viewtoolcontrols"
}

/** Adds the tools of `dir` that `isShown` lets through, not the directory itself (root-abi 4.5). */
export function addTools(
  listing: Listing,
  sources: Sources,
  dir: ToolDir,
  isShown: (tool: FoundTool) => boolean,
): void {
  const entries = new Map<string, () => void>()
  for (const tool of findTools(sources, dir.dirFd, dir.rel)) {
    if (!isShown(tool)) continue
    const { name } = tool
    const rel = `${dir.rel}/${name}`
    const path = `${dir.path}/${name}`
    const executable = sources.find(dir.dirFd, rel)
    if (tool.hasExecutable && executable) {
      const owner = dir.isSystem ? {} : { uid: executable.uid, gid: executable.gid }
      const body = formatTool(sources, dir.dirFd, rel, dir.isSystem ? 0 : executable.uid)
      const mode = dir.isSystem ? 0o555 : executable.mode
      entries.set(name, () =>
        listing.addFile(path, body, mode, "live", {
          kind: dir.kindExec,
          ...owner,
          backingPath: `${dir.hostPath}/${name}`,
        }),
      )
    }
    if (tool.hasControls)
      entries.set(`${name}.d`, () => {
        const zone = dir.zone === "toolcontrols" && name === "tsh" ? "shellcontrols" : dir.zone
        listing.addBacking(`${path}.d`, dir.volume, `${rel}.d`, zone, {})
        if (!dir.isSystem) return
        const status = Buffer.from(tool.hasExecutable ? "ready\n" : "missing\n")
        listing.addFile(`${path}.d/status`, status, 0o444, "live", { kind: "ctx.tool.control" })
      })
  }
  for (const name of [...entries.keys()].sort(compareBytes)) entries.get(name)!()
}
