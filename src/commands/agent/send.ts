import { randomBytes } from "node:crypto"
import { resolve } from "node:path"
import { string } from "@oclif/core/args"
import { boolean, integer, string as stringFlag } from "@oclif/core/flags"
import { CtxError } from "../../abi/error.js"
import { STEPS_MAX } from "../../abi/limit.js"
import { askAgent, askOnce, frameError, logHint, type RequestPlace } from "../../client/agent.js"
import { CtxCommand } from "../../client/command.js"
import { usageError } from "../../client/failure.js"
import { readInput } from "../../client/input.js"
import { Interrupt } from "../../client/interrupt.js"
import { writeRaw } from "../../client/output.js"
import type { Places } from "../../client/place.js"
import { RunReader } from "../../client/run.js"
import { parseAgent, resolveSession } from "../../client/session.js"

/** `ctx agent send`: one text to an agent, its answer as it comes. Implements ctx-coreutils 7, 2.7. */
export default class Send extends CtxCommand {
  static override summary = "Send a text to an agent and print its answer as it comes"
  static override description =
    "The words of INPUT are joined by one blank; - reads stdin to its end. Without --session the current session of the agent is used, else default. Sending the same --id and text again prints the stored answer and runs nothing. The first Ctrl-C cancels the run, the second leaves at once. Exit 0 when the run ended ok, 130 when cancelled, else by the error of the run."
  static override examples = [
    '<%= config.bin %> agent send coder "what is in README.md?"',
    "git diff | <%= config.bin %> agent send coder --workspace . -",
    "<%= config.bin %> agent send coder --session build-fix --raw why does make fail",
  ]
  static override aliases = ["send"]
  static override args = {
    agent: string({ description: "name of the agent", required: true }),
    input: string({ description: "text, or - for stdin", multiple: true }),
  }
  static override flags = {
    session: stringFlag({ description: "session, made when absent", helpValue: "S" }),
    workspace: stringFlag({ description: "host directory shown at /workspace for this run", helpValue: "DIR" }),
    cwd: stringFlag({ description: "working directory inside the agent's root", helpValue: "DIR" }),
    wait: boolean({ description: "queue behind the active run of the session" }),
    raw: boolean({ description: "print every frame as it is", exclusive: ["json"] }),
    shared: stringFlag({ description: "session of this space", helpValue: "SPACE", exclusive: ["temp"] }),
    temp: boolean({ description: "keep no history, write no file" }),
    id: stringFlag({ description: "id of this request; default a fresh one", helpValue: "ID" }),
    steps: integer({ description: "most tool calls of this run, 1 to 255", helpValue: "N", min: 1, max: STEPS_MAX }),
    title: stringFlag({ description: "title of a session made now", helpValue: "TITLE" }),
    hash: stringFlag({ description: "external key bound to the session", helpValue: "KEY" }),
    uuid: stringFlag({ description: "external UUID bound to the session", helpValue: "UUID" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(Send)
    const agent = parseAgent(args.agent)
    // The parser gives several words as a list and a missing word as nothing.
    const input = await readInput([args.input ?? []].flat())
    const places = this.mountedPlaces()
    const { session } = await resolveSession(places, agent, flags)
    const { wait, cwd, steps, title, hash, uuid, shared } = flags
    const scope = flags.temp ? "temp" : shared === undefined ? "private" : "shared"
    const id = flags.id ?? `ctx-${randomBytes(16).toString("hex")}`
    if (flags.workspace === "") throw usageError("--workspace is empty", "give a directory, such as .")
    const workspace = flags.workspace === undefined ? undefined : resolve(flags.workspace)
    const place: RequestPlace = { session, scope, shared }
    const request = {
      op: "send",
      id,
      ...place,
      cwd,
      workspace,
      wait: wait || undefined,
      steps,
      title,
      hash,
      uuid,
      input,
    }

    const isQuiet = flags.raw || this.jsonEnabled()
    const reader = new RunReader(async text => (isQuiet ? undefined : writeRaw(text)))
    const interrupt = new Interrupt(run => askOnce(places, agent, { op: "cancel", id: run, ...cancelPlace(place) }))
    const follow = async (ask: object): Promise<void> => {
      for await (const { line, frame } of askAgent(places, agent, ask, () => interrupt.start())) {
        if (flags.raw) await writeRaw(Buffer.concat([line, LF]))
        await reader.take(frame)
        interrupt.setRun(reader.run)
        if (reader.isEnded) return
      }
    }
    await follow(request)
    // Only the start line: the run of this id is going on for another client. Its rest is read as it is stored.
    if (!reader.isEnded && reader.frames === 1 && reader.startSeq !== undefined) {
      await follow({ op: "resume", ...place, after: reader.startSeq, follow: true })
    }
    if (reader.status === undefined && reader.fault === undefined) throw brokenOff(places, agent, session)
    if (reader.status !== undefined && !reader.hasStart && !flags.raw) {
      await this.replay(reader, isQuiet, askAgent(places, agent, { op: "resume", ...place }))
    }
    return this.end(reader, agent, session, id)
  }

  // A finished id sends one stored done line: the text it ended with is in the stored frames of that run.
  private async replay(reader: RunReader, isQuiet: boolean, stored: ReturnType<typeof askAgent>): Promise<void> {
    const replayed = new RunReader(async text => (isQuiet ? undefined : writeRaw(text)))
    for await (const { frame } of stored) {
      if (frame.run === reader.run) await replayed.take(frame)
      if (replayed.isEnded) break
    }
    reader.answer = replayed.answer
    reader.fault = replayed.fault
  }

  private end(reader: RunReader, agent: string, session: string, id: string): object {
    if (reader.status === "ok") {
      return { agent, session, id, run: reader.run, status: "ok", text: reader.answer ?? "" }
    }
    if (reader.status === "cancelled") {
      const hint = `ctx agent resume ${agent} --session ${session} shows what was stored`
      throw new CtxError("cancelled", `run ${reader.run} was cancelled`, { hint })
    }
    throw reader.fault === undefined
      ? brokenOff(this.places, agent, session)
      : frameError(this.places, reader.fault, agent, session)
  }
}

const LF = Buffer.from("\n")

// `cancel` knows no temp scope: such a run is found by its id alone.
function cancelPlace(place: RequestPlace): RequestPlace {
  return place.scope === "temp" ? {} : place
}

function brokenOff(places: Places, agent: string, session: string): CtxError {
  return new CtxError("EIO", `agent/${agent} closed the connection before the run ended in session ${session}`, {
    hint: logHint(places, agent),
  })
}
