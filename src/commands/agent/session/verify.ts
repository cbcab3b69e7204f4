import { string } from "@oclif/core/args"
import { boolean, string as stringFlag } from "@oclif/core/flags"
import { CtxError, codeOf } from "../../../abi/error.js"
import { CtxCommand } from "../../../client/command.js"
import { escapeText } from "../../../client/escape.js"
import { usageError } from "../../../client/failure.js"
import { agentSessionsDir, explainSession, parseAgent, resolveSession } from "../../../client/session.js"
import { listSessionNames } from "../../../session/listing.js"
import type { Proof } from "../../../session/prove.js"
import { verifyNamed } from "../../../session/reader.js"

/** `ctx agent session verify`: proves the history files of sessions. Implements session-abi 12, ctx-coreutils 7.1. */
export default class Verify extends CtxCommand {
  static override summary = "Prove the history of a session"
  static override description =
    "For each history file ok with its rows and bytes, or bad with line, offset and reason of the first damage; exit 1 when any is bad. Changes nothing. With --all every session, files as SESSION/FILE."
  static override examples = [
    "<%= config.bin %> agent session verify coder",
    "<%= config.bin %> agent session verify coder build-fix",
    "<%= config.bin %> agent session verify coder --all",
  ]
  static override args = {
    agent: string({ description: "name of the agent", required: true }),
    session: string({ description: "session; default the current one" }),
  }
  static override flags = {
    all: boolean({ description: "every session" }),
    shared: stringFlag({ description: "sessions of this space", helpValue: "SPACE" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(Verify)
    if (flags.all && args.session !== undefined) throw usageError("--all cannot be combined with a session")
    const agent = parseAgent(args.agent)
    const places = this.mountedPlaces()
    const actions: unknown[] = []
    if (flags.all) {
      const sessionsDir = agentSessionsDir(places, agent, flags.shared)
      for (const session of listSessionNames(sessionsDir)) {
        try {
          actions.push(...(await this.verify(sessionsDir, session, `${session}/`)))
        } catch (e) {
          this.report(e)
        }
      }
    } else {
      const place = await resolveSession(places, agent, { session: args.session, shared: flags.shared })
      const proofs = this.verify(place.sessionsDir, place.session, "").catch(error => {
        throw codeOf(error) === "ENOENT" ? explainSession(error, place) : error
      })
      actions.push(...(await proofs))
    }
    return actions
  }

  private async verify(sessionsDir: string, session: string, prefix: string): Promise<unknown[]> {
    const actions: unknown[] = []
    for (const proof of await verifyNamed(sessionsDir, session)) actions.push(await this.show(proof, session, prefix))
    return actions
  }

  private async show(proof: Proof, session: string, prefix: string): Promise<unknown> {
    const file = `${prefix}${proof.file}`
    const { damage, rows, bytes } = proof
    if (damage === undefined) {
      return this.action(`ok\t${escapeText(file)}\trows=${rows}\tbytes=${bytes}`, "ok", { file, rows, bytes })
    }
    const { line, offset, reason } = damage
    const text = `bad\t${escapeText(file)}\tline=${line}\toffset=${offset}\treason=${reason}`
    const action = await this.action(text, "bad", { file, line, offset, reason })
    this.report(new CtxError("EIO", `session ${session}: ${proof.file} line ${line} is damaged: ${reason}`))
    return action
  }
}
