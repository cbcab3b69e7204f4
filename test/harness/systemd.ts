// A whole machine for one test file: a real systemd (systemd.sh) with the product installed below /usr, its units,
// accounts and directories as the package makes them. Each test file boots its own; it ends with the test.
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import { ROOT } from "./product.js"
import { asUser, cleanEnv, type Ended, type RunOptions, runProgram, startProgram } from "./program.js"

const BOOT_MS = 60_000
export const KEEPER = join(ROOT, "test/harness/systemd.sh")
/** Where each directory of the repository's units/ is installed. */
const INSTALLED = {
  ".": "usr/lib/systemd/system",
  user: "usr/lib/systemd/user",
  "sysusers.d": "usr/lib/sysusers.d",
  "tmpfiles.d": "usr/lib/tmpfiles.d",
  "system-preset": "usr/lib/systemd/system-preset",
  "user-preset": "usr/lib/systemd/user-preset",
  "rules.d": "usr/share/polkit-1/rules.d",
} as const
const UNIT = /\.(target|service|socket|timer)$/

/** Names of the system units in units/, in byte order. */
export function listUnits(): string[] {
  return readdirSync(join(ROOT, "units"))
    .filter(name => UNIT.test(name))
    .sort()
}

/** Names of the units of the per-user set in units/user/, in byte order. */
export function listUserUnits(): string[] {
  const dir = join(ROOT, "units/user")
  if (!existsSync(dir)) return []
  return readdirSync(dir)
    .filter(name => UNIT.test(name))
    .sort()
}

/** Copies units/ to where a package puts it, below `dir`. */
export function installUnits(dir: string): void {
  for (const [from, to] of Object.entries(INSTALLED)) {
    const source = join(ROOT, "units", from)
    if (!existsSync(source)) continue
    mkdirSync(join(dir, to), { recursive: true })
    for (const name of readdirSync(source)) {
      if ((from !== "." && from !== "user") || UNIT.test(name)) cpSync(join(source, name), join(dir, to, name))
    }
  }
}

export interface BootOptions {
  /** Files to be there before the boot, by absolute path inside. */
  files?: Record<string, string>
  /** Applies the preset of the package, so that the enabled units start at boot. */
  isEnabled?: boolean
  /** Units that are enabled besides. */
  enable?: string[]
}

/** A booted machine. Paths are those inside unless said otherwise. */
export class System {
  constructor(
    private readonly keeper: ChildProcess,
    /** Of PID 1, as the host counts. */
    readonly pid: number,
    private readonly notes: () => string,
  ) {}

  /** Where the host sees `path`. */
  see(path: string): string {
    return `/proc/${this.pid}/root${path}`
  }

  read(path: string): string {
    return readFileSync(this.see(path), "utf8")
  }

  write(path: string, text: string, mode = 0o644): void {
    mkdirSync(dirname(this.see(path)), { recursive: true })
    writeFileSync(this.see(path), text)
    chmodSync(this.see(path), mode)
  }

  /** The command line that runs `command` inside as a plain process, in no unit. */
  command(command: string[], options: RunOptions = {}): string[] {
    return ["/usr/bin/nsenter", `--target=${this.pid}`, "--all", "--", ...asUser(command, options)]
  }

  /** Runs a program inside to its end. */
  run(command: string[], options: RunOptions = {}): Promise<Ended> {
    const { uid: _, gid: __, groups: ___, ...more } = options
    return runProgram(this.command(command, options), { env: cleanEnv(), ...more })
  }

  /** As `run`; gives stdout without the last line feed. Throws with stderr when the exit code is not 0. */
  async text(command: string[], options: RunOptions = {}): Promise<string> {
    const { code, signal, stdout, stderr } = await this.run(command, options)
    if (code === 0) return stdout.replace(/\n$/, "")
    throw new Error(`${command.join(" ")}: ended with ${code ?? signal}: ${stderr}${stdout}`)
  }

  /** Starts a program inside; it ends at the latest with the machine. */
  start(command: string[], options: RunOptions = {}): ChildProcess {
    return startProgram(this.command(command, options), { env: cleanEnv(), stdio: ["pipe", "pipe", "pipe"] })
  }

  /** `systemctl` with `args`. */
  systemctl(...args: string[]): Promise<Ended> {
    return this.run(["systemctl", "--no-pager", ...args], { timeoutMs: 90_000 })
  }

  /** As `systemctl`; throws, with the state of the units and the journal's end, when it does not exit 0. */
  async manage(...args: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.systemctl(...args)
    if (code === 0) return stdout
    const journal = await this.journal([], 60)
    throw new Error(`systemctl ${args.join(" ")}: exit ${code}: ${stderr}${stdout}\n${journal}`)
  }

  /** Properties of a unit. */
  async show(unit: string, ...names: string[]): Promise<Record<string, string>> {
    const properties = names.flatMap(name => ["-p", name])
    const text = await this.text(["systemctl", "show", ...properties, "--", unit])
    return Object.fromEntries(
      text.split("\n").map(line => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]),
    )
  }

  /** ActiveState of a unit. */
  async state(unit: string): Promise<string> {
    return (await this.show(unit, "ActiveState")).ActiveState!
  }

  /** Main process of a unit as it is numbered inside; 0 when it does not run. */
  async mainPid(unit: string): Promise<number> {
    return Number((await this.show(unit, "MainPID")).MainPID)
  }

  /** Lines of the journal, of these units or of all, oldest first. */
  async journal(units: string[] = [], lines?: number): Promise<string> {
    const args = units.flatMap(unit => ["-u", unit])
    const limit = lines === undefined ? [] : ["-n", String(lines)]
    await this.run(["journalctl", "--sync"])
    return await this.text(["journalctl", "--no-pager", "-o", "short-monotonic", ...args, ...limit])
  }

  /** Fields of the journal's entries, oldest first. */
  async entries(...match: string[]): Promise<Record<string, string>[]> {
    await this.run(["journalctl", "--sync"])
    const text = await this.text(["journalctl", "--no-pager", "-o", "json", ...match])
    return text
      .split("\n")
      .filter(Boolean)
      .map(line => JSON.parse(line))
  }

  /** Processes in the control group of a unit, numbered inside. A unit that has none gives an empty list. */
  async pids(unit: string): Promise<number[]> {
    const { ControlGroup: group } = await this.show(unit, "ControlGroup")
    if (!group) return []
    const { stdout } = await this.run([
      "/usr/bin/find",
      `/sys/fs/cgroup${group}`,
      "-name",
      "cgroup.procs",
      "-exec",
      "cat",
      "{}",
      "+",
    ])
    return stdout.split("\n").filter(Boolean).map(Number)
  }

  /** `pid command` of every process inside that has `word` in its command line, the search itself left out. */
  processes(word: string): string[] {
    const found: string[] = []
    for (const pid of readdirSync(this.see("/proc")).filter(name => /^\d+$/.test(name))) {
      try {
        const line = this.read(`/proc/${pid}/cmdline`).replaceAll("\0", " ").trim()
        if (line.includes(word) && !/^\/?(usr\/bin\/)?(systemctl|journalctl|nsenter) /.test(line))
          found.push(`${pid} ${line}`)
      } catch {}
    }
    return found
  }

  /** Mount points of CortexFS in the namespace of PID 1. */
  mounts(): string[] {
    return readFileSync(`/proc/${this.pid}/mountinfo`, "utf8")
      .split("\n")
      .filter(line => line.includes(" - fuse.cortexfs "))
      .map(line => line.split(" ")[4]!)
  }

  /** Identity of a socket's inode. */
  inode(path: string): string {
    const { dev, ino } = statSync(this.see(path))
    return `${dev}:${ino}`
  }

  /** Waits until `isTrue` gives something true, and gives that; throws after `timeoutMs` naming `what`. */
  async until<T>(
    what: string,
    isTrue: () => T | Promise<T>,
    timeoutMs = 10_000,
  ): Promise<Exclude<T, undefined | false>> {
    for (const end = Date.now() + timeoutMs; ; await sleep(20)) {
      const value = await isTrue()
      if (value) return value as Exclude<T, undefined | false>
      if (Date.now() > end) throw new Error(`not in ${timeoutMs} ms: ${what}\n${await this.journal([], 60)}`)
    }
  }

  /** True while PID 1 runs. */
  isUp(): boolean {
    return existsSync(`/proc/${this.pid}/root/proc`)
  }

  /** Powers off; everything of the machine is gone afterwards. Throws when it had to be killed. */
  async stop(): Promise<void> {
    if (this.keeper.exitCode !== null) return
    const closed = once(this.keeper, "close")
    this.keeper.stdin!.end()
    await closed
    if (this.notes().includes("killed")) throw new Error("the machine did not power off")
  }
}

/** The directory by which `systemd.sh keep` is told what to boot; it removes it. */
export function makeState(options: BootOptions): string {
  const state = mkdtempSync(join(tmpdir(), "cortexfs-system-"))
  const install = join(state, "install")
  mkdirSync(install)
  installUnits(install)
  for (const [path, text] of Object.entries(options.files ?? {})) {
    mkdirSync(dirname(join(install, path)), { recursive: true })
    writeFileSync(join(install, path), text)
  }
  writeFileSync(join(state, "project"), ROOT)
  // xargs takes a backslash for a quote.
  const list = (units: string[]) => units.map(unit => `'${unit}'\n`).join("")
  if (options.isEnabled) writeFileSync(join(state, "preset"), list(listUnits()))
  if (options.enable) writeFileSync(join(state, "enable"), list(options.enable))
  return state
}

/** Boots a machine; resolves when its manager has nothing more to do. Throws with what it said when it does not come up. */
export async function bootSystem(options: BootOptions = {}): Promise<System> {
  const state = makeState(options)
  const keeper = spawn(KEEPER, ["keep", state], {
    env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" },
    cwd: "/",
    detached: true,
    stdio: ["pipe", "pipe", "pipe"],
  })
  const closed = once(keeper, "close")
  let notes = ""
  let faults = ""
  keeper.stdin!.on("error", () => {})
  keeper.stdout!.setEncoding("utf8").on("data", text => (notes += text))
  keeper.stderr!.setEncoding("utf8").on("data", text => (faults += text))
  const end = Date.now() + BOOT_MS
  try {
    while (!/^pid \d+$/m.test(notes)) {
      if (keeper.exitCode !== null || Date.now() > end) throw new Error(`no machine: ${faults}`)
      await sleep(10)
    }
    const system = new System(keeper, Number(/^pid (\d+)$/m.exec(notes)![1]), () => notes)
    while (!existsSync(system.see("/run/systemd/private"))) {
      if (!system.isUp() || Date.now() > end) throw new Error(`the manager ended: ${faults}`)
      await sleep(10)
    }
    const { stdout } = await system.run(["systemctl", "is-system-running", "--wait"], { timeoutMs: BOOT_MS })
    if (stdout === "running\n") return system
    const failed = await system.run(["systemctl", "--failed", "--plain", "--no-legend"])
    throw new Error(`boot ended ${stdout.trim()}: ${failed.stdout}\n${await system.journal([], 40)}`)
  } catch (error) {
    keeper.stdin!.end()
    await closed
    rmSync(state, { recursive: true, force: true })
    throw error
  }
}
