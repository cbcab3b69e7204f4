import { CtxError } from "../abi/error.js"
import type { MessageRow, Part } from "../session/row.js"
import type { Session } from "../session/session.js"
import { shortenText } from "./observation.js"

/** What stands for an empty history. agent-runtime 10 */
export const NO_HISTORY = "(no history)"

function textOf(content: string | Part[]): string {
  if (typeof content === "string") return content
  const texts = content.map(part => {
    if (part.type === "text") return part.text
    if (part.type === "tool_result") return part.content
    return `[image ${part.path}]`
  })
  return texts.join("\n")
}

/** One stored row as prompt text, without a final LF: `- role: text`, further lines indented by two. agent-runtime 10 */
export function formatHistoryRow(row: MessageRow): string {
  const who = row.role === "tool" ? `tool ${row.name ?? ""}` : row.role
  const { text } = shortenText(textOf(row.content).replace(/\n+$/, ""))
  return `- ${who}: ${text.replaceAll("\n", "\n  ")}`
}

/**
 * The newest rows whose rendered text is at most `maxBytes`, oldest first, as one text; rows left out before them are
 * counted in a first line. agent-runtime 10
 */
export function formatHistory(rows: readonly MessageRow[], omitted: number, maxBytes: number): string {
  const kept: string[] = []
  let size = 0
  for (let i = rows.length - 1; i >= 0; i--) {
    const text = formatHistoryRow(rows[i]!)
    size += Buffer.byteLength(text) + 1
    if (size > maxBytes) {
      omitted += i + 1
      break
    }
    kept.unshift(text)
  }
  if (kept.length === 0 && omitted === 0) return NO_HISTORY
  if (omitted > 0) kept.unshift(`[${omitted} earlier messages omitted]`)
  return kept.join("\n")
}

/**
 * The history given to a run: what the session holds before the run's own row. `maxBytes` is H of agent-runtime 9.
 * Errors: EIO when the history cannot be read.
 */
export async function readHistory(session: Session | undefined, maxBytes: number): Promise<string> {
  if (session === undefined) return NO_HISTORY
  try {
    // Tool results are shortened when rendered, so stored rows may be much longer than what they become.
    const { rows, omitted } = await session.readRecent(maxBytes * 16)
    return formatHistory(rows, omitted, maxBytes)
  } catch (e) {
    throw new CtxError("EIO", `history of session ${session.name} cannot be read`, { cause: e })
  }
}
