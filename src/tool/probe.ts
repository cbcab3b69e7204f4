import { execFile } from "node:child_process"
import { lstatSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import { hasSeccomp, probeNamespaces } from "../native/sys.js"

/** The one place bubblewrap is taken from. */
export const BWRAP = "/usr/bin/bwrap"
const VERSION_MIN: [number, number] = [0, 8]
const VERSION_WAIT_MS = 5_000

/** The error for a sandbox that cannot be built: names the layer that is missing (agent-tool-security 6). */
export function sandboxDown(layer: string, cause?: unknown): CtxError {
  return new CtxError("EHOSTDOWN", `sandbox: ${layer}`, cause === undefined ? {} : { cause })
}

/** The identity of the program file whose version was read last, and that version's verdict. */
let known: { file: string; fault: CtxError | undefined } | undefined

/**
 * Makes sure that bubblewrap is the administrator's, new enough and binds by descriptor. The file is looked at for each launch, its version
 * asked once for each file. Errors: EHOSTDOWN.
 */
export async function checkBwrap(): Promise<void> {
  let stat: ReturnType<typeof statBwrap>
  try {
    stat = statBwrap()
  } catch (e) {
    throw sandboxDown(`${BWRAP} is missing; install bubblewrap`, e)
  }
  if (!stat.isFile() || stat.uid !== 0n || (stat.mode & 0o022n) !== 0n || (stat.mode & 0o111n) === 0n) {
    throw sandboxDown(`${BWRAP} is not a program of root that only root can write; reinstall bubblewrap`)
  }
  const file = [stat.dev, stat.ino, stat.size, stat.mtimeNs, stat.ctimeNs].join()
  if (known?.file !== file) known = { file, fault: await findVersionFault() }
  if (known.fault !== undefined) {
    const { fault } = known
    known = undefined
    throw fault
  }
}

function statBwrap() {
  return lstatSync(BWRAP, { bigint: true })
}

function askBwrap(option: string): Promise<string> {
  return new Promise((resolve, reject) => {
    execFile(BWRAP, [option], { env: {}, timeout: VERSION_WAIT_MS, maxBuffer: 65_536 }, (error, stdout) => {
      if (error === null) resolve(stdout)
      else reject(error)
    })
  })
}

async function findVersionFault(): Promise<CtxError | undefined> {
  try {
    const [, major, minor] = /^bubblewrap (\d+)\.(\d+)/.exec(await askBwrap("--version")) ?? []
    const isNew =
      major !== undefined &&
      (Number(major) > VERSION_MIN[0] || (Number(major) === VERSION_MIN[0] && Number(minor) >= VERSION_MIN[1]))
    if (!isNew) return sandboxDown(`${BWRAP} is older than ${VERSION_MIN.join(".")}; upgrade bubblewrap`)
    // Distributions gave it to older versions, so the number does not tell.
    if (/--bind-fd\b/.test(await askBwrap("--help"))) return undefined
    return sandboxDown(`${BWRAP} has no --bind-fd; upgrade bubblewrap to 0.10 or to the security update of your system`)
  } catch (e) {
    return sandboxDown(`${BWRAP} does not run; reinstall bubblewrap`, e)
  }
}

const REASONS: Readonly<Record<string, string>> = {
  EPERM: "are refused by a security module",
  EACCES: "are refused by a security module",
  ENOSPC: "are disabled",
  EUSERS: "are nested too deep",
  ENOSYS: "are not built into the kernel",
  EINVAL: "are not built into the kernel",
}

/** The error that names the first thing of the kernel's that a sandbox lacks here; undefined when nothing is lacking. */
export function findKernelFault(uid: number, gid: number): CtxError | undefined {
  if (process.arch !== "x64" && process.arch !== "arm64") {
    return sandboxDown(`there is no system call filter for ${process.arch}`)
  }
  if (!hasSeccomp()) return sandboxDown("the kernel has no seccomp filters")
  const [refused] = probeNamespaces(uid, gid)
  if (refused === undefined) return undefined
  return sandboxDown(`${refused.name} namespaces ${REASONS[refused.code] ?? `fail with ${refused.code}`}`)
}

/**
 * Looks once, at start, whether this host can build sandboxes for this identity; default is the caller's own. Each
 * launch still fails closed by itself. Errors: EHOSTDOWN naming the missing layer (agent-tool-security 6).
 */
export async function probeSandbox(uid = process.geteuid!(), gid = process.getegid!()): Promise<void> {
  await checkBwrap()
  let fault: CtxError | undefined
  try {
    fault = findKernelFault(uid, gid)
  } catch (e) {
    throw sandboxDown(`probing ends with ${codeOf(e) ?? "an error"}`, e)
  }
  if (fault !== undefined) throw fault
}
