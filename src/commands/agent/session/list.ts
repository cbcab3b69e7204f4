import { string } from "@oclif/core/args"
import { boolean, string as stringFlag } from "@oclif/core/flags"
import { CtxError, toCtxError } from "../../../abi/error.js"
import { CtxCommand } from "../../../client/command.js"
import { agentSessionsDir, parseAgent } from "../../../client/session.js"
import { GROUPS, listSessions } from "../../../session/listing.js"

/** `ctx agent session list`: the sessions of an agent in menu order. Implements session-services 2. */
export default class List extends CtxCommand {
  static override summary = "List the sessions of an agent"
  static override description =
    "CURRENT (* or -), SESSION, GROUP, STATE, UPDATED, TITLE, by group and the newest first. A session left active by a dead runtime is shown as interrupted. Sessions with an idle lifetime only with --all."
  static override examples = [
    "<%= config.bin %> agent session list coder",
    "<%= config.bin %> agent session list coder --origin chat --json",
  ]
  static override args = { agent: string({ description: "name of the agent", required: true }) }
  static override flags = {
    origin: stringFlag({ description: "only this group", options: [...GROUPS], helpValue: "O" }),
    all: boolean({ description: "also sessions with an idle lifetime" }),
    shared: stringFlag({ description: "sessions of this space", helpValue: "SPACE" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(List)
    const agent = parseAgent(args.agent)
    const sessionsDir = agentSessionsDir(this.mountedPlaces(), agent, flags.shared)
    const onFault = (error: unknown) => {
      const { code, message } = toCtxError(error)
      this.report(new CtxError(code, message, { hint: `ctx agent session verify ${agent} --all`, cause: error }))
    }
    const sessions = listSessions(sessionsDir, { origin: flags.origin, all: flags.all, onFault })
    const rows = sessions.map(s => [s.isCurrent ? "*" : null, s.session, s.group, s.state, s.updated, s.title])
    return this.table(["current", "session", "group", "state", "updated", "title"], rows)
  }
}
