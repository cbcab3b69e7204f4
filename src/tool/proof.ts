import { closeSync, constants } from "node:fs"
import { lstat } from "node:fs/promises"
import { CtxError, codeOf } from "../abi/error.js"
import { isAtOrBelow } from "../abi/path.js"
import { type MountFacts, readMounts } from "../native/mounts.js"
import {
  AT_FDCWD,
  fstatat,
  O_PATH,
  openat2,
  RESOLVE_IN_ROOT,
  RESOLVE_NO_MAGICLINKS,
  RESOLVE_NO_SYMLINKS,
} from "../native/sys.js"
import { isSameInode, type OpenSource } from "../policy/source.js"
import type { Bind } from "./layout.js"
import { sandboxDown } from "./probe.js"

/** A mount that lies under a later one is not to be seen. */
function listVisible(binds: readonly Bind[]): Bind[] {
  return binds.filter((bind, i) => !binds.slice(i + 1).some(later => isAtOrBelow(bind.target, later.target)))
}

function proveOptions({ target, mode }: Bind, mount: MountFacts | undefined): void {
  if (mount === undefined) throw sandboxDown(`nothing is mounted at ${target}`)
  const wanted = mode === "ro" ? ["ro", "nosuid", "nodev"] : ["nosuid", "nodev"]
  const missing = wanted.find(option => !mount.options.includes(option))
  if (missing !== undefined) throw sandboxDown(`the mount at ${target} is not ${missing}`)
}

/**
 * Makes sure that a sandbox that stands shows at each target exactly the inode that was checked, as a mount of its own
 * with the options it must have. `pid` is any process of it; none of the payload may have run. Binds are in the order of
 * mounting. Errors: EHOSTDOWN for a mount that is missing or too open, EACCES for another inode. agent-tool-security 7.1
 */
export async function proveBinds(pid: number, binds: readonly Bind[]): Promise<void> {
  // Later mounts of one place are listed later and are the ones that are seen.
  const mounts = new Map(readMounts(pid).map(mount => [mount.path, mount]))
  const rootFd = openat2(AT_FDCWD, `/proc/${pid}/root`, O_PATH | constants.O_DIRECTORY)
  try {
    for (const bind of listVisible(binds)) {
      proveOptions(bind, mounts.get(bind.target))
      await proveInode(rootFd, bind)
    }
  } finally {
    closeSync(rootFd)
  }
}

async function proveInode(rootFd: number, { target, source }: Bind): Promise<void> {
  // Asked on the thread pool first: a file system that hangs must not stop the process.
  await lstat(`/proc/self/fd/${rootFd}${target}`)
  const strict = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
  const fd = openat2(rootFd, target.slice(1), O_PATH | constants.O_NOFOLLOW, 0, strict)
  try {
    if (isSameInode(fstatat(fd, ""), source)) return
  } finally {
    closeSync(fd)
  }
  throw replaced(source, target)
}

function replaced(source: OpenSource, target: string): CtxError {
  return new CtxError("EACCES", `${source.what} was replaced while the sandbox was built`, { path: target })
}

/** The error for a source whose path names another inode than the checked one by now; undefined when none does. */
export async function findReplaced(binds: readonly Bind[]): Promise<CtxError | undefined> {
  for (const { source, target } of binds) {
    try {
      if (!isSameInode(await lstat(source.path, { bigint: true }), source)) return replaced(source, target)
    } catch (e) {
      if (codeOf(e) === "ENOENT" || codeOf(e) === "ENOTDIR") return replaced(source, target)
    }
  }
  return undefined
}
