import { string } from "@oclif/core/args"
import { boolean, string as stringFlag } from "@oclif/core/flags"
import { CtxError, toCtxError } from "../../../abi/error.js"
import { isSessionName } from "../../../abi/name.js"
import { parseDuration } from "../../../abi/time.js"
import { formatRow, withHome } from "../../../client/collect.js"
import { CtxCommand } from "../../../client/command.js"
import { usageError } from "../../../client/failure.js"
import { writeErr } from "../../../client/output.js"
import { parseAgent } from "../../../client/session.js"
import { applyGc, type GcRequest, type GcRow, type Home, listCollectable, previewGc } from "../../../session/gc.js"

/** `ctx agent session gc`: archives or deletes sessions that nothing protects. Implements ctx-coreutils 7.2, session-abi 13. */
export default class Gc extends CtxCommand {
  static override summary = "Archive or delete sessions that are not in use"
  static override description =
    "Prints what would be done; with --yes it is done. VERB, AGENT, SESSION and the destination, reason or errno, one session a line. Without AGENT the sessions of every agent of yours, without a filter all of them; several filters must all hold. Protected are default, the current session, those named by --keep, and what is active, locked, waiting for an answer or has a state that cannot be read. Archived sessions go to archived_sessions in your home, byte for byte as they are."
  static override examples = [
    "<%= config.bin %> agent session gc",
    "<%= config.bin %> agent session gc coder --idle 30d --yes",
    "<%= config.bin %> agent session gc --lifetime temp --yes",
    "<%= config.bin %> agent session gc coder --match 'test-*' --delete --yes",
  ]
  static override args = { agent: string({ description: "name of the agent; default every agent" }) }
  static override flags = {
    match: stringFlag({
      description: "only these names, with * ? [a-z]; repeatable",
      helpValue: "GLOB",
      multiple: true,
    }),
    "older-than": stringFlag({ description: "only those created longer ago, such as 30d", helpValue: "DURATION" }),
    idle: stringFlag({ description: "only those unchanged for longer, such as 12h", helpValue: "DURATION" }),
    lifetime: stringFlag({
      description: "only temporary ones past their time, or only kept ones",
      options: ["temp", "keep"],
      helpValue: "temp|keep",
    }),
    keep: stringFlag({ description: "leave this session; repeatable", helpValue: "NAME", multiple: true }),
    "dry-run": boolean({ description: "only print, as without --yes" }),
    yes: boolean({ description: "do it" }),
    delete: boolean({ description: "delete for good instead of archiving" }),
    "archive-dir": stringFlag({ description: "archive to ABS/AGENT/SESSION", helpValue: "ABS" }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(Gc)
    if (flags["dry-run"] && flags.yes) throw usageError("--dry-run cannot be combined with --yes")
    if (flags.delete && flags["archive-dir"] !== undefined) {
      throw usageError("--delete cannot be combined with --archive-dir")
    }
    const agent = args.agent === undefined ? undefined : parseAgent(args.agent)
    const request = requestOf(flags)
    const places = this.mountedPlaces()
    const actions: unknown[] = []
    await withHome(places, request.archiveDir, async home => {
      for (const one of agent === undefined ? listCollectable(home.fd) : [agent]) {
        try {
          if (flags.yes) await this.apply(home, one, request, actions)
          else await this.show(previewGc(home, one, request), one, actions)
        } catch (error) {
          const { code, message, hint } = toCtxError(error)
          this.report(new CtxError(code, `agent/${one}: ${message}`, { hint, cause: error }))
        }
      }
    })
    return actions
  }

  private async apply(home: Home, agent: string, request: GcRequest, actions: unknown[]): Promise<void> {
    const groups = applyGc(home, agent, request, error => this.report(error))
    // A signal waits for the end of a transaction and its lines; between two it ends the command.
    let isDone = false
    while (!isDone) {
      isDone = await this.holdSignals(async () => {
        const { value, done } = await groups.next()
        if (value !== undefined) await this.show(value, agent, actions)
        return done === true
      })
      if (!isDone && process.stderr.isTTY && !process.stdout.isTTY) writeErr(`agent/${agent}: ${actions.length} done\n`)
    }
  }

  private async show(rows: readonly GcRow[], agent: string, actions: unknown[]): Promise<void> {
    await this.text(rows.map(row => `${formatRow(row.verb, agent, row.session, row.detail)}\n`).join(""))
    for (const { verb, session, detail, error } of rows) {
      actions.push({ action: verb, agent, session, detail: detail ?? null })
      if (error !== undefined) this.report(error)
    }
  }
}

interface Flags {
  match?: string[]
  "older-than"?: string
  idle?: string
  lifetime?: string
  keep?: string[]
  delete: boolean
  "archive-dir"?: string
}

function requestOf(flags: Flags): GcRequest {
  const bad = flags.keep?.find(name => !isSessionName(name))
  if (bad !== undefined) throw usageError(`--keep ${bad === "" ? '""' : bad} is no session name`)
  return {
    filter: {
      match: flags.match,
      olderThanS: secondsOf("--older-than", flags["older-than"]),
      idleS: secondsOf("--idle", flags.idle),
      lifetime: flags.lifetime as "temp" | "keep" | undefined,
    },
    keep: flags.keep ?? [],
    isDelete: flags.delete,
    archiveDir: flags["archive-dir"],
  }
}

function secondsOf(flag: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  try {
    return parseDuration(text)
  } catch (error) {
    throw usageError(`${flag}: ${toCtxError(error).message}`)
  }
}
