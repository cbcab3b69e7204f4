import { string } from "@oclif/core/args"
import { boolean, integer, string as stringFlag } from "@oclif/core/flags"
import { CtxCommand } from "../../client/command.js"
import { escapeText } from "../../client/escape.js"
import { writeOut, writeRaw } from "../../client/output.js"
import { explainSession, parseAgent, resolveSession } from "../../client/session.js"
import { HistoryReader } from "../../session/reader.js"
import type { MessageRow } from "../../session/row.js"
import type { Line } from "../../session/scan.js"

type Row = { row: MessageRow; line: Line }

/** `ctx agent history`: the rows of `messages.jsonl`. Implements ctx-coreutils 7, session-abi 12. */
export default class History extends CtxCommand {
  static override summary = "Print the messages of a session"
  static override description =
    "For each row its time, role and run, tool rows as tool:NAME, then its text with each line after two spaces; with --raw the stored lines. A damaged line ends it with EIO."
  static override examples = [
    "<%= config.bin %> agent history coder",
    "<%= config.bin %> agent history coder --session build-fix --tail 20 --raw",
  ]
  static override aliases = ["history"]
  static override args = { agent: string({ description: "name of the agent", required: true }) }
  static override flags = {
    session: stringFlag({ description: "session; default the current one", helpValue: "S" }),
    shared: stringFlag({ description: "session of this space", helpValue: "SPACE" }),
    tail: integer({ description: "print only the last N rows", helpValue: "N", min: 0 }),
    raw: boolean({ description: "print the stored lines as they are", exclusive: ["json"] }),
  }

  async run(): Promise<unknown> {
    const { args, flags } = await this.parse(History)
    const place = await resolveSession(this.mountedPlaces(), parseAgent(args.agent), flags)
    const rows: MessageRow[] = []
    let reader: HistoryReader | undefined
    try {
      reader = await HistoryReader.open(place.sessionsDir, place.session)
      for await (const stored of flags.tail === undefined ? reader.messages() : lastOf(reader.messages(), flags.tail)) {
        if (this.jsonEnabled()) rows.push(stored.row)
        else if (flags.raw) await writeRaw(Buffer.concat([stored.line.bytes, Buffer.from("\n")]))
        else await writeOut(formatRow(stored.row))
      }
    } catch (error) {
      throw explainSession(error, place)
    } finally {
      reader?.close()
    }
    return rows
  }
}

// The whole file is read, because a damage anywhere in it must be told.
async function* lastOf(rows: AsyncIterable<Row>, count: number): AsyncGenerator<Row> {
  const last: Row[] = []
  for await (const row of rows) {
    last.push(row)
    if (last.length > count) last.shift()
  }
  yield* last
}

function formatRow(row: MessageRow): string {
  const role = row.role === "tool" ? `tool:${row.name}` : row.role
  const head = `${row.ts}\t${escapeText(role)}\t${escapeText(row.run ?? "-")}\n`
  const text = typeof row.content === "string" ? row.content : row.content.map(partText).join("\n")
  if (text === "") return head
  const lines = text.replace(/\n$/, "").split("\n")
  return head + lines.map(line => `  ${escapeText(line)}\n`).join("")
}

function partText(part: Exclude<MessageRow["content"], string>[number]): string {
  if (part.type === "text") return part.text
  if (part.type === "tool_result") return part.content
  return part.type === "image" ? `[image ${part.path}]` : ""
}
