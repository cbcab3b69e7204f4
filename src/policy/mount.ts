// The mount file of an agent, its grammar and what may be a source (`tool-policy-abi.md` 9).
import { CtxError } from "../abi/error.js"
import { type Issue, issueError } from "../abi/issue.js"
import { decodeUtf8 } from "../abi/json.js"
import { CONTROL_MAX, MOUNT_LINES_MAX } from "../abi/limit.js"
import { isCleanPath, isName } from "../abi/name.js"
import {
  agentHomePath,
  CONFIG_DIR,
  CTX_ROOT,
  isAtOrBelow,
  rootEntryPath,
  SANDBOX_HOME,
  SANDBOX_SESSIONS,
  STATE_DIR,
} from "../abi/path.js"
import { policyAllows } from "./decision.js"
import type { Policy } from "./policy.js"
import { closeSource, findHostFault, type OpenSource, openSource } from "./source.js"

/** What a malformed mount line fails in, in the order of the checks. */
export type MountWord = "fields" | "relative" | "path" | "mode" | "options" | "target"

const OPTIONS = ["bind", "rbind", "nosuid", "nodev", "noexec"] as const

/** An option of a mount line. Every bind is recursive, `nosuid` and `nodev`, whether said or not. */
export type MountOption = (typeof OPTIONS)[number]

/** One line of a mount file. */
export interface MountLine {
  source: string
  target: string
  mode: "ro" | "rw"
  options: Set<MountOption>
}

// A mount on one of these would cover the read-only history below it.
const HIDING_TARGETS = ["/", "/home", SANDBOX_HOME]
const SYSTEM_TARGETS = "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /etc /proc /sys /dev /run".split(" ")

type Flaw = { word: MountWord; why: string }

function parseOptions(s: string): Set<MountOption> | undefined {
  if (s === "-") return new Set()
  const words = s.split(",") as MountOption[]
  const options = new Set(words)
  const isKnown = words.every(word => OPTIONS.includes(word)) && options.size === words.length
  return isKnown && !(options.has("bind") && options.has("rbind")) ? options : undefined
}

function isTargetAllowed(line: MountLine): boolean {
  if (line.target === CTX_ROOT) return line.source === CTX_ROOT && line.mode === "ro"
  return (
    !HIDING_TARGETS.includes(line.target) &&
    ![...SYSTEM_TARGETS, SANDBOX_SESSIONS, CTX_ROOT].some(dir => isAtOrBelow(line.target, dir))
  )
}

function parseLine(text: string, targets: Set<string>): MountLine | Flaw {
  const fields = text.split("\t")
  if (fields.length !== 4) return { word: "fields", why: "write source, target, mode and options with TABs between" }
  const [source, target, mode, list] = fields as [string, string, string, string]
  if (!source.startsWith("/")) return { word: "relative", why: "source is relative" }
  if (!target.startsWith("/")) return { word: "relative", why: "target is relative" }
  if (!isCleanPath(source))
    return { word: "path", why: "source has an empty, . or .. component, a NUL, or is too long" }
  if (!isCleanPath(target))
    return { word: "path", why: "target has an empty, . or .. component, a NUL, or is too long" }
  if (mode !== "ro" && mode !== "rw") return { word: "mode", why: "mode must be ro or rw" }
  const options = parseOptions(list)
  if (options === undefined) return { word: "options", why: `write - or a list of ${OPTIONS.join(" ")}, each once` }
  const line: MountLine = { source, target, mode, options }
  if (!isTargetAllowed(line)) return { word: "target", why: `nothing may be mounted at ${target}` }
  if (targets.has(target)) return { word: "target", why: `${target} is the target of an earlier line` }
  targets.add(target)
  return line
}

/**
 * Reads a mount file without throwing: its lines, or the issue of the first malformed line, whose `why` begins with the
 * {@link MountWord}.
 */
export function checkMount(bytes: Uint8Array, what = "mount"): { lines: MountLine[]; issue?: Issue } {
  const bad = (why: string, at?: number): { lines: MountLine[]; issue: Issue } => ({
    lines: [],
    issue: at === undefined ? { kind: "invalid", what, why } : { kind: "invalid", what, at, why },
  })
  if (bytes.length > CONTROL_MAX) return bad(`has more than ${CONTROL_MAX} bytes`)
  let text: string
  try {
    text = decodeUtf8(bytes)
  } catch {
    return bad("path: is not UTF-8")
  }
  const rows = text.split("\n")
  const lines: MountLine[] = []
  const targets = new Set<string>()
  for (let i = 0; i < rows.length; i++) {
    if (rows[i] === "") continue
    if (i === rows.length - 1) return bad("fields: the last line must end in LF", i + 1)
    const line = parseLine(rows[i]!, targets)
    if ("word" in line) return bad(`${line.word}: ${line.why}`, i + 1)
    lines.push(line)
    if (lines.length > MOUNT_LINES_MAX) return bad(`has more than ${MOUNT_LINES_MAX} lines`, i + 1)
  }
  return { lines }
}

/** The lines of a mount file. Throws `EINVAL` as {@link checkMount} reports it, e.g. `mount line 2: relative: source is relative`. */
export function parseMount(bytes: Uint8Array, what = "mount"): MountLine[] {
  const { lines, issue } = checkMount(bytes, what)
  if (issue !== undefined) throw issueError(issue)
  return lines
}

/** The bytes of a mount file; {@link parseMount} reads the same lines from them. */
export function formatMount(lines: readonly MountLine[]): Buffer {
  const rows = lines.map(l => [l.source, l.target, l.mode, [...l.options].join(",") || "-"].join("\t"))
  return Buffer.from(rows.map(row => `${row}\n`).join(""))
}

/** What decides about a mount source besides its line. */
export interface MountContext {
  owner: number
  name: string
  subject: string
  policy: Policy | undefined
  /** Where the agent's own view is mounted. */
  viewDir: string
  /** The root of that view, opened once. */
  view: OpenSource
  /** Directories of this host that no payload may see: the durable tree, storage, the owner's XDG directories of CortexFS. */
  protectedDirs: readonly string[]
}

const HOST_DIRS = ["/proc", "/sys", "/dev", "/run"]

function refuseSource(path: string, why: string, what = "mount source"): never {
  throw new CtxError("EACCES", `${what} ${path}: ${why}`, { path })
}

// Refuses what of the view is not for a mount line of this agent; all of it is said by the path, for no link is followed.
function checkViewPath(line: MountLine, context: MountContext): void {
  if (line.source === CTX_ROOT) return
  const shared = `${rootEntryPath("shared")}/`
  const home = agentHomePath(context.owner, context.name)
  if (line.source.startsWith(shared)) {
    const space = line.source.slice(shared.length).split("/")[0]!
    const permissions = line.mode === "rw" ? ["read", "write"] : ["read"]
    const isAllowed = (permission: string) =>
      policyAllows(context.policy, context.subject, "shared", space, permission).allow
    if (isName(space) && permissions.every(isAllowed)) return
    refuseSource(line.source, `shared:${space} needs ${permissions.join(" and ")} in the policy`)
  }
  if (!isAtOrBelow(line.source, home)) {
    refuseSource(line.source, "only shared spaces and the agent's own home may be mounted from there")
  }
  if (isAtOrBelow(line.source, `${home}/session`)) refuseSource(line.source, "history is not mounted")
}

/**
 * Opens a directory or file of the host that a payload may see: not at, above or below what section 9 closes, nor in or above a view.
 * Also the rule for the `workspace` of a send. Links on the way are followed unless `isExact`. The caller closes the source.
 * Throws `ENOENT` when there is nothing, else `EACCES`.
 */
export async function openHostSource(
  path: string,
  context: Pick<MountContext, "viewDir" | "protectedDirs">,
  { what = "mount source", isExact = false } = {},
): Promise<OpenSource> {
  if (isAtOrBelow(path, CTX_ROOT)) refuseSource(path, `${CTX_ROOT} is not mounted`, what)
  const source = await openSource(path, { what: `${what} ${path}`, isLinkFollowed: !isExact })
  try {
    const product = [CONFIG_DIR, STATE_DIR, CTX_ROOT, context.viewDir, ...context.protectedDirs]
    const fault = findHostFault(source, { host: HOST_DIRS, product })
    if (fault !== undefined) refuseSource(path, fault, what)
    return source
  } catch (e) {
    closeSource(source)
    throw e
  }
}

/**
 * Opens what a mount line binds; the caller closes it. For `/ctx`, a shared space and the agent's own home it lies in the
 * agent's view and no link leads to it. Throws `ENOENT` when there is nothing, `EACCES` for a source that section 9 refuses.
 */
export async function openMountSource(line: MountLine, context: MountContext): Promise<OpenSource> {
  if (!isAtOrBelow(line.source, CTX_ROOT)) return await openHostSource(line.source, context)
  checkViewPath(line, context)
  const below = line.source.slice(CTX_ROOT.length + 1) || "."
  return await openSource(below, { what: `mount source ${line.source}`, base: context.view })
}
