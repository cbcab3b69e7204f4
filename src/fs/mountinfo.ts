// What is mounted where, from /proc/self/mountinfo: reading it touches no mount, so it is safe on a hung one.
import { readFileSync } from "node:fs"

/** One mount as the kernel lists it. `options` joins the mount's own and the super block's. */
export interface Mounted {
  id: number
  /** Device number of the super block; `minor` names the connection below /sys/fs/fuse/connections. */
  major: number
  minor: number
  path: string
  type: string
  source: string
  options: string[]
}

/** Parses the text of /proc/PID/mountinfo; lines of another form are left out. */
export function parseMountinfo(text: string): Mounted[] {
  const mounts: Mounted[] = []
  for (const line of text.split("\n")) {
    const at = line.indexOf(" - ")
    if (at < 0) continue
    const left = line.slice(0, at).split(" ")
    const right = line.slice(at + 3).split(" ")
    const device = /^(\d+):(\d+)$/.exec(left[2] ?? "")
    if (!device || left[4] === undefined || left[5] === undefined || right[0] === undefined) continue
    mounts.push({
      id: Number(left[0]),
      major: Number(device[1]),
      minor: Number(device[2]),
      path: decodeOctal(left[4]),
      type: right[0],
      source: decodeOctal(right[1] ?? ""),
      options: [...new Set([...left[5].split(","), ...(right[2] ?? "").split(",")])].filter(option => option !== ""),
    })
  }
  return mounts
}

/** The kernel writes blank, tab, LF and backslash as three octal digits; other bytes stand for themselves. */
function decodeOctal(text: string): string {
  if (!text.includes("\\")) return text
  return text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)))
}

/** All mounts whose mount point is exactly `path` (absolute, clean), the topmost first (fuse.md 11). */
export function listMounts(path: string): Mounted[] {
  return parseMountinfo(readFileSync("/proc/self/mountinfo", "utf8"))
    .filter(mount => mount.path === path)
    .reverse()
}

/** The topmost mount on exactly `path`, or undefined when nothing is mounted there. */
export function findMount(path: string): Mounted | undefined {
  return listMounts(path)[0]
}
