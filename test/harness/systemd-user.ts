// An ordinary user of a booted machine with linger: an account, a home, a service manager of his own.
import type { Ended } from "./program.js"
import type { System } from "./systemd.js"
import { type Frame, Talk } from "./systemd-agent.js"

/** A user as the commands of a log-in of his would be: home, groups, runtime directory. */
export class Person {
  readonly home: string
  /** `/run/user/<uid>` */
  readonly runtimeDir: string
  /** Where his host view is mounted. */
  readonly root: string
  readonly storage: string

  constructor(
    readonly system: System,
    readonly name: string,
    readonly uid: number,
    private readonly groups: number[],
  ) {
    this.home = `/home/${name}`
    this.runtimeDir = `/run/user/${uid}`
    this.root = `${this.runtimeDir}/cortexfs/ctx`
    this.storage = `${this.home}/.local/state/cortexfs/storage`
  }

  /** Runs a program as this user to its end. */
  run(command: string[], env: Record<string, string> = {}): Promise<Ended> {
    const own = { HOME: this.home, USER: this.name, XDG_RUNTIME_DIR: this.runtimeDir, ...env }
    const pairs = Object.entries(own).map(([key, value]) => `${key}=${value}`)
    const words = ["/usr/bin/env", "-C", this.home, ...pairs, ...command]
    return this.system.run(words, { uid: this.uid, groups: this.groups, timeoutMs: 90_000 })
  }

  /** As `run`; gives stdout without the last line feed. Throws with stderr when the exit code is not 0. */
  async text(command: string[], env?: Record<string, string>): Promise<string> {
    const { code, signal, stdout, stderr } = await this.run(command, env)
    if (code === 0) return stdout.replace(/\n$/, "")
    const journal = await this.system.journal([], 60)
    throw new Error(`${command.join(" ")}: ended with ${code ?? signal}: ${stderr}${stdout}\n${journal}`)
  }

  /** `systemctl --user` with `args`; throws, with the journal's end, when it does not exit 0. */
  manage(...args: string[]): Promise<string> {
    return this.text(["systemctl", "--user", "--no-pager", ...args])
  }

  /** A property of one of his units. */
  show(unit: string, property: string): Promise<string> {
    return this.manage("show", "--value", "-p", property, "--", unit)
  }

  /** Main process of a unit as it is numbered inside; 0 when it does not run. */
  async mainPid(unit: string): Promise<number> {
    return Number(await this.show(unit, "MainPID"))
  }

  /** The generation that is current: its directory. */
  currentDir(): Promise<string> {
    return this.text(["readlink", "-f", `${this.storage}/current`])
  }

  /** Connects to one of his agents, by the public path, and sends one request line. */
  talk(request: object, agent = "coder"): Talk {
    return new Talk(this.system, this.uid, request, `${this.root}/agent/${agent}.sock`)
  }

  /** One request, all its frames. */
  ask(request: object, agent?: string): Promise<Frame[]> {
    return this.talk(request, agent).end()
  }
}

/** Makes an account with a home, and `groups` besides its own. */
export async function addPerson(system: System, name: string, uid: number, groups: number[] = []): Promise<Person> {
  for (const gid of groups) await system.text(["/usr/sbin/groupadd", "-f", "-g", String(gid), `extra${gid}`])
  const more = groups.length > 0 ? ["-G", groups.join(",")] : []
  await system.text(["/usr/sbin/useradd", "-m", "-u", String(uid), ...more, "-s", "/bin/bash", name])
  return new Person(system, name, uid, groups)
}

/** Lets the service manager of a user run, logged in or not; resolves when it has started. */
export async function startLinger({ system, name, uid }: Person): Promise<void> {
  await system.text(["loginctl", "enable-linger", name])
  await system.until(
    `user@${uid}.service`,
    async () => (await system.state(`user@${uid}.service`)) === "active",
    30_000,
  )
}
