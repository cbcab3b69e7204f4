// Reading the controls of an agent through the tree, as any client sees them.

import { constants } from "node:fs"
import { open } from "node:fs/promises"
import { AGENT_CONTROLS, parseList, parseValue } from "../abi/control.js"
import { CtxError, codeOf } from "../abi/error.js"
import { CONTROL_MAX } from "../abi/limit.js"
import { agentControlPath } from "../abi/path.js"
import { type AgentStatus, showAgentStatus } from "../abi/status.js"
import type { Places } from "./place.js"

/** Reads controls of one agent; absent ones give their default (root-abi 4.4). Errors name `agent/NAME.d/CONTROL`. */
export class AgentControls {
  readonly #places: Places
  readonly #agent: string
  readonly #owner: number

  private constructor(places: Places, agent: string, owner: number) {
    this.#places = places
    this.#agent = agent
    this.#owner = owner
  }

  /** Opens the controls of an agent. Errors: ENOENT when there is no such agent, EINVAL for a bad `owner`. */
  static async open(places: Places, agent: string): Promise<AgentControls> {
    const bytes = await readControl(places, agent, "owner")
    if (bytes === undefined) throw new CtxError("ENOENT", `agent/${agent}`, { hint: "run ctx ls agent" })
    const owner = Number(parseValue(bytes, `agent/${agent}.d/owner`))
    return new AgentControls(places, agent, owner)
  }

  /** Name of the agent. */
  get agent(): string {
    return this.#agent
  }

  /** uid in `owner`. */
  get owner(): number {
    return this.#owner
  }

  /** The value of a value control; "" for an empty line and for an absent control without default. Errors: EINVAL. */
  async readValue(control: string): Promise<string> {
    const bytes = (await readControl(this.#places, this.#agent, control)) ?? this.#absent(control)
    return bytes === undefined ? "" : parseValue(bytes, `agent/${this.#agent}.d/${control}`)
  }

  /** The items of a list control. Errors: EINVAL. */
  async readList(control: string): Promise<string[]> {
    const bytes = (await readControl(this.#places, this.#agent, control)) ?? this.#absent(control)
    return bytes === undefined ? [] : parseList(bytes, `agent/${this.#agent}.d/${control}`)
  }

  /** pid of the agent's live process, or undefined. Errors: EINVAL. */
  async readPid(): Promise<number | undefined> {
    const text = await this.readValue("pid")
    if (text === "") return undefined
    if (!/^[1-9]\d{0,9}$/.test(text)) {
      throw new CtxError("EINVAL", `agent/${this.#agent}.d/pid is no pid`, {
        hint: "ctx cat it; the runtime writes it",
      })
    }
    return Number(text)
  }

  /** The effective status word: `ready` and `busy` with a dead pid are `dead`. Implements ctx-coreutils 6. */
  async readStatus(): Promise<AgentStatus> {
    const status = showAgentStatus(await this.readValue("status"))
    if (status !== "ready" && status !== "busy") return status
    const pid = await this.readPid()
    return pid !== undefined && isLive(pid) ? status : "dead"
  }

  #absent(control: string): Buffer | undefined {
    const text = AGENT_CONTROLS.find(known => known.name === control)?.absent?.(this.#owner, this.#agent)
    return text === undefined ? undefined : Buffer.from(text)
  }
}

/** True when a process with this pid exists, also another user's. */
export function isLive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return codeOf(error) === "EPERM"
  }
}

async function readControl(places: Places, agent: string, control: string): Promise<Buffer | undefined> {
  const path = agentControlPath(agent, control, places.root)
  try {
    const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
    try {
      const room = Buffer.alloc(CONTROL_MAX + 1)
      let size = 0
      for (;;) {
        const { bytesRead } = await file.read(room, size, room.length - size, size)
        size += bytesRead
        if (bytesRead === 0 || size === room.length) return room.subarray(0, size)
      }
    } finally {
      await file.close()
    }
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined
    throw error
  }
}
