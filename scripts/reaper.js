// Takes down what `npm start` has put up, also when it was killed: it lives in a session of its own, is told on stdin
// what exists (one JSON object a line), and acts when that stream ends.
//   {"pid":N,"start":T}  a process to end: only while its start time (field 22 of /proc/N/stat) is still T
//   {"mount":PATH}       a fuse mount to detach     {"dir":PATH}  a directory to remove
// Processes end first, newest first; then mounts; then directories.
import { spawnSync } from "node:child_process"
import { readFileSync, rmdirSync, rmSync } from "node:fs"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"

/** Start time of a process in clock ticks since boot, or undefined when it is gone. @param {number} pid */
export function readStartTime(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8")
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ")
    return fields[0] === "Z" ? undefined : Number(fields[19])
  } catch {
    return undefined
  }
}

/** File system type of the last mount on `path`, or undefined; the mount itself is not touched. @param {string} path */
export function findMountType(path) {
  return readFileSync("/proc/self/mountinfo", "utf8")
    .split("\n")
    .filter(line => line.split(" ")[4]?.replaceAll("\\040", " ") === path)
    .pop()
    ?.split(" - ")[1]
    ?.split(" ")[0]
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

async function endProcess({ pid, start }) {
  const isOurs = () => readStartTime(pid) === start
  for (const [signal, waitMs] of [
    ["SIGTERM", 6_000],
    ["SIGKILL", 2_000],
  ]) {
    if (!isOurs()) return
    try {
      process.kill(pid, signal)
    } catch {}
    for (let waitedMs = 0; waitedMs < waitMs && isOurs(); waitedMs += 20) await pause(20)
  }
}

async function takeDown(things) {
  for (const thing of things.filter(one => one.pid).reverse()) await endProcess(thing)
  for (const { mount } of things.filter(one => one.mount).reverse())
    for (let i = 0; i < 8 && findMountType(mount) === "fuse.cortexfs"; i++)
      if (process.getuid() === 0) spawnSync("umount", ["-l", "-i", mount])
      else spawnSync("fusermount3", ["-u", "-z", mount])
  for (const { dir, isEmpty } of things.filter(one => one.dir).reverse())
    try {
      if (isEmpty) rmdirSync(dir)
      else rmSync(dir, { recursive: true, force: true })
    } catch {}
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => {})
  const things = []
  for await (const line of createInterface({ input: process.stdin })) things.push(JSON.parse(line))
  await takeDown(things)
}
