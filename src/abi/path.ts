// Every path constant of the ABI (`root-abi.md` 8). The only module that holds these literals; it composes strings and reads nothing.
import { CtxError } from "./error.js"
import {
  isCleanPath,
  isGenerationName,
  isName,
  parseModel,
  parseUid,
  validateComponent,
  validateName,
  validateSessionName,
} from "./name.js"

export { validateComponent, validateName } from "./name.js"

/** Root of the mount unless `CTX_ROOT` says otherwise. */
export const CTX_ROOT = "/ctx"

/** The seven root entries in the order of `readdir` (`root-abi.md` 1). */
export const ROOT_ENTRIES = ["status", "bin", "model", "agent", "tool", "home", "shared"] as const

/** A name of {@link ROOT_ENTRIES}. */
export type RootEntry = (typeof ROOT_ENTRIES)[number]

/** Run directory of a system installation: listeners and views. */
export const RUN_DIR = "/run/cortexfs"

/** State directory of a system installation: the data root on a packaged host. */
export const STATE_DIR = "/var/lib/cortexfs"

/** Configuration directory of a system installation. */
export const CONFIG_DIR = "/etc/cortexfs"

/** Interpreter line of every object executable as it is read through the mount. */
export const OBJECT_RUNNER = "/usr/bin/cortexfs-object-runner"

/** Skills that come with the system (`agent-runtime.md` 8). */
export const SYSTEM_SKILLS = "/usr/share/cortexfs/skills"

/** Inside a sandbox: the control socket of the run (`agent-runtime.md` 12). */
export const SANDBOX_CONTROL_SOCKET = "/run/cortexfs/control.sock"

/** Inside a sandbox: the entry program (`agent-tool-security.md` 7.4). */
export const SANDBOX_ENTER = "/run/cortexfs/enter"

/** Inside a sandbox: the program, tool or hook itself. */
export const SANDBOX_PAYLOAD = "/run/cortexfs/payload"

/** Inside a terminal's sandbox: the names of its tools, one a line. */
export const SANDBOX_TOOLS = "/run/cortexfs/tools"

/** Inside a terminal's sandbox: the directory of plug-in tool executables. */
export const SANDBOX_TOOL_DIR = "/run/cortexfs/tool"

/** Inside a sandbox: the directory that holds all of the above, a tmpfs. */
export const SANDBOX_RUN_DIR = "/run/cortexfs"

/** Inside a sandbox: the agent's private home, its history (read-only), the workspace and a delegated child's artifacts. */
export const SANDBOX_HOME = "/home/agent"
export const SANDBOX_SESSIONS = "/home/agent/session"
export const SANDBOX_WORKSPACE = "/workspace"
export const SANDBOX_ARTIFACT = "/artifact"

/** Bytes a Unix socket path may have (`sockaddr_un` without its NUL). */
export const SOCKET_PATH_MAX = 107

/** The user whose per-user installation is meant: the environment's XDG variables, the home directory. */
export interface UserPlace {
  env: Readonly<Record<string, string | undefined>>
  home: string
}

function validateRoot(root: string): string {
  if (!isCleanPath(root))
    throw new CtxError("EINVAL", `${JSON.stringify(root)} is not an absolute path without . and ..`)
  return root === "/" ? "" : root
}

function listener(path: string): string {
  if (Buffer.byteLength(path) > SOCKET_PATH_MAX) {
    throw new CtxError("ENAMETOOLONG", `socket path has more than ${SOCKET_PATH_MAX} bytes: take a shorter name`, {
      path,
    })
  }
  return path
}

/** A NAME as it is written in the names of agent listeners, views and units: `+` becomes `\x2b` (`units.md` 1). */
export function escapeUnitName(name: string): string {
  return validateName(name).replaceAll("+", "\\x2b")
}

/** Path of a root entry; throws `EINVAL` for any other name. */
export function rootEntryPath(name: string, root = CTX_ROOT): string {
  if (!(ROOT_ENTRIES as readonly string[]).includes(name)) {
    throw new CtxError("EINVAL", `${JSON.stringify(name)} is not a root entry: use one of ${ROOT_ENTRIES.join(" ")}`)
  }
  return `${validateRoot(root)}/${name}`
}

/** `/ctx/model/<provider>/<model>`, with `file` the path of a file of its `.d`. */
export function modelPath(model: string, file?: string, root = CTX_ROOT): string {
  const m = parseModel(model)
  const base = `${rootEntryPath("model", root)}/${m.provider}/${m.model}`
  return file === undefined ? base : `${base}.d/${validateComponent(file)}`
}

/** Path of a model alias, `/ctx/model/<alias>`. */
export function aliasPath(alias: string, root = CTX_ROOT): string {
  return `${rootEntryPath("model", root)}/${validateName(alias)}`
}

/** `/ctx/tool/<name>`, with `control` the path of a control of its `.d`. */
export function toolPath(name: string, control?: string, root = CTX_ROOT): string {
  const base = `${rootEntryPath("tool", root)}/${validateName(name)}`
  return control === undefined ? base : `${base}.d/${validateComponent(control)}`
}

/** `/ctx/agent/<name>`, the executable. */
export function agentPath(name: string, root = CTX_ROOT): string {
  return `${rootEntryPath("agent", root)}/${validateName(name)}`
}

/** Public agent socket: `/ctx/agent/<name>.sock`. */
export function agentSocketPath(name: string, root = CTX_ROOT): string {
  return `${agentPath(name, root)}.sock`
}

/** `/ctx/agent/<name>.d`, with `control` the path of one control. */
export function agentControlPath(name: string, control?: string, root = CTX_ROOT): string {
  const base = `${agentPath(name, root)}.d`
  return control === undefined ? base : `${base}/${validateComponent(control)}`
}

/** `/ctx/home/<uid>`, the user tier. */
export function homePath(uid: number | string, root = CTX_ROOT): string {
  return `${rootEntryPath("home", root)}/${parseUid(String(uid))}`
}

/** `/ctx/shared/<space>`. */
export function sharedPath(space: string, root = CTX_ROOT): string {
  return `${rootEntryPath("shared", root)}/${validateName(space)}`
}

/** `/ctx/home/<uid>/agent/<name>`, the private state of an agent. */
export function agentHomePath(uid: number | string, name: string, root = CTX_ROOT): string {
  return `${homePath(uid, root)}/agent/${validateName(name)}`
}

/** Directory of an agent's private sessions: `/ctx/home/<uid>/agent/<name>/session`. */
export function agentSessionsPath(uid: number | string, name: string, root = CTX_ROOT): string {
  return `${agentHomePath(uid, name, root)}/session`
}

/** Directory of an agent's sessions in a space: `/ctx/shared/<space>/agent/<name>/session`. */
export function sharedSessionsPath(space: string, name: string, root = CTX_ROOT): string {
  return `${sharedPath(space, root)}/agent/${validateName(name)}/session`
}

/** A private session's directory, or with `parts` a file in it, one argument a component. */
export function sessionFilePath(uid: number | string, name: string, session: string, ...parts: string[]): string {
  return [agentSessionsPath(uid, name), validateSessionName(session), ...parts.map(validateComponent)].join("/")
}

/** Terminal entry: `/ctx/home/<uid>/agent/<name>/session/<s>/terminal/main.sock`. */
export function sessionTerminalPath(uid: number | string, name: string, session: string): string {
  return sessionFilePath(uid, name, session, "terminal", "main.sock")
}

/** Run directory of a per-user installation: `/run/user/<uid>/cortexfs`. */
export function userRunDir(uid: number | string): string {
  return `/run/user/${parseUid(String(uid))}/cortexfs`
}

/** Root of a per-user installation, where its host view is mounted: `/run/user/<uid>/cortexfs/ctx`. */
export function userRootPath(uid: number | string): string {
  return `${userRunDir(uid)}/ctx`
}

/** A path below a home directory, which may be `/` or end in `/`. */
function belowHome(home: string, path: string): string {
  return `${home.replace(/\/+$/, "")}/${path}`
}

/** Configuration directory of a per-user installation: `${XDG_CONFIG_HOME:-~/.config}/cortexfs`. */
export function userConfigDir(user: UserPlace): string {
  return `${validateRoot(user.env.XDG_CONFIG_HOME || belowHome(user.home, ".config"))}/cortexfs`
}

/** State directory of a per-user installation: `${XDG_STATE_HOME:-~/.local/state}/cortexfs`. */
export function userStateDir(user: UserPlace): string {
  return `${validateRoot(user.env.XDG_STATE_HOME || belowHome(user.home, ".local/state"))}/cortexfs`
}

/** Agent listener: `<run>/agent/<name>.sock`, `+` written `\x2b`. Throws `ENAMETOOLONG` above 107 bytes. */
export function systemAgentSocket(name: string, run = RUN_DIR): string {
  return listener(`${validateRoot(run)}/agent/${escapeUnitName(name)}.sock`)
}

/** Agent listener of a per-user installation: `/run/user/<uid>/cortexfs/agent/<name>.sock`. */
export function userAgentSocket(uid: number | string, name: string): string {
  return systemAgentSocket(name, userRunDir(uid))
}

/** Model listener: `<run>/model/<provider>/<model>.sock`. Throws `ENAMETOOLONG` above 107 bytes. */
export function modelSocket(model: string, run = RUN_DIR): string {
  const m = parseModel(model)
  return listener(`${validateRoot(run)}/model/${m.provider}/${m.model}.sock`)
}

/** Terminal listener: `/run/user/<uid>/cortexfs/terminal/<name>/<s>/main.sock`. Throws `ENAMETOOLONG` above 107 bytes. */
export function terminalSocket(uid: number | string, name: string, session: string): string {
  return listener(`${userRunDir(uid)}/terminal/${validateName(name)}/${validateSessionName(session)}/main.sock`)
}

/** The agent's own mount: `<run>/mount/<name>`, `+` written `\x2b`. */
export function agentMountPath(name: string, run = RUN_DIR): string {
  return `${validateRoot(run)}/mount/${escapeUnitName(name)}`
}

/** `<data root>/storage`. */
export function storagePath(dataRoot = STATE_DIR): string {
  return `${validateRoot(dataRoot)}/storage`
}

/** The link that selects a generation: `<data root>/storage/current`. */
export function storageCurrent(dataRoot = STATE_DIR): string {
  return `${storagePath(dataRoot)}/current`
}

/** `<data root>/storage/generations/<generation>`. */
export function generationPath(generation: string, dataRoot = STATE_DIR): string {
  if (!isGenerationName(generation)) {
    throw new CtxError("EINVAL", `${JSON.stringify(generation)} is not a generation name`)
  }
  return `${storagePath(dataRoot)}/generations/${generation}`
}

/** Durable home of a user: `<data root>/home/<uid>`. */
export function durableHomePath(uid: number | string, dataRoot = STATE_DIR): string {
  return `${validateRoot(dataRoot)}/home/${parseUid(String(uid))}`
}

/** Durable space: `<data root>/shared/<space>`. */
export function durableSpacePath(space: string, dataRoot = STATE_DIR): string {
  return `${validateRoot(dataRoot)}/shared/${validateName(space)}`
}

/**
 * The data root of a resolved source directory and the name of its generation: for `D/storage/generations/<g>` D and g,
 * for every other directory itself and `-` (`root-abi.md` 8).
 */
export function dataRootOf(source: string): { dataRoot: string; generation: string } {
  const parts = validateRoot(source).split("/")
  const [storage, generations, generation] = parts.slice(-3)
  if (parts.length >= 4 && storage === "storage" && generations === "generations" && isGenerationName(generation)) {
    return { dataRoot: parts.slice(0, -3).join("/") || "/", generation }
  }
  return { dataRoot: source, generation: "-" }
}

/** Directory of provider configuration, with `file` one file of it: `/etc/cortexfs/providers.d/<file>`. */
export function providerConfigPath(file?: string, config = CONFIG_DIR): string {
  const dir = `${validateRoot(config)}/providers.d`
  return file === undefined ? dir : `${dir}/${validateComponent(file)}`
}

/** A secret: `/var/lib/cortexfs/secrets/provider/<provider>/<slot>`. */
export function providerSecretPath(provider: string, slot: string, state = STATE_DIR): string {
  return `${validateRoot(state)}/secrets/provider/${validateName(provider)}/${validateName(slot)}`
}

/** `/var/lib/cortexfs/cache/model-limits.json`. */
export function limitCachePath(state = STATE_DIR): string {
  return `${validateRoot(state)}/cache/model-limits.json`
}

/** The log that model services append to: `/var/lib/cortexfs/cache/model.log`. */
export function modelLogPath(state = STATE_DIR): string {
  return `${validateRoot(state)}/cache/model.log`
}

/** Host-wide rules: `/etc/cortexfs/AGENTS.md` (`agent-runtime.md` 8). */
export function hostRulesPath(config = CONFIG_DIR): string {
  return `${validateRoot(config)}/AGENTS.md`
}

/** Configuration of the policy interpreter: `/etc/cortexfs/policy.json` (`tool-policy-abi.md` 8). */
export function interpreterConfigPath(config = CONFIG_DIR): string {
  return `${validateRoot(config)}/policy.json`
}

/** True when `path` is `base` or lies below it; both absolute and clean. */
export function isAtOrBelow(path: string, base: string): boolean {
  return base === "/" || path === base || path.startsWith(`${base}/`)
}

/** True when `s` is the NAME of an object's executable, `.d` or `.sock` in a class directory; gives the NAME and which it is. */
export function parseEntry(s: string): { name: string; part: "executable" | "controls" | "socket" } | undefined {
  if (isName(s)) return { name: s, part: "executable" }
  if (s.endsWith(".d") && isName(s.slice(0, -2))) return { name: s.slice(0, -2), part: "controls" }
  if (s.endsWith(".sock") && isName(s.slice(0, -5))) return { name: s.slice(0, -5), part: "socket" }
  return undefined
}
