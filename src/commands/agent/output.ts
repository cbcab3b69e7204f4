import { closeSync } from "node:fs"
import { string } from "@oclif/core/args"
import { string as stringFlag } from "@oclif/core/flags"
import { ROW_MAX } from "../../abi/limit.js"
import { CtxCommand } from "../../client/command.js"
import { writeRaw } from "../../client/output.js"
import { explainSession, parseAgent, resolveSession } from "../../client/session.js"
import { readText } from "../../session/meta.js"
import { openSession } from "../../session/reader.js"

/** `ctx agent output`: the latest answer. Implements ctx-coreutils 7. */
export default class Output extends CtxCommand {
  static override summary = "Print the latest answer of a session"
  static override description = "The bytes of latest.md; nothing when there is no answer yet."
  static override examples = ["<%= config.bin %> agent output coder", "<%= config.bin %> agent output coder --json"]
  static override args = { agent: string({ description: "name of the agent", required: true }) }
  static override flags = {
    session: stringFlag({ description: "session; default the current one", helpValue: "S" }),
    shared: stringFlag({ description: "session of this space", helpValue: "SPACE" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(Output)
    const place = await resolveSession(this.mountedPlaces(), parseAgent(args.agent), flags)
    const { session } = place
    let dirFd: number | undefined
    try {
      dirFd = openSession(place.sessionsDir, session)
      const text = readText(dirFd, "latest.md", ROW_MAX) ?? ""
      if (!this.jsonEnabled()) await writeRaw(text)
      return { session, text }
    } catch (error) {
      throw explainSession(error, place)
    } finally {
      if (dirFd !== undefined) closeSync(dirFd)
    }
  }
}
