import { createReadStream, readdirSync } from "node:fs"
import { createInterface } from "node:readline"
import { string } from "@oclif/core/args"
import { string as stringFlag } from "@oclif/core/flags"
import { CtxError, codeOf } from "../../abi/error.js"
import { isRunId, isSessionName } from "../../abi/name.js"
import { askOnce, type RequestPlace } from "../../client/agent.js"
import { CtxCommand } from "../../client/command.js"
import { join, type Places } from "../../client/place.js"
import { agentSessionsDir, parseAgent, resolveSession } from "../../client/session.js"

const RUN_PREFIX_MIN = 12

/** `ctx agent cancel`: ends a run. Implements ctx-coreutils 7, session-abi 6.5. */
export default class Cancel extends CtxCommand {
  static override summary = "Cancel a run of an agent and print how it ended"
  static override description =
    "Without RUN the active run of the session. RUN is a run id or an unambiguous beginning of at least 12 characters; without --session the session that holds it is looked for. Prints STATUS RUN, the stored end of the run: cancelled, or ok or error when it had ended before."
  static override examples = [
    "<%= config.bin %> agent cancel coder",
    "<%= config.bin %> agent cancel coder ctx-7f3a90c1d2e4",
  ]
  static override aliases = ["cancel"]
  static override args = {
    agent: string({ description: "name of the agent", required: true }),
    run: string({ description: "run id; default the active run of the session" }),
  }
  static override flags = {
    session: stringFlag({ description: "session; default the current one", helpValue: "S" }),
    shared: stringFlag({ description: "session of this space", helpValue: "SPACE" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(Cancel)
    const agent = parseAgent(args.agent)
    const places = this.mountedPlaces()
    const scope = flags.shared === undefined ? "private" : "shared"
    const target =
      args.run === undefined ? await findActive(places, agent, flags) : await findRun(places, agent, args.run, flags)
    const place: RequestPlace = { session: target.session, scope, shared: flags.shared }
    const done = await askOnce(places, agent, { op: "cancel", id: target.run, ...place })
    const status = String(done.status)
    await this.text(`${status} ${target.run}\n`)
    return { status, run: target.run }
  }
}

interface Target {
  session: string | undefined
  run: string
}

interface Flags {
  session?: string
  shared?: string
}

async function findActive(places: Places, agent: string, flags: Flags): Promise<Target> {
  const { session } = await resolveSession(places, agent, flags)
  const scope = flags.shared === undefined ? "private" : "shared"
  const status = await askOnce(places, agent, { op: "status", session, scope, shared: flags.shared })
  if (typeof status.run === "string") return { session, run: status.run }
  throw new CtxError("ENOENT", `session ${session} has no active run`, { hint: `ctx agent history ${agent}` })
}

// The files say which session holds the run. A run of scope temp is in no file: its full id goes to the runtime.
async function findRun(places: Places, agent: string, word: string, flags: Flags): Promise<Target> {
  if (!isRunId(word) && !(word.length >= RUN_PREFIX_MIN && /^ctx-[0-9a-f]{8,31}$/.test(word))) {
    throw new CtxError("EINVAL", `bad run ${word}`, { hint: "give a run id or its first 12 characters or more" })
  }
  const dir = agentSessionsDir(places, agent, flags.shared)
  const sessions =
    flags.session === undefined ? listSessions(dir) : [(await resolveSession(places, agent, flags)).session]
  const found = new Map<string, string>()
  for (const session of sessions) {
    for await (const run of readRuns(join(dir, `${session}/events.jsonl`))) {
      if (run.startsWith(word)) found.set(run, session)
    }
  }
  if (found.size > 1) throw new CtxError("EINVAL", `run ${word} is ambiguous`, { hint: [...found.keys()].join(" ") })
  for (const [run, session] of found) return { session, run }
  if (isRunId(word)) return { session: flags.session, run: word }
  throw new CtxError("ENOENT", `run ${word}`, { hint: `ctx agent history ${agent}` })
}

function listSessions(dir: string): string[] {
  try {
    return readdirSync(dir).filter(name => isSessionName(name))
  } catch (error) {
    if (codeOf(error) === "ENOENT") return []
    throw error
  }
}

async function* readRuns(path: string): AsyncGenerator<string> {
  const input = createReadStream(path)
  try {
    for await (const line of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
      if (!line.includes('"type":"start"')) continue
      const { type, run } = JSON.parse(line) as { type?: unknown; run?: unknown }
      if (type === "start" && typeof run === "string") yield run
    }
  } catch (error) {
    // A session that is being made, or whose history is damaged, is no place to find a run in: verify tells of it.
    if (codeOf(error) !== "ENOENT" && !(error instanceof SyntaxError)) throw error
  } finally {
    input.destroy()
  }
}
