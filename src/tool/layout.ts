import { constants, existsSync } from "node:fs"
import { access, lstat, readlink } from "node:fs/promises"
import { dirname } from "node:path"
import { CtxError, codeOf } from "../abi/error.js"
import {
  agentHomePath,
  CTX_ROOT,
  isAtOrBelow,
  SANDBOX_CONTROL_SOCKET,
  SANDBOX_ENTER,
  SANDBOX_HOME,
  SANDBOX_PAYLOAD,
  SANDBOX_SESSIONS,
  SANDBOX_WORKSPACE,
} from "../abi/path.js"
import { LIB_ROOT, nativeProgram } from "../native/addon.js"
import { type MountLine, openHostSource, openMountSource, parseMount } from "../policy/mount.js"
import { type Policy, parsePolicy } from "../policy/policy.js"
import {
  closeSource,
  describeSource,
  isDirectorySource,
  listLinkPlaces,
  type OpenSource,
  openSource,
} from "../policy/source.js"
import type { Agent } from "../store/agent.js"
import { sandboxDown } from "./probe.js"

const TMP = "/tmp"
const RUN = "/run"
const TMP_SIZE_BYTES = 512 * 1024 * 1024
const SHM_SIZE_BYTES = 64 * 1024 * 1024
const SYSTEM_DIRS = ["/bin", "/sbin", "/lib", "/lib64"]
/** What of the host's /etc is shown, where the host has it. */
const HOST_ETC = ["nsswitch.conf", "ld.so.cache", "localtime", "alternatives", "ssl/certs", "ca-certificates", "pki"]

/** Where the mounts of a sandbox come from. */
export interface Place {
  agent: Agent
  /** Where the agent's own view is mounted. */
  viewDir: string
  /** Host directory that a request wants at /workspace; undefined: the mount file, else the agent's `data`. */
  workspaceDir?: string
  /** Directories no mount line may lead to: the durable tree and the owner's own of CortexFS (tool-policy-abi 9). */
  protectedDirs: readonly string[]
}

/** A directory the agent's controls or request put into the sandbox. */
export interface Bind {
  target: string
  /** Opened once: this inode was checked and is bound, whatever its path names by then. */
  source: OpenSource
  mode: "ro" | "rw"
}

/** The part of the file tree that differs between agents and requests, in the order of mounting (agent-tool-security 7.3). */
export interface Layout {
  binds: Bind[]
  /** The line that puts a directory at /tmp, in place of the tmpfs. */
  tmp?: Bind
  /** Closes every source; once. */
  close(): void
}

/** What lies in a sandbox besides the layout: generated files by the number of their descriptor and their name in /etc, sources at /run. */
export interface Fixtures {
  binds: readonly Bind[]
  etcFds: Readonly<Record<string, number>>
}

/** A policy that is missing or malformed denies everything. */
function readPolicy(agent: Agent): Policy | undefined {
  try {
    return agent.policy && parsePolicy(agent.policy)
  } catch {
    return undefined
  }
}

/** A file system that fails otherwise than by refusing does not answer. */
async function openOrDown(path: string, rule: Parameters<typeof openSource>[1]): Promise<OpenSource> {
  try {
    return await openSource(path, rule)
  } catch (e) {
    throw e instanceof CtxError ? e : sandboxDown(`${rule.what} does not answer`, e)
  }
}

async function openView({ agent, viewDir }: Place): Promise<OpenSource> {
  try {
    return await openSource(viewDir, { what: `view of agent ${agent.name}`, isLinkFollowed: true })
  } catch (e) {
    throw sandboxDown(`view of agent ${agent.name} is not there; start its mount`, e)
  }
}

/** Collects the sources of one sandbox, so that a refusal in between closes them all. */
class Planner {
  readonly opened: OpenSource[] = []

  async keep(source: Promise<OpenSource>): Promise<OpenSource> {
    const kept = await source
    this.opened.push(kept)
    return kept
  }

  close(): void {
    for (const source of this.opened.splice(0)) closeSource(source)
  }
}

/**
 * Opens what lies at /ctx, /home/agent, /workspace and the targets of the mount file, and proves each source by its
 * descriptor. The caller closes the layout. Errors: EINVAL for a malformed mount file, ENOENT for a missing source,
 * EACCES for a refused one, EHOSTDOWN for a line with `noexec`, which nothing here can enforce (agent-tool-security 6,
 * 7.3; tool-policy-abi 9).
 */
export async function planLayout(place: Place): Promise<Layout> {
  const { agent } = place
  const lines = parseMount(agent.mount, `agent/${agent.name}.d/mount`)
  if (lines.some(line => line.options.has("noexec"))) {
    throw sandboxDown("noexec in the mount file needs Landlock, which is not in use; remove noexec")
  }
  const planner = new Planner()
  try {
    return { ...(await planBinds(place, lines, planner)), close: () => planner.close() }
  } catch (e) {
    planner.close()
    throw e instanceof CtxError ? e : sandboxDown("what is to be mounted does not answer", e)
  }
}

async function planBinds(place: Place, lines: MountLine[], planner: Planner): Promise<Omit<Layout, "close">> {
  const { agent, viewDir, protectedDirs } = place
  const { owner, name, subject } = agent
  const view = await planner.keep(openView(place))
  const context = { owner, name, subject, policy: readPolicy(agent), viewDir, view, protectedDirs }
  const homePath = agentHomePath(owner, name).slice(CTX_ROOT.length + 1)
  const home = await planner.keep(openOrDown(homePath, { what: `home of agent ${name}`, base: view }))
  const sessionRule = { what: `session directory of agent ${name}`, base: home }
  const binds: Bind[] = [
    { target: CTX_ROOT, source: view, mode: "ro" },
    { target: SANDBOX_HOME, source: home, mode: "rw" },
    { target: SANDBOX_SESSIONS, source: await planner.keep(openOrDown("session", sessionRule)), mode: "ro" },
  ]
  const fromLine = new Map<MountLine, Bind>()
  for (const line of lines) {
    if (line.target === CTX_ROOT) continue
    // A line is proved also where the request's directory takes its place.
    const source = await planner.keep(openMountSource(line, context))
    fromLine.set(line, { target: line.target, source, mode: line.mode })
  }
  const workspaceLine = lines.find(line => line.target === SANDBOX_WORKSPACE)
  const workspace = await planWorkspace(place, home, workspaceLine && fromLine.get(workspaceLine), planner)
  const further = [...fromLine].filter(([line]) => line !== workspaceLine).map(([, bind]) => bind)
  refuseOwnLinks(fromLine, [...further, workspace])
  binds.push(workspace)
  const git = await findGit(workspace.source, planner)
  if (git !== undefined) binds.push({ target: `${SANDBOX_WORKSPACE}/.git`, source: git, mode: "ro" })
  binds.push(...further.filter(bind => bind.target !== TMP))
  const tmp = further.find(bind => bind.target === TMP)
  return tmp === undefined ? { binds } : { binds, tmp }
}

async function planWorkspace(place: Place, home: OpenSource, line: Bind | undefined, planner: Planner): Promise<Bind> {
  if (place.workspaceDir === undefined && line !== undefined) return line
  const mode = line?.mode ?? "rw"
  const { agent, workspaceDir } = place
  const opened =
    workspaceDir === undefined
      ? openOrDown("data", { what: `data of agent ${agent.name}`, base: home })
      : openHostSource(workspaceDir, place, { what: "workspace", isExact: true })
  const source = await planner.keep(opened)
  if (!isDirectorySource(source)) throw new CtxError("ENOTDIR", `${source.what} is not a directory`)
  return { target: SANDBOX_WORKSPACE, source, mode }
}

/**
 * Refuses a mount line whose source is reached through a link that lies where the agent may write: it would name what the
 * agent likes. Errors: EACCES.
 */
function refuseOwnLinks(fromLine: ReadonlyMap<MountLine, Bind>, shown: readonly Bind[]): void {
  const writable = shown.filter(bind => bind.mode === "rw")
  for (const [line, { source }] of fromLine) {
    if (isAtOrBelow(line.source, CTX_ROOT) || source.path === line.source) continue
    const place = listLinkPlaces(line.source, source).find(dir =>
      writable.some(bind => isAtOrBelow(dir, bind.source.path)),
    )
    if (place !== undefined) {
      throw new CtxError("EACCES", `${source.what} is reached through a link in ${place}, where the agent may write`)
    }
  }
}

/**
 * The workspace's `.git` that is a file or a directory. A link cannot be protected by a mount at its name, which would
 * stand where it leads; inside it leads to nothing that the sandbox does not show anyway.
 */
async function findGit(workspace: OpenSource, planner: Planner): Promise<OpenSource | undefined> {
  if (!isDirectorySource(workspace)) return undefined
  try {
    const facts = await lstat(`/proc/self/fd/${workspace.fd}/.git`)
    if (!facts.isFile() && !facts.isDirectory()) return undefined
  } catch (e) {
    if (codeOf(e) === "ENOENT" || codeOf(e) === "ENOTDIR") return undefined
    throw e
  }
  return await planner.keep(openOrDown(".git", { what: ".git of the workspace", base: workspace }))
}

/** The directory Node.js was installed into; the program alone where it does not lie in an installation of its own. */
function nodePrefix(): string {
  const prefix = dirname(dirname(process.execPath))
  // A node copied to ~/bin must not make the whole home visible.
  return existsSync(`${prefix}/include/node/node_version.h`) ? prefix : process.execPath
}

/** Prefixes of the running product and its Node.js that lie outside /usr, each once, a covering one alone. */
export function prefixes(): string[] {
  const found = [LIB_ROOT, nodePrefix()].filter(path => !isAtOrBelow(path, "/usr"))
  return found.filter(
    (path, i) => !found.some((other, j) => j !== i && isAtOrBelow(path, other) && (path !== other || j < i)),
  )
}

/**
 * The arguments that build the file tree, from the first bind to the last `--remount-ro` (agent-tool-security 7.2, 7.3).
 * `numberOf` gives the number a source has in bubblewrap.
 */
export async function treeArguments(
  layout: Layout,
  fixtures: Fixtures,
  numberOf: (source: OpenSource) => number,
): Promise<string[]> {
  const late = prefixes().filter(path => isAtOrBelow(path, TMP) || isAtOrBelow(path, RUN))
  const early = prefixes().filter(path => !late.includes(path))
  const bind = ({ mode, source, target }: Bind) => [
    mode === "rw" ? "--bind-fd" : "--ro-bind-fd",
    String(numberOf(source)),
    target,
  ]
  const args = ["--ro-bind", "/usr", "/usr", ...(await systemArguments())]
  for (const path of early) args.push("--ro-bind", path, path)
  args.push(...(await etcArguments(fixtures.etcFds)), "--proc", "/proc", "--dev", "/dev")
  args.push("--perms", "1777", "--size", String(SHM_SIZE_BYTES), "--tmpfs", "/dev/shm")
  if (layout.tmp === undefined) args.push("--perms", "1777", "--size", String(TMP_SIZE_BYTES), "--tmpfs", TMP)
  else args.push(...bind(layout.tmp))
  args.push("--perms", "0755", "--tmpfs", RUN)
  for (const one of fixtures.binds) args.push(...bind(one))
  for (const path of late) args.push("--ro-bind", path, path)
  for (const one of layout.binds) args.push(...bind(one))
  args.push("--remount-ro", "/dev", "--remount-ro", RUN, "--remount-ro", "/")
  return args
}

/**
 * Opens what lies below /run besides the tree of the agent: entry program, payload, control socket. `payloadFd` stays the
 * caller's, the others he closes. Errors: ENOENT, EACCES.
 */
export async function openFixtures(payloadFd: number, controlSocket: string | undefined): Promise<Bind[]> {
  const binds: Bind[] = []
  const add = (target: string, source: OpenSource) => binds.push({ target, source, mode: "ro" })
  const what = "the entry program"
  add(SANDBOX_PAYLOAD, await describeSource(payloadFd, "payload"))
  try {
    add(SANDBOX_ENTER, await openSource(nativeProgram("cortexfs-enter"), { what, isLinkFollowed: true }))
    if (controlSocket === undefined) return binds
    add(SANDBOX_CONTROL_SOCKET, await openSource(controlSocket, { what: "control socket", isLinkFollowed: true }))
    if ((binds.at(-1)!.source.mode & constants.S_IFMT) === constants.S_IFSOCK) return binds
    throw new CtxError("EACCES", "control socket is not a socket", { path: controlSocket })
  } catch (e) {
    closeFixtures(binds)
    throw e
  }
}

/** Closes what {@link openFixtures} opened. */
export function closeFixtures(binds: readonly Bind[]): void {
  for (const { target, source } of binds) if (target !== SANDBOX_PAYLOAD) closeSource(source)
}

/** /bin, /sbin, /lib and /lib64 as the host has them: a link or a directory. */
async function systemArguments(): Promise<string[]> {
  const args: string[] = []
  for (const path of SYSTEM_DIRS) {
    try {
      if ((await lstat(path)).isSymbolicLink()) args.push("--symlink", await readlink(path), path)
      else args.push("--ro-bind", path, path)
    } catch (e) {
      if (codeOf(e) !== "ENOENT") throw e
    }
  }
  return args
}

async function etcArguments(fds: Readonly<Record<string, number>>): Promise<string[]> {
  const args = ["--dir", "/etc"]
  for (const [name, fd] of Object.entries(fds)) args.push("--perms", "0644", "--file", String(fd), `/etc/${name}`)
  for (const name of HOST_ETC) {
    try {
      await access(`/etc/${name}`, constants.R_OK)
    } catch {
      // Not on this host, or not for this user: then it does not exist inside either.
      continue
    }
    args.push("--ro-bind", `/etc/${name}`, `/etc/${name}`)
  }
  return args
}

/** The generated files of /etc for a payload that sees itself as `uid`:`gid`; names and their bytes. */
export function etcFiles(agent: Agent, uid: number, gid: number): Record<string, Buffer> {
  const passwd = [`${agent.name}:x:${uid}:${gid}::${SANDBOX_HOME}:/usr/bin/bash`]
  if (uid !== 65534) passwd.push("nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin")
  const group = [`${agent.name}:x:${gid}:`]
  if (gid !== 65534) group.push("nobody:x:65534:")
  const hosts = ["127.0.0.1 localhost cortexfs", "::1 localhost"]
  const file = (lines: string[]) => Buffer.from(lines.map(line => `${line}\n`).join(""))
  return { passwd: file(passwd), group: file(group), hosts: file(hosts) }
}

/** Why a payload cannot begin in `cwd`, as far as the layout decides it: ENOENT, ENOTDIR or EACCES; undefined when it can. */
export async function findCwdFault(layout: Layout, cwd: string): Promise<CtxError | undefined> {
  const binds = layout.tmp === undefined ? layout.binds : [...layout.binds, layout.tmp]
  const covering = binds
    .filter(bind => isAtOrBelow(cwd, bind.target))
    .sort((a, b) => b.target.length - a.target.length)[0]
  if (covering === undefined) return undefined
  const below = cwd.slice(covering.target.length).replace(/^\//, "") || "."
  try {
    const source = await openSource(below, { what: `cwd ${cwd}`, base: covering.source, isLinkFollowed: true })
    closeSource(source)
    return isDirectorySource(source) ? undefined : new CtxError("ENOTDIR", `cwd ${cwd} is not a directory`)
  } catch (e) {
    if (!(e instanceof CtxError)) return undefined
    return codeOf(e.cause) === "ENOTDIR" ? new CtxError("ENOTDIR", `cwd ${cwd} is not a directory`) : e
  }
}
