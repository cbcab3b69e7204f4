import { string } from "@oclif/core/args"
import { string as stringFlag } from "@oclif/core/flags"
import { CtxError } from "../../../abi/error.js"
import { isSessionName } from "../../../abi/name.js"
import { formatRow, withHome } from "../../../client/collect.js"
import { CtxCommand } from "../../../client/command.js"
import { parseAgent } from "../../../client/session.js"
import { archiveSession } from "../../../session/gc.js"

/** `ctx agent session archive AGENT SESSION`: archives one session at once. Implements ctx-coreutils 7.2, session-abi 13. */
export default class Archive extends CtxCommand {
  static override summary = "Archive one session"
  static override description =
    "Moves the session, byte for byte as it is, to archived_sessions in your home, and prints archived, AGENT, SESSION and where it lies now. A protected session (see ctx agent session gc) stays. Nothing brings a session back into use; its files can be read where they lie."
  static override examples = [
    "<%= config.bin %> agent session archive coder build-fix",
    "<%= config.bin %> agent session archive coder build-fix --archive-dir /srv/old",
  ]
  static override args = {
    agent: string({ description: "name of the agent", required: true }),
    session: string({ description: "name of the session", required: true }),
  }
  static override flags = {
    "archive-dir": stringFlag({ description: "archive to ABS/AGENT/SESSION", helpValue: "ABS" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(Archive)
    const agent = parseAgent(args.agent)
    const { session } = args
    if (!isSessionName(session)) {
      throw new CtxError("EINVAL", `bad session name ${session === "" ? '""' : session}`, {
        hint: `ctx agent session list ${agent} --all`,
      })
    }
    const dir = flags["archive-dir"]
    const path = await withHome(this.mountedPlaces(), dir, home =>
      this.holdSignals(() => archiveSession(home, agent, session, dir)),
    )
    if (path === undefined) {
      throw new CtxError("ENOENT", `agent/${agent}: session ${session} does not exist`, { hint: "send to it first" })
    }
    const line = formatRow("archived", agent, session, path)
    return [await this.action(line, "archived", { agent, session, detail: path })]
  }
}
