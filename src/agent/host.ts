import { closeSync, constants, existsSync } from "node:fs"
import { open } from "node:fs/promises"
import { CtxError } from "../abi/error.js"
import { type UserPlace, userConfigDir, userStateDir } from "../abi/path.js"
import { listMountsAt } from "../native/mounts.js"
import type { Interpreter } from "../policy/interpreter.js"
import type { Source } from "../store/generation.js"
import type { Logs } from "./log.js"

const VIEW_ANSWER_MS = 2_000

/** What a runtime knows about the machine it serves on; fixed for its life. */
export interface Host {
  source: Source
  /** The one agent that is served. */
  name: string
  /** Where the agent's own view is mounted. */
  viewDir: string
  /** Directories that no payload may see besides the fixed ones: the durable tree, storage, the owner's own of CortexFS. */
  readonly protectedDirs: readonly string[]
  interpreter: Interpreter
  logs: Logs
}

/**
 * The directories of a host that no payload may see: the durable tree with its storage, what programs of CortexFS were
 * pointed to, and the owner's own of CortexFS as far as they are there. tool-policy-abi 9
 */
export function listProtected(source: Source, dirs: readonly string[], owner: UserPlace | undefined): string[] {
  const { dir, dataRoot } = source
  const own = owner === undefined ? [] : [userConfigDir(owner), userStateDir(owner)]
  const durable = ["home", "shared", "storage"].map(name => `${dataRoot}/${name}`)
  return [dir, ...durable.filter(path => existsSync(path)), ...dirs, ...own.filter(path => existsSync(path))]
}

function isMounted(dir: string): boolean {
  return listMountsAt(dir).some(mount => mount.type === "fuse.cortexfs")
}

async function readStatus(viewDir: string): Promise<string> {
  const file = await open(`${viewDir}/status`, constants.O_RDONLY | constants.O_NOFOLLOW)
  try {
    return (await file.readFile()).toString("utf8")
  } finally {
    await file.close()
  }
}

/**
 * Makes sure that the agent's own view is a live mount of this agent. The mount is asked on the thread pool and has
 * 2 s: a hung one must not stop the other sessions. Errors: EHOSTDOWN. agent-tool-security 6
 */
export async function checkView(host: Host): Promise<void> {
  const down = (why: string, cause?: unknown) =>
    new CtxError("EHOSTDOWN", `view of agent ${host.name} ${why}; start its mount`, { path: host.viewDir, cause })
  if (!isMounted(host.viewDir)) throw down("is not mounted")
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(down("does not answer")), VIEW_ANSWER_MS)
  })
  try {
    const status = await Promise.race([readStatus(host.viewDir), late])
    if (!status.split("\n").includes(`agent=${host.name}`)) throw down("is that of another agent")
  } catch (e) {
    throw e instanceof CtxError ? e : down("cannot be read", e)
  } finally {
    clearTimeout(timer)
  }
}

/** Closes an open descriptor and never throws. */
export function closeQuietly(fd: number): void {
  try {
    closeSync(fd)
  } catch {
    // Nothing can be done about it, and nothing was written through it.
  }
}
