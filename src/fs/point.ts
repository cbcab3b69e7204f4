// The mount point before and after: what is on it, whether that is dead, taking it off. All of this is done without
// touching a mount that may hang: the kernel's table says what is there, one statfs with a deadline whether it lives.
import { spawnSync } from "node:child_process"
import { mkdirSync, promises, realpathSync, rmdirSync, statSync, writeFileSync } from "node:fs"
import { basename, dirname, join, resolve } from "node:path"
import { CtxError, codeOf } from "../abi/error.js"
import { listMountsAt, type MountFacts } from "../native/mounts.js"
import * as sys from "../native/sys.js"

export const FS_TYPE = "fuse.cortexfs"
const CONNECTIONS = "/sys/fs/fuse/connections"
const MNT_FORCE = 1
const PROBE_MS = 2000

/** The absolute path of a mount point, links of its parent resolved, itself not touched. Errors: those of the parent. */
export function resolvePoint(path: string): string {
  const absolute = resolve(path)
  if (absolute === "/") return absolute
  return join(realpathSync.native(dirname(absolute)), basename(absolute))
}

/** True when a mount answers `ENOTCONN`: its server is gone. One that does not answer in 2 s is not dead. */
async function isDead(path: string): Promise<boolean> {
  let clock: NodeJS.Timeout | undefined
  const late = new Promise<false>(done => {
    clock = setTimeout(() => done(false), PROBE_MS)
  })
  // statfs is never answered from a cache, as stat would be for a second after the server's death.
  const asked = promises.statfs(path).then(
    () => false,
    error => codeOf(error) === "ENOTCONN" || codeOf(error) === "ECONNABORTED",
  )
  try {
    return await Promise.race([asked, late])
  } finally {
    clearTimeout(clock)
  }
}

/** Takes the topmost mount off `path` at once, whoever still uses it. Errors: `EPERM`, `EINVAL`. */
export function detachPoint(path: string): void {
  if (process.getuid!() === 0) {
    sys.umount2(path, sys.MNT_DETACH)
    return
  }
  const ended = spawnSync("fusermount3", ["-u", "-z", "-q", "--", path], { stdio: "ignore" })
  if (ended.status !== 0) throw new CtxError("EPERM", `${path} cannot be detached by fusermount3`, { path })
}

/**
 * Makes `path` free for a new mount: dead mounts of ours are detached, however many are stacked (fuse.md 11).
 * Errors: `EBUSY` when a live mount, or one of another type, is there; it is not touched.
 */
export async function clearPoint(path: string): Promise<void> {
  for (;;) {
    const mount = listMountsAt(path)[0]
    if (!mount) return
    if (mount.type !== FS_TYPE)
      throw new CtxError("EBUSY", `${path} has a mount of type ${mount.type}`, {
        path,
        hint: "choose another directory",
      })
    if (!(await isDead(path)))
      throw new CtxError("EBUSY", `${path} has a live mount`, { path, hint: "stop it or choose another directory" })
    detachPoint(path)
  }
}

/**
 * Sees to it that `path` is a directory: with `isMade` it is made with its parents where missing, else it must be there.
 * Errors: `ENOENT`, `ENOTDIR`.
 */
export function ensurePoint(path: string, isMade: boolean): void {
  if (isMade) mkdirSync(path, { recursive: true, mode: 0o755 })
  if (!statSync(path).isDirectory()) throw new CtxError("ENOTDIR", `${path} is not a directory`, { path })
}

/** Removes a mount point that `ensurePoint` made, when it is empty. */
export function removePoint(path: string): void {
  try {
    rmdirSync(path)
  } catch {
    // Somebody put something there, or took it away: it is his.
  }
}

/** Ends the connection of one mount from outside; callers waiting in it get an errno. */
function abortConnection({ path, device }: MountFacts): void {
  try {
    const minor = device.slice(device.indexOf(":") + 1)
    writeFileSync(`${CONNECTIONS}/${minor}/abort`, "1")
    return
  } catch {
    // fusectl is not mounted, or not for us.
  }
  try {
    sys.umount2(path, MNT_FORCE)
  } catch {
    // Busy: the connection is aborted all the same; detaching follows.
  }
}

/**
 * Aborts and detaches every mount of ours on `path`, alive, hung or dead (fuse.md 1, 11). Does nothing without one.
 * Errors: `EBUSY` when a mount of another type lies on top.
 */
export function abortPoint(path: string): void {
  for (;;) {
    const mount = listMountsAt(path)[0]
    if (!mount) return
    if (mount.type !== FS_TYPE)
      throw new CtxError("EBUSY", `${path} has a mount of type ${mount.type}`, { path, hint: "unmount that first" })
    abortConnection(mount)
    // MNT_FORCE may have taken it off already.
    if (listMountsAt(path)[0]?.id === mount.id) detachPoint(path)
  }
}
