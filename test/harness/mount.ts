// Mounts under test. A mount test must not be able to hang the run: every mount has a wall clock; when it strikes, the
// kernel stacks of waiting tasks are printed and the connection is aborted through fusectl (SIGKILL frees no D state).
import { type ChildProcess, execFileSync } from "node:child_process"
import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs"
import { type RunOptions, releaseProgram, serverEnv, startProgram, stopProgram } from "./program.js"

const CONNECTIONS = "/sys/fs/fuse/connections"

/** A path as mountinfo writes it: blank, TAB, LF and backslash are three octal digits. */
const decodePath = (text: string) =>
  text.replace(/\\([0-7]{3})/g, (_, digits) => String.fromCharCode(Number.parseInt(digits, 8)))

/** The last mount on `path`, read from /proc/self/mountinfo without touching it. */
export function findMountLine(path: string): { type: string; minor: number; options: string } | undefined {
  let found: { type: string; minor: number; options: string } | undefined
  for (const line of readFileSync("/proc/self/mountinfo", "utf8").split("\n")) {
    const [left, right] = line.split(" - ")
    if (!left || !right) continue
    const fields = left.split(" ")
    if (decodePath(fields[4] ?? "") !== path) continue
    const [type, , superOptions] = right.split(" ")
    found = { type: type!, minor: Number(fields[2]!.split(":")[1]), options: `${fields[5]},${superOptions}` }
  }
  return found
}

/** Kernel stacks of all tasks in uninterruptible sleep, for the report of a hang. */
export function waitingStacks(): string {
  const texts: string[] = []
  for (const pid of readdirSync("/proc").filter(name => /^\d+$/.test(name))) {
    try {
      for (const tid of readdirSync(`/proc/${pid}/task`)) {
        const stat = readFileSync(`/proc/${pid}/task/${tid}/stat`, "utf8")
        const state = stat.slice(stat.lastIndexOf(")") + 2, stat.lastIndexOf(")") + 3)
        const stack = readFileSync(`/proc/${pid}/task/${tid}/stack`, "utf8")
        if (state === "D" || stack.includes("fuse_")) texts.push(`${pid}/${tid} ${state}\n${stack}`)
      }
    } catch {}
  }
  return texts.join("\n")
}

/** Ends the connection of the mount on `path` from outside, so that every caller waiting in it gets an errno. */
export function abortMount(path: string): void {
  const mount = findMountLine(path)
  if (!mount?.type.startsWith("fuse")) return
  try {
    if (!readdirSync(CONNECTIONS).length) execFileSync("mount", ["-t", "fusectl", "none", CONNECTIONS])
    writeFileSync(`${CONNECTIONS}/${mount.minor}/abort`, "1")
  } catch {}
}

/** Detaches every fuse mount on `path`, dead or alive. */
export function detachMount(path: string): void {
  for (let i = 0; i < 16 && findMountLine(path)?.type.startsWith("fuse"); i++) {
    try {
      execFileSync("umount", ["-l", "-i", path], { stdio: "ignore" })
    } catch {
      return
    }
  }
}

export interface Mount {
  mountPoint: string
  child: ChildProcess
  /** What the server has written on stderr so far. */
  stderr(): string
  /** SIGTERM, waits, detaches what is left; gives the exit code or signal. */
  stop(): Promise<number | NodeJS.Signals>
}

export interface MountOptions extends Pick<RunOptions, "uid" | "gid" | "groups"> {
  env?: Record<string, string>
  /** Wall clock of the whole mount in ms; when it strikes the connection is aborted and the server killed. */
  timeoutMs?: number
}

/**
 * Starts a mount program and waits until its mount answers. `command` is the whole command line.
 * Throws with the program's stderr when it ends before that.
 */
export async function startMount(command: string[], mountPoint: string, options: MountOptions = {}): Promise<Mount> {
  const child = startProgram(command, {
    ...options,
    env: options.env ?? serverEnv(),
    stdio: ["ignore", "inherit", "pipe"],
  })
  let stderr = ""
  child.stderr!.setEncoding("utf8").on("data", text => (stderr += text))
  let isEnded = false
  child.once("exit", () => (isEnded = true))
  const clock = setTimeout(() => {
    process.stderr.write(`mount ${mountPoint} is over its wall clock\n${waitingStacks()}\n${stderr}\n`)
    abortMount(mountPoint)
    child.kill("SIGKILL")
  }, options.timeoutMs ?? 120_000)
  clock.unref()
  const stop = async () => {
    const code = await stopProgram(child)
    clearTimeout(clock)
    abortMount(mountPoint)
    detachMount(mountPoint)
    return code
  }
  for (let waitedMs = 0; ; waitedMs += 10) {
    if (isEnded) {
      await stop()
      throw new Error(`${command.join(" ")} ended with ${child.exitCode ?? child.signalCode}: ${stderr}`)
    }
    const mount = findMountLine(mountPoint)
    // The first request is answered only after INIT, so a status that can be read means ready.
    if (mount?.type === "fuse.cortexfs" && (await isAnswering(mountPoint, options))) break
    if (waitedMs > 10_000) {
      await stop()
      throw new Error(`${mountPoint} was not mounted in 10 s: ${stderr}`)
    }
    await new Promise(resolve => setTimeout(resolve, 10))
  }
  releaseProgram(child)
  return { mountPoint, child, stderr: () => stderr, stop }
}

async function isAnswering(mountPoint: string, options: MountOptions): Promise<boolean> {
  const probe = startProgram(["/usr/bin/stat", "-c", "%F", `${mountPoint}/status`], { ...options, stdio: "ignore" })
  const clock = setTimeout(() => abortMount(mountPoint), 5_000)
  const code = await new Promise(resolve => probe.once("exit", resolve))
  clearTimeout(clock)
  return code === 0
}

/** Makes an empty directory for a mount and gives a function that removes it again. */
export function makeMountPoint(path: string): () => void {
  mkdirSync(path, { recursive: true, mode: 0o755 })
  return () => {
    detachMount(path)
    rmdirSync(path)
  }
}
