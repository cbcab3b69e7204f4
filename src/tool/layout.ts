import { constants, existsSync } from "node:fs"
import { access, lstat, readlink, stat } from "node:fs/promises"
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
import { checkMountSource, type MountLine, parseMount } from "../policy/mount.js"
import { type Policy, parsePolicy } from "../policy/policy.js"
import type { Agent } from "../store/agent.js"
import { sandboxDown } from "./probe.js"

const TMP = "/tmp"
const RUN = "/run"
const TMP_SIZE_BYTES = 512 * 1024 * 1024
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
  /** Host path. */
  source: string
  mode: "ro" | "rw"
}

/** The part of the file tree that differs between agents and requests, in the order of mounting (agent-tool-security 7.3). */
export interface Layout {
  binds: Bind[]
  /** The line that puts a directory at /tmp, in place of the tmpfs. */
  tmp?: Bind
}

/** Files written for one sandbox and the host paths that are bound besides the layout. */
export interface Fixtures {
  payloadPath: string
  controlSocket?: string
  /** Descriptors of generated files by their name in /etc. */
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

async function requireSource(path: string, what: string): Promise<void> {
  try {
    await stat(path)
  } catch (e) {
    const code = codeOf(e)
    if (code === "EACCES") throw new CtxError("EACCES", `${what} cannot be reached`, { path, cause: e })
    if (code !== "ENOENT" && code !== "ENOTDIR") throw sandboxDown(`${what} does not answer`, e)
    throw new CtxError("ENOENT", `${what} does not exist`, { path, cause: e })
  }
}

async function requireView({ agent, viewDir }: Place): Promise<void> {
  try {
    await stat(viewDir)
  } catch (e) {
    throw sandboxDown(`view of agent ${agent.name} is not there; start its mount`, e)
  }
}

/**
 * Works out what lies at /ctx, /home/agent, /workspace and the targets of the mount file, and proves each source.
 * Errors: EINVAL for a malformed mount file, ENOENT for a missing source, EACCES for a refused one, EHOSTDOWN for a
 * line with `noexec`, which nothing here can enforce (agent-tool-security 6, 7.3; tool-policy-abi 9).
 */
export async function planLayout(place: Place): Promise<Layout> {
  const { agent, viewDir } = place
  const lines = parseMount(agent.mount, `agent/${agent.name}.d/mount`)
  if (lines.some(line => line.options.has("noexec"))) {
    throw sandboxDown("noexec in the mount file needs Landlock, which is not in use; remove noexec")
  }
  const { protectedDirs } = place
  const context = {
    owner: agent.owner,
    name: agent.name,
    subject: agent.subject,
    policy: readPolicy(agent),
    viewDir,
    protectedDirs,
  }
  const bindLine = async (line: MountLine): Promise<Bind> => ({
    target: line.target,
    source: await checkMountSource(line, context),
    mode: line.mode,
  })
  const home = agentHomePath(agent.owner, agent.name, viewDir)
  const binds: Bind[] = [
    { target: CTX_ROOT, source: viewDir, mode: "ro" },
    { target: SANDBOX_HOME, source: home, mode: "rw" },
    { target: SANDBOX_SESSIONS, source: `${home}/session`, mode: "ro" },
  ]
  await requireView(place)
  await requireSource(home, `home of agent ${agent.name}`)
  await requireSource(`${home}/session`, `session directory of agent ${agent.name}`)
  const workspaceLine = lines.find(line => line.target === SANDBOX_WORKSPACE)
  const workspace = await planWorkspace(place, `${home}/data`, workspaceLine && (await bindLine(workspaceLine)))
  binds.push(workspace)
  if (await hasGit(workspace.source)) {
    binds.push({ target: `${SANDBOX_WORKSPACE}/.git`, source: `${workspace.source}/.git`, mode: "ro" })
  }
  let tmp: Bind | undefined
  for (const line of lines) {
    if (line.target === CTX_ROOT || line === workspaceLine) continue
    const bind = await bindLine(line)
    if (line.target === TMP) tmp = bind
    else binds.push(bind)
  }
  return tmp === undefined ? { binds } : { binds, tmp }
}

async function planWorkspace(place: Place, dataDir: string, line: Bind | undefined): Promise<Bind> {
  if (place.workspaceDir === undefined && line !== undefined) return line
  const source = place.workspaceDir ?? dataDir
  await requireSource(source, `workspace ${source}`)
  return { target: SANDBOX_WORKSPACE, source, mode: line?.mode ?? "rw" }
}

/** Whether the workspace has a `.git` that is a file or a directory; a link there is the agent's to replace anyway. */
async function hasGit(workspaceDir: string): Promise<boolean> {
  try {
    const facts = await lstat(`${workspaceDir}/.git`)
    return facts.isFile() || facts.isDirectory()
  } catch (e) {
    if (codeOf(e) === "ENOENT" || codeOf(e) === "ENOTDIR") return false
    throw e
  }
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

/** The arguments that build the file tree, from the first bind to the last `--remount-ro` (agent-tool-security 7.2, 7.3). */
export async function treeArguments(layout: Layout, fixtures: Fixtures): Promise<string[]> {
  const late = prefixes().filter(path => isAtOrBelow(path, TMP) || isAtOrBelow(path, RUN))
  const early = prefixes().filter(path => !late.includes(path))
  const args = ["--ro-bind", "/usr", "/usr", ...(await systemArguments())]
  for (const path of early) args.push("--ro-bind", path, path)
  args.push(...(await etcArguments(fixtures.etcFds)), "--proc", "/proc", "--dev", "/dev")
  if (layout.tmp === undefined) args.push("--perms", "1777", "--size", String(TMP_SIZE_BYTES), "--tmpfs", TMP)
  else args.push(...bindArguments(layout.tmp))
  args.push("--perms", "0755", "--tmpfs", RUN)
  args.push("--ro-bind", nativeProgram("cortexfs-enter"), SANDBOX_ENTER)
  args.push("--ro-bind", fixtures.payloadPath, SANDBOX_PAYLOAD)
  if (fixtures.controlSocket !== undefined) args.push("--ro-bind", fixtures.controlSocket, SANDBOX_CONTROL_SOCKET)
  for (const path of late) args.push("--ro-bind", path, path)
  for (const bind of layout.binds) args.push(...bindArguments(bind))
  args.push("--remount-ro", RUN, "--remount-ro", "/")
  return args
}

function bindArguments(bind: Bind): string[] {
  return [bind.mode === "rw" ? "--bind" : "--ro-bind", bind.source, bind.target]
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
  try {
    const facts = await stat(covering.source + cwd.slice(covering.target.length))
    return facts.isDirectory() ? undefined : new CtxError("ENOTDIR", `cwd ${cwd} is not a directory`)
  } catch (e) {
    const code = codeOf(e)
    if (code !== "ENOENT" && code !== "ENOTDIR" && code !== "EACCES") return undefined
    return new CtxError(code, `cwd ${cwd} cannot be entered`, { cause: e })
  }
}
