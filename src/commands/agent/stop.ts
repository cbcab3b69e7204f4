import { string } from "@oclif/core/args"
import { CtxError, codeOf } from "../../abi/error.js"
import type { JsonObject } from "../../abi/json.js"
import { cancelChannel, type DeliveryChannel, findChannel, isOpen } from "../../client/channel.js"
import { CtxCommand } from "../../client/command.js"
import { endHold, type Hold, proveHold, recordEnd, releaseHold } from "../../client/ending.js"
import { type Kin, readDescent } from "../../client/family.js"
import { parseAgent } from "../../client/session.js"

/** One agent of the tree that is stopped. */
interface Step {
  kin: Kin
  hold: Hold
  /** in the session of its parent, when nothing was delivered yet */
  channel: DeliveryChannel | undefined
}

/** `ctx agent stop AGENT`: ends an agent and its children. Implements ctx-coreutils 6 (stop), agent-runtime 14.3, 16. */
export default class Stop extends CtxCommand {
  static override summary = "Stop an agent and its children, as far as their receipts prove them"
  static override description =
    "Children end before their parents, their runs as cancelled; the socket of a stopped agent is closed, so that no connection wakes it. One line for each agent: stopped, or dead when nothing of it ran; cancelled for the channel of a child. A receipt that does not match what runs is EBUSY, and nothing is stopped. Histories stay."
  static override examples = ["<%= config.bin %> agent stop coder", "<%= config.bin %> agent stop coder --json"]
  static override args = { agent: string({ description: "name of the agent", required: true }) }

  async run(): Promise<unknown> {
    const { args } = await this.parse(Stop)
    const agent = parseAgent(args.agent)
    const { CTX_AGENT, CTX_SESSION, CTX_RUN_ID } = process.env
    if (CTX_AGENT && CTX_SESSION && CTX_RUN_ID) {
      throw new CtxError("EACCES", "agent.stop is no tool of this run", { hint: "ask the owner of the agent" })
    }
    return await this.holdSignals(async () => {
      const steps = await this.plan(agent)
      try {
        const actions: unknown[] = []
        for (const step of steps) {
          actions.push(...(await this.act(step)))
          // Its children have ended before it, and nobody works in its sessions any more.
          for (const { kin, channel } of steps) {
            if (kin.parent?.agent === step.kin.agent && channel !== undefined) await this.recordCancel(kin, channel)
          }
        }
        return actions
      } finally {
        for (const { hold } of steps) releaseHold(hold)
      }
    })
  }

  /** Everything is read and proven here; nothing is changed before it is complete. Deepest first. */
  private async plan(agent: string): Promise<Step[]> {
    const places = this.mountedPlaces()
    const descent = await readDescent(places, agent)
    const { owner } = descent[0]!
    if (places.uid !== owner && places.uid !== 0) {
      throw new CtxError("EACCES", `agent/${agent} belongs to uid ${owner}`, { hint: "act as its owner" })
    }
    const steps: Step[] = []
    try {
      for (const kin of descent.reverse()) {
        const life = await kin.controls.readValue("life")
        if (life !== "owned" && life !== "temp") {
          throw new CtxError("EINVAL", `agent/${kin.agent}.d/life is not owned or temp`, { hint: "correct it" })
        }
        const { parent } = kin
        const channel =
          kin.agent === agent || parent?.session === undefined
            ? undefined
            : findChannel(places, owner, parent.agent, parent.session, kin.agent)
        const hold = await proveHold(places, kin)
        steps.push({ kin, hold, channel: channel !== undefined && isOpen(channel) ? channel : undefined })
      }
    } catch (error) {
      for (const { hold } of steps) releaseHold(hold)
      throw error
    }
    return steps
  }

  private async act({ kin, hold, channel }: Step): Promise<unknown[]> {
    const { agent } = kin
    const ended = hold.kind === "dead" ? undefined : await endHold(this.places, kin, hold)
    const word = ended === undefined ? "dead" : "stopped"
    const actions = [await this.action(`${word} agent/${agent}`, word, { agent })]
    try {
      if (ended !== undefined) recordEnd(this.places, agent, ended.isTold)
    } catch (error) {
      this.report(error)
    }
    if (channel === undefined) return actions
    cancelChannel(channel)
    const { owner } = kin
    await this.record(owner, agent, channel.childSession, { type: "agent.stop", agent, status: "cancelled" })
    const parent = kin.parent!.agent
    const { session, child } = channel
    const line = `cancelled agent/${parent} session=${session} child=${child}`
    return [...actions, await this.action(line, "cancelled", { agent: parent, session, child })]
  }

  private async recordCancel({ owner, parent }: Kin, { session, child }: DeliveryChannel): Promise<void> {
    const { agent } = parent!
    await this.record(owner, agent, session, {
      type: "agent.child.cancel",
      parent: agent,
      child,
      reason: "parent_dead",
    })
  }

  /** What cannot be written any more is told; the agent is stopped all the same. */
  private async record(owner: number, agent: string, session: string, fields: JsonObject): Promise<void> {
    try {
      const { recordEvent } = await import("../../client/record.js")
      await recordEvent(this.places, owner, agent, session, fields)
    } catch (error) {
      if (codeOf(error) !== "ENOENT") this.report(error)
    }
  }
}
