// Agents on a booted machine: their files, and plain socket clients (socat) that talk to them as some user.

import { once } from "node:events"
import { chownSync, readFileSync, statSync, writeFileSync } from "node:fs"
import type { System } from "./systemd.js"

export type Frame = { type: string; [key: string]: unknown }

export const STORAGE = "/var/lib/cortexfs/storage"

/** uid of an account of the machine. */
export async function uidOf(system: System, user: string): Promise<number> {
  return Number(await system.text(["id", "-u", user]))
}

/** A generation that is current: its directory, as named inside. */
export async function currentDir(system: System): Promise<string> {
  return await system.text(["readlink", "-f", `${STORAGE}/current`])
}

/** Writes a control of an agent in the current generation, as its owner's file. */
export async function setControl(system: System, agent: string, control: string, text: string): Promise<void> {
  const dir = `${await currentDir(system)}/agent/${agent}.d`
  const path = system.see(`${dir}/${control}`)
  writeFileSync(path, text, { mode: 0o644 })
  const { uid, gid } = statSync(system.see(dir))
  chownSync(path, uid, gid)
}

/** Lets an agent play the script that its input is (model-abi 10.2), and call one more tool. */
export async function playScripts(system: System, agent: string, ...tools: string[]): Promise<void> {
  const dir = `${await currentDir(system)}/agent/${agent}.d`
  const lines = ["model:debug/script use", ...tools.map(tool => `tool:${tool} execute`)]
  await setControl(system, agent, "model", "debug/script\n")
  const policy = system.read(`${dir}/policy`)
  await setControl(system, agent, "policy", policy + lines.map(line => `allow ${agent}_t ${line}\n`).join(""))
  if (tools.length > 0) {
    await setControl(system, agent, "tools", system.read(`${dir}/tools`) + tools.map(tool => `${tool}\n`).join(""))
  }
}

/** Makes a tool that is a script, with a policy that lets these agents run it. */
export async function makeTool(system: System, name: string, text: string, agents: string[]): Promise<void> {
  const path = `${await currentDir(system)}/tool/${name}`
  system.write(path, text, 0o755)
  const controls = {
    name: `${name}\n`,
    description: `test tool ${name}\n`,
    schema: '{"type":"object"}\n',
    cap: "text\n",
    policy: agents.map(agent => `allow ${agent}_t tool:${name} execute\n`).join(""),
    log: "",
  }
  for (const [control, body] of Object.entries(controls)) system.write(`${path}.d/${control}`, body)
}

/** The input that makes `debug/script` do these steps. */
export function script(...steps: object[]): string {
  return JSON.stringify({ schema: "cortexfs.script/v1", steps })
}

/** A connection made by socat as a user. */
export class Talk {
  readonly frames: Frame[] = []
  private stderr = ""
  private rest = ""
  private readonly closed: Promise<unknown>

  constructor(
    private readonly system: System,
    uid: number,
    request: object | string,
    path: string,
  ) {
    const child = system.start(["/usr/bin/socat", "-t60", "-", `UNIX-CONNECT:${path}`], { uid })
    this.closed = once(child, "close")
    child.stdout!.setEncoding("utf8").on("data", (text: string) => {
      const lines = (this.rest + text).split("\n")
      this.rest = lines.pop()!
      for (const line of lines) this.frames.push(JSON.parse(line))
    })
    child.stderr!.setEncoding("utf8").on("data", (text: string) => {
      this.stderr += text
    })
    child.stdin!.on("error", () => {})
    child.stdin!.end(`${typeof request === "string" ? request : JSON.stringify(request)}\n`)
  }

  /** The first frame of a type, once it is there. */
  frame(type: string, timeoutMs?: number): Promise<Frame> {
    return this.system.until(`frame ${type}`, () => this.frames.find(frame => frame.type === type), timeoutMs)
  }

  /** All frames, when the other side has closed; throws when socat said anything. */
  async end(): Promise<Frame[]> {
    await this.closed
    if (this.stderr !== "") throw new Error(this.stderr)
    return this.frames
  }
}

/** Connects as `uid` and sends one request line. */
export function talk(system: System, uid: number, request: object | string, path = "/ctx/agent/coder.sock"): Talk {
  return new Talk(system, uid, request, path)
}

/** One request, all its frames. */
export function ask(system: System, uid: number, request: object | string, path?: string): Promise<Frame[]> {
  return talk(system, uid, request, path).end()
}

/** Rows of the history of an agent's private session. */
export function readHistory(system: System, uid: number, agent: string, session = "default"): Frame[] {
  const path = system.see(`/var/lib/cortexfs/home/${uid}/agent/${agent}/session/${session}/events.jsonl`)
  return readFileSync(path, "utf8")
    .split("\n")
    .filter(Boolean)
    .map(line => JSON.parse(line))
}
