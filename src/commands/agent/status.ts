import { string } from "@oclif/core/args"
import { CtxError } from "../../abi/error.js"
import { type Cell, CtxCommand } from "../../client/command.js"
import { AgentControls } from "../../client/control.js"
import { escapeText } from "../../client/escape.js"
import { findParentPid, findRole, listAgentNames } from "../../client/family.js"
import type { Places } from "../../client/place.js"
import { parseAgent } from "../../client/session.js"

/** `ctx agent status AGENT`: thirteen lines. Implements ctx-coreutils 6 (status). */
export default class Status extends CtxCommand {
  static override summary = "Print the state of an agent in thirteen lines"
  static override description =
    "The first line is the bare status word: start, ready, busy, idle, stopping or dead; ready or busy with a dead pid is dead. children counts the direct children that are not dead. Nothing is started."
  static override examples = ["<%= config.bin %> agent status coder", "<%= config.bin %> agent status coder --json"]
  static override args = { agent: string({ description: "name of the agent", required: true }) }

  async run(): Promise<unknown> {
    const { args } = await this.parse(Status)
    const agent = parseAgent(args.agent)
    const places = this.mountedPlaces()
    const controls = await AgentControls.open(places, agent)
    const status = await controls.readStatus()
    const pid = await controls.readPid()
    const groups = await controls.readList("groups")
    const rest: [string, Cell][] = [
      ["model", orAbsent(await controls.readValue("model"))],
      ["life", orAbsent(await controls.readValue("life"))],
      ["role", findRole(agent)],
      ["parent", orAbsent(await controls.readValue("parent"))],
      ["children", await countChildren(places, agent)],
      ["pid", pid],
      ["ppid", pid === undefined ? null : findParentPid(pid)],
      ["uid", decimal(await controls.readValue("uid"), agent, "uid")],
      ["gid", decimal((await controls.readValue("gid")) || (await primaryGroup(controls.owner)), agent, "gid")],
      ["groups", groups.length === 0 ? null : groups.join(",")],
      ["root", orAbsent(await controls.readValue("root"))],
      ["cwd", orAbsent(await controls.readValue("cwd"))],
    ]
    const numbers = groups.map(group => decimal(group, agent, "groups"))
    await this.text(`${escapeText(status)}\n`)
    return { agent, status, ...(await this.pairs(rest)), groups: numbers }
  }
}

async function countChildren(places: Places, agent: string): Promise<number> {
  let count = 0
  for (const name of listAgentNames(places)) {
    if (name !== agent && (await isLiveChild(places, name, agent))) count++
  }
  return count
}

// A child that vanishes or is malformed while it is looked at is none that can be counted.
async function isLiveChild(places: Places, name: string, parent: string): Promise<boolean> {
  try {
    const controls = await AgentControls.open(places, name)
    const [reference] = (await controls.readValue("parent")).split(" ")
    return reference === `agent:${parent}` && (await controls.readStatus()) !== "dead"
  } catch {
    return false
  }
}

async function primaryGroup(uid: number): Promise<string> {
  const { findAccount } = await import("../../native/sys.js")
  return String(findAccount(uid)?.gid ?? uid)
}

function decimal(text: string, agent: string, control: string): number {
  if (/^(0|[1-9]\d{0,9})$/.test(text)) return Number(text)
  throw new CtxError("EINVAL", `agent/${agent}.d/${control} is no number`, {
    hint: `ctx cat agent/${agent}.d/${control}`,
  })
}

function orAbsent(text: string): string | null {
  return text === "" ? null : text
}
