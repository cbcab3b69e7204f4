// The mounts of a process and the one that an open descriptor lies in. The kernel's table is text: reading it touches no
// mount, so it is safe on a hung one.
import { readFileSync } from "node:fs"

/** One mount as the kernel lists it. */
export interface MountFacts {
  id: number
  /** Device number of the super block, `major:minor`. */
  device: string
  /** What of its file system is mounted. */
  root: string
  /** Mount point as the process sees it. */
  path: string
  /** Options of this mount alone. */
  options: readonly string[]
  type: string
  source: string
  /** Options of the super block, which all its mounts share. */
  superOptions: readonly string[]
}

/** The kernel writes blank, tab, LF and backslash as three octal digits. */
function decode(text: string): string {
  const bytes = text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)))
  return Buffer.from(bytes, "latin1").toString("utf8")
}

/** Parses the text of /proc/PID/mountinfo, one character a byte; lines of another form are left out. */
export function parseMounts(text: string): MountFacts[] {
  const mounts: MountFacts[] = []
  for (const line of text.split("\n")) {
    const at = line.indexOf(" - ")
    if (at < 0) continue
    const [id, , device, root, path, options] = line.slice(0, at).split(" ")
    const [type, source, superOptions] = line.slice(at + 3).split(" ")
    if (options === undefined || superOptions === undefined) continue
    mounts.push({
      id: Number(id),
      device: device!,
      root: decode(root!),
      path: decode(path!),
      options: options.split(","),
      type: type!,
      source: decode(source!),
      superOptions: superOptions.split(","),
    })
  }
  return mounts
}

/** The mounts of a process in the order of mounting. Errors: ENOENT, ESRCH when it is gone, EACCES. */
export function readMounts(pid: number | "self"): MountFacts[] {
  // Bytes stay bytes: a mount point need not be UTF-8, and a decoder would lose the digits between broken characters.
  return parseMounts(readFileSync(`/proc/${pid}/mountinfo`, "latin1"))
}

/** All mounts whose mount point is exactly `path` (absolute, clean), the topmost first (fuse.md 11). */
export function listMountsAt(path: string): MountFacts[] {
  return readMounts("self")
    .filter(mount => mount.path === path)
    .reverse()
}

/** The topmost mount on exactly `path`, or undefined when nothing is mounted there. */
export function findMountAt(path: string): MountFacts | undefined {
  return listMountsAt(path)[0]
}

/** The id of the mount that an open descriptor of this process lies in. Errors: EBADF, as ENOENT. */
export function mountIdOf(fd: number): number {
  return Number(/^mnt_id:\s*(\d+)$/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, "utf8"))?.[1])
}
