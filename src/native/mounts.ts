// The mounts of a process and the one that an open descriptor lies in; reading them touches no mount.
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
}

/** The kernel writes blank, tab, LF and backslash as three octal digits. */
function decode(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)))
}

/** The mounts of a process in the order of mounting. Errors: ENOENT, ESRCH when it is gone, EACCES. */
export function readMounts(pid: number | "self"): MountFacts[] {
  const mounts: MountFacts[] = []
  // Bytes stay bytes: a mount point need not be UTF-8, and a decoder would make two of them one.
  for (const line of readFileSync(`/proc/${pid}/mountinfo`, "latin1").split("\n")) {
    const [left, right] = line.split(" - ") as [string, string | undefined]
    const [id, , device, root, path, options] = left.split(" ")
    if (right === undefined || options === undefined) continue
    const bytes = (field: string) => Buffer.from(decode(field), "latin1").toString("utf8")
    mounts.push({
      id: Number(id),
      device: device!,
      root: bytes(root!),
      path: bytes(path!),
      options: options.split(","),
      type: right.split(" ")[0]!,
    })
  }
  return mounts
}

/** The id of the mount that an open descriptor of this process lies in. Errors: EBADF, as ENOENT. */
export function mountIdOf(fd: number): number {
  return Number(/^mnt_id:\s*(\d+)$/m.exec(readFileSync(`/proc/self/fdinfo/${fd}`, "utf8"))?.[1])
}
