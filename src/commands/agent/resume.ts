import { string } from "@oclif/core/args"
import { boolean, string as stringFlag } from "@oclif/core/flags"
import { CtxError } from "../../abi/error.js"
import { askAgent, askOnce, frameError, logHint, type ReplyFrame } from "../../client/agent.js"
import { CtxCommand } from "../../client/command.js"
import { Interrupt } from "../../client/interrupt.js"
import { writeRaw } from "../../client/output.js"
import { textOf } from "../../client/run.js"
import { parseAgent, resolveSession } from "../../client/session.js"

/** `ctx agent resume`: what a session has stored, and what comes. Implements ctx-coreutils 7, session-abi 6.4. */
export default class Resume extends CtxCommand {
  static override summary = "Print the stored answers of a session, and those of its active run"
  static override description =
    "Assistant texts, each ended by a newline; with --raw the stored event lines, with --json an array of them. --after takes an event number or the id of an event. With --follow it goes on until the active run has ended; Ctrl-C then cancels that run."
  static override examples = [
    "<%= config.bin %> agent resume coder",
    "<%= config.bin %> agent resume coder --session build-fix --after 7 --follow --raw",
  ]
  static override aliases = ["resume"]
  static override args = { agent: string({ description: "name of the agent", required: true }) }
  static override flags = {
    session: stringFlag({ description: "session; default the current one", helpValue: "S" }),
    after: stringFlag({ description: "begin after this event number or id", helpValue: "SEQ|ID" }),
    follow: boolean({ description: "go on until the active run has ended" }),
    raw: boolean({ description: "print the stored lines as they are", exclusive: ["json"] }),
    shared: stringFlag({ description: "session of this space", helpValue: "SPACE" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(Resume)
    const agent = parseAgent(args.agent)
    const places = this.mountedPlaces()
    const { session } = await resolveSession(places, agent, flags)
    const place = { session, scope: flags.shared === undefined ? "private" : "shared", shared: flags.shared }
    const after = flags.after !== undefined && /^\d{1,15}$/.test(flags.after) ? Number(flags.after) : flags.after
    const cancel = (run: string) => askOnce(places, agent, { op: "cancel", id: run, ...place })
    const interrupt = flags.follow ? new Interrupt(cancel) : undefined
    const rows: ReplyFrame[] = []
    let end: ReplyFrame | undefined
    const request = { op: "resume", ...place, after, follow: flags.follow || undefined }
    for await (const { line, frame } of askAgent(places, agent, request, () => interrupt?.start())) {
      if (frame.type === "error" && frame.run === undefined) throw frameError(places, frame, agent, session)
      if (flags.raw) await writeRaw(Buffer.concat([line, Buffer.from("\n")]))
      else if (this.jsonEnabled()) rows.push(frame)
      else await this.printAnswer(frame)
      if (frame.type === "done") end = frame
      // The run that goes on is that of the last line, and none after a done.
      interrupt?.setRun(frame.type === "done" || typeof frame.run !== "string" ? undefined : frame.run)
    }
    if (interrupt?.isAsked && end === undefined) {
      throw new CtxError("EIO", `agent/${agent} closed the connection`, { hint: logHint(places, agent) })
    }
    if (interrupt?.isAsked && end?.status === "cancelled") {
      throw new CtxError("cancelled", `run ${end.run} was cancelled`, { hint: `ctx agent resume ${agent}` })
    }
    return rows
  }

  private async printAnswer(frame: ReplyFrame): Promise<void> {
    if (frame.type !== "message" || frame.role !== "assistant") return
    const text = textOf(frame.content)
    if (text !== "") await writeRaw(text.endsWith("\n") ? text : `${text}\n`)
  }
}
