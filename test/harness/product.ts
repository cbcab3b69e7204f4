// The built product, installed into a prefix that any uid can read, and a whole CortexFS of a test's own:
// a storage tree, a host view, an agent's view, a runtime, each a real program in a process of its own.
import type { ChildProcess } from "node:child_process"
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, readlinkSync, rmSync, statSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath, pathToFileURL } from "node:url"
import { type Mount, type MountOptions, startMount } from "./mount.js"
import {
  cleanEnv,
  type Ended,
  type RunOptions,
  releaseProgram,
  runProgram,
  startProgram,
  stopProgram,
} from "./program.js"

export const ROOT = fileURLToPath(new URL("../..", import.meta.url)).replace(/\/$/, "")

/** uid of the agents' owner in tests; it has no account. */
export const OWNER = 12001
/** Another ordinary uid. */
export const OTHER = 12002

const madeDirs: string[] = []

/** A directory of this test process that any uid may pass through; removed at exit. */
export function makeDir(name = "cortexfs-test"): string {
  const dir = mkdtempSync(join(tmpdir(), `${name}-`))
  chmodSync(dir, 0o755)
  if (madeDirs.push(dir) === 1)
    process.once("exit", () => {
      for (const made of madeDirs) rmSync(made, { recursive: true, force: true })
    })
  return dir
}

let installed: string | undefined

/** The prefix of the installed product: the one of the whole test run, or one of this process's own. */
export async function installedPrefix(): Promise<string> {
  if (process.env.CORTEXFS_TEST_PREFIX) return process.env.CORTEXFS_TEST_PREFIX
  if (!installed) {
    const prefix = makeDir("cortexfs-prefix")
    const { installProduct } = await import(pathToFileURL(`${ROOT}/scripts/install.js`).href)
    await installProduct({ prefix, from: ROOT })
    installed = prefix
  }
  return installed
}

export interface Stack {
  prefix: string
  dir: string
  /** Where home/ and shared/ lie. */
  dataRoot: string
  storage: string
  run: string
  config: string
  /** The host view. */
  ctx: string
  /** The environment of a client. */
  env: Record<string, string>
  /** Runs `ctx` as the owner unless told otherwise. */
  runCtx(args: string[], options?: RunOptions): Promise<Ended>
  startHost(options?: MountOptions): Promise<Mount>
  startView(agent: string, options?: MountOptions): Promise<Mount>
  startRuntime(agent: string, more?: { env?: Record<string, string>; args?: string[] }): Promise<Runtime>
  /** Stops all that was started, newest first. */
  stop(): Promise<void>
}

export interface Runtime {
  agent: string
  socket: string
  child: ChildProcess
  stderr(): string
  stop(signal?: NodeJS.Signals): Promise<number | NodeJS.Signals>
}

/** Makes a storage tree by the real bootstrap; nothing is mounted or started yet. */
export async function makeStack(owner = OWNER): Promise<Stack> {
  const prefix = await installedPrefix()
  const dir = makeDir()
  const dataRoot = join(dir, "data")
  const storage = join(dataRoot, "storage")
  const run = join(dir, "run")
  const config = join(dir, "etc")
  const ctx = join(dir, "ctx")
  for (const path of [dataRoot, run, config, ctx]) mkdirSync(path, { mode: 0o755 })
  const bin = (name: string) => join(prefix, "bin", name)
  const updated = await runProgram([bin("ctx"), "storage", "update", "--owner", String(owner), storage])
  if (updated.code !== 0) throw new Error(`storage update: ${updated.stderr}`)
  const source = join(storage, "current")
  const started: { stop(): Promise<unknown> }[] = []
  const env = cleanEnv({ CTX_ROOT: ctx })

  const startView = async (args: string[], mountPoint: string, options: MountOptions = {}) => {
    const command = [bin("cortexfs-mount"), "--source", source, "--config", config, "--run", run, ...args, mountPoint]
    const mount = await startMount(command, mountPoint, options)
    started.push(mount)
    return mount
  }

  return {
    prefix,
    dir,
    dataRoot,
    storage,
    run,
    config,
    ctx,
    env,
    runCtx: (args, options = {}) => runProgram([bin("ctx"), ...args], { uid: owner, env, ...options }),
    startHost: options => startView([], ctx, options),
    startView: (agent, options) => startView(["--agent", agent], join(run, "mount", agent), options),
    async startRuntime(agent, more = {}) {
      const command = [bin("cortexfs-agent"), "--source", source, "--agent", agent, "--config", config, "--run", run]
      const child = startProgram([...command, ...(more.args ?? [])], {
        env: cleanEnv(more.env),
        stdio: ["ignore", "inherit", "pipe"],
      })
      let stderr = ""
      child.stderr!.setEncoding("utf8").on("data", text => (stderr += text))
      const socket = join(run, "agent", `${agent}.sock`)
      const runtime: Runtime = {
        agent,
        socket,
        child,
        stderr: () => stderr,
        stop: (signal = "SIGTERM") => stopProgram(child, signal),
      }
      started.push(runtime)
      for (let waitedMs = 0; !isListening(socket); waitedMs += 10) {
        if (child.exitCode !== null || child.signalCode !== null)
          throw new Error(`cortexfs-agent ended with ${child.exitCode ?? child.signalCode}: ${stderr}`)
        if (waitedMs > 10_000) throw new Error(`cortexfs-agent did not listen: ${stderr}`)
        await new Promise(resolve => setTimeout(resolve, 10))
      }
      releaseProgram(child)
      return runtime
    },
    async stop() {
      for (const one of started.reverse()) await one.stop()
      started.length = 0
      rmSync(dir, { recursive: true, force: true })
    },
  }
}

/** True when a socket listens at `path` (its row in /proc/net/unix has the listening flag), without connecting. */
function isListening(path: string): boolean {
  try {
    if (!statSync(path).isSocket()) return false
  } catch {
    return false
  }
  return hasListener(path)
}

function hasListener(path: string): boolean {
  return readFileSync("/proc/net/unix", "utf8")
    .split("\n")
    .some(line => {
      const fields = line.split(" ").filter(Boolean)
      return fields[7] === path && fields[3] === "00010000"
    })
}

/** The running generation's directory of a stack. */
export function currentGeneration(stack: Stack): string {
  return join(stack.storage, readlinkSync(join(stack.storage, "current")))
}
