import { string } from "@oclif/core/args"
import { string as stringFlag } from "@oclif/core/flags"
import { CtxError } from "../../abi/error.js"
import { CtxCommand } from "../../client/command.js"
import { escapeText } from "../../client/escape.js"
import { writeErr, writeRaw } from "../../client/output.js"
import { explainSession, parseAgent, resolveSession } from "../../client/session.js"
import { Trajectory as Document } from "../../session/export.js"

/** `ctx agent trajectory`: a session as one checked ATIF document. Implements session-abi 14. */
export default class Trajectory extends CtxCommand {
  static override summary = "Print a session as an ATIF trajectory"
  static override description =
    "One JSON document of the form ATIF-v1.7, checked before its first byte is printed. Results without a call are left out and counted on stderr."
  static override examples = [
    "<%= config.bin %> agent trajectory coder",
    "<%= config.bin %> agent trajectory coder --session build-fix > build-fix.json",
  ]
  static override args = { agent: string({ description: "name of the agent", required: true }) }
  static override flags = {
    session: stringFlag({ description: "session; default the current one", helpValue: "S" }),
    shared: stringFlag({ description: "session of this space", helpValue: "SPACE" }),
  }

  async run(): Promise<void> {
    const { args, flags } = await this.parse(Trajectory)
    const agent = parseAgent(args.agent)
    const place = await resolveSession(this.mountedPlaces(), agent, flags)
    const { session } = place
    const document = await Document.open(place.sessionsDir, agent, session).catch(error => {
      throw explainSession(error, place)
    })
    try {
      const { lines, count } = document.issues
      if (count > 0) {
        for (const line of lines) writeErr(`${escapeText(line)}\n`)
        throw new CtxError("EIO", `trajectory of session ${session} has ${count} issues`, {
          hint: `ctx agent session verify ${agent} ${session}`,
        })
      }
      if (document.dropped > 0) writeErr(`${document.dropped} tool results without a call were left out\n`)
      for await (const piece of document.format()) await writeRaw(piece)
    } finally {
      document.close()
    }
  }
}
