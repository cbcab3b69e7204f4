import { string } from "@oclif/core/args"
import { codeOf } from "../../abi/error.js"
import { type DeliveryChannel, listChannels } from "../../client/channel.js"
import { type Cell, CtxCommand } from "../../client/command.js"
import { findParentPid, findRole, type Kin, readKin } from "../../client/family.js"
import { parseAgent } from "../../client/session.js"

const COLUMNS = [
  "child",
  "status",
  "agent",
  "session",
  "parent_session",
  "parent_run",
  "model",
  "life",
  "role",
  "agent_status",
  "ppid",
  "pid",
]

/** `ctx agent children AGENT`: the work it has given to others. Implements ctx-coreutils 6 (children), agent-runtime 14.1. */
export default class Children extends CtxCommand {
  static override summary = "List the work an agent has given to child agents"
  static override description =
    "CHILD, STATUS, AGENT, SESSION, PARENT_SESSION, PARENT_RUN, MODEL, LIFE, ROLE, AGENT_STATUS, PPID, PID of each delivery channel, over all sessions, by session then child. Changes nothing."
  static override examples = ["<%= config.bin %> agent children coder", "<%= config.bin %> agent children coder --json"]
  static override args = { agent: string({ description: "name of the agent", required: true }) }

  async run(): Promise<unknown> {
    const { args } = await this.parse(Children)
    const agent = parseAgent(args.agent)
    const { owner } = await readKin(this.mountedPlaces(), agent)
    const channels = listChannels(this.places, owner, agent, error => this.report(error))
    const rows: Cell[][] = []
    for (const channel of channels) rows.push(await this.row(agent, channel))
    return this.table(COLUMNS, rows)
  }

  private async row(parent: string, channel: DeliveryChannel): Promise<Cell[]> {
    const { child, status, agent, childSession, session } = channel
    const kin = await this.findKin(agent)
    const reference = kin?.parent
    const isOwn = reference?.agent === parent && reference.session === session
    const agentStatus = await kin?.controls.readStatus()
    const pid = agentStatus === "dead" ? undefined : await kin?.controls.readPid()
    const [model, life] = [await kin?.controls.readValue("model"), await kin?.controls.readValue("life")]
    return [
      child,
      status,
      agent,
      childSession,
      session,
      isOwn ? reference.run : null,
      model || null,
      life || null,
      findRole(agent),
      agentStatus,
      pid === undefined ? null : findParentPid(pid),
      pid,
    ]
  }

  // An agent that is gone leaves its channel.
  private async findKin(agent: string): Promise<Kin | undefined> {
    try {
      return await readKin(this.places, agent)
    } catch (error) {
      if (codeOf(error) !== "ENOENT") this.report(error)
      return undefined
    }
  }
}
