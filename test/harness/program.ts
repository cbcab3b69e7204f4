// Starts programs for tests: an environment of their own, another uid when asked, an end for sure.
import { type ChildProcess, type SpawnOptions, spawn } from "node:child_process"
import { once } from "node:events"

/** The environment of a program under test: nothing of the test runner's is in it. */
export function cleanEnv(more: Record<string, string> = {}): Record<string, string> {
  return { PATH: "/usr/local/bin:/usr/bin:/bin", HOME: "/nonexistent", LANG: "C.UTF-8", ...more }
}

/**
 * The environment of a mount's server: a clean one, with the sanitizer build that the whole run is made with, if it is
 * (`npm run sanitize`), and `more`.
 */
export function serverEnv(more: Record<string, string> = {}): Record<string, string> {
  const { CORTEXFS_TEST_ADDON: addon, CORTEXFS_TEST_PRELOAD: preload } = process.env
  if (!addon || !preload) return cleanEnv(more)
  return cleanEnv({
    CORTEXFS_ADDON: addon,
    LD_PRELOAD: preload,
    ASAN_OPTIONS: "detect_leaks=0:abort_on_error=1",
    UBSAN_OPTIONS: "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
    ...more,
  })
}

export interface Ended {
  code: number | null
  signal: NodeJS.Signals | null
  stdout: string
  stderr: string
}

export interface RunOptions {
  uid?: number
  gid?: number
  groups?: number[]
  env?: Record<string, string>
  cwd?: string
  input?: string | Buffer
  /** After this many ms the program is killed and the promise rejects. Default 30,000. */
  timeoutMs?: number
}

/** `command` changed so that it runs as `uid` with no group but `gid` and `groups`. */
export function asUser(command: string[], { uid, gid = uid, groups = [] }: RunOptions): string[] {
  if (uid === undefined) return command
  const others = groups.length > 0 ? `--groups=${groups.join(",")}` : "--clear-groups"
  return ["/usr/bin/setpriv", `--reuid=${uid}`, `--regid=${gid}`, others, "--", ...command]
}

/** Starts a program in a process group of its own. */
export function startProgram(command: string[], options: RunOptions & Pick<SpawnOptions, "stdio"> = {}): ChildProcess {
  // Through env -i, since the test runner adds variables of its own to every child that is started directly.
  const pairs = Object.entries(options.env ?? cleanEnv()).map(([name, value]) => `${name}=${value}`)
  const [file, ...args] = asUser(["/usr/bin/env", "-i", ...pairs, ...command], options)
  return spawn(file!, args, {
    env: {},
    cwd: options.cwd ?? "/",
    stdio: options.stdio ?? ["pipe", "pipe", "pipe"],
  })
}

/** Runs a program to its end and gives what it printed. Rejects when it outlives `timeoutMs`, after killing it. */
export async function runProgram(command: string[], options: RunOptions = {}): Promise<Ended> {
  const child = startProgram(command, options)
  let stdout = ""
  let stderr = ""
  child.stdout?.setEncoding("utf8").on("data", text => (stdout += text))
  child.stderr?.setEncoding("utf8").on("data", text => (stderr += text))
  child.stdin?.on("error", () => {})
  child.stdin?.end(options.input ?? "")
  let isLate = false
  const clock = setTimeout(() => {
    isLate = true
    child.kill("SIGKILL")
    child.stdout?.destroy()
    child.stderr?.destroy()
  }, options.timeoutMs ?? 30_000)
  const [code, signal] = (await once(child, "close")) as [number | null, NodeJS.Signals | null]
  clearTimeout(clock)
  if (isLate) throw new Error(`${command.join(" ")} did not end in time; stderr: ${stderr}`)
  return { code, signal, stdout, stderr }
}

/**
 * Lets this process end while `child` lives: the test runner runs its teardowns, which stop the servers, only when
 * nothing else keeps the event loop alive. Who waits for its end holds it again.
 */
export function releaseProgram(child: ChildProcess): void {
  child.unref()
  child.on("newListener", event => {
    if (event === "exit" || event === "close") child.ref()
  })
  for (const stream of [child.stdin, child.stdout, child.stderr]) (stream as { unref?(): void } | null)?.unref?.()
}

/** Sends `signal` and waits for the end; SIGKILL after `graceMs`. Gives the exit code, or the signal that ended it. */
export async function stopProgram(
  child: ChildProcess,
  signal: NodeJS.Signals = "SIGTERM",
  graceMs = 8_000,
): Promise<number | NodeJS.Signals> {
  if (child.exitCode === null && child.signalCode === null) {
    const ended = once(child, "exit")
    child.kill(signal)
    const clock = setTimeout(() => child.kill("SIGKILL"), graceMs)
    await ended
    clearTimeout(clock)
  }
  return child.exitCode ?? child.signalCode!
}
