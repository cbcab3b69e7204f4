import { fstatSync } from "node:fs"

/** How much a line matters to whoever reads the journal: a priority of syslog. */
export type Severity = "error" | "warning" | "info"

const PRIORITY: Record<Severity, number> = { error: 3, warning: 4, info: 6 }

/** Whether stderr is the stream to the journal that the service manager says it is. */
function isJournal(): boolean {
  try {
    const { dev, ino } = fstatSync(2)
    return process.env.JOURNAL_STREAM === `${dev}:${ino}`
  } catch {
    return false
  }
}

/** Any text as one line. */
export function oneLine(text: string): string {
  return text.replace(/[\r\n]+/g, " ")
}

/**
 * Writes one line of a host program to stderr: `program: line`, with its priority in front where stderr is the journal,
 * which takes that off again. Never a prompt, tool output or a secret. units 9
 */
export function writeJournal(program: string, line: string, severity: Severity = "info"): void {
  const prefix = isJournal() ? `<${PRIORITY[severity]}>` : ""
  process.stderr.write(`${prefix}${program}: ${oneLine(line)}\n`)
}

/**
 * What is told of an error nobody expected: where it was thrown, not its text, which may quote what was being read.
 * units 9
 */
export function describeInternal(error: unknown): string {
  if (!(error instanceof Error)) return typeof error
  const { code } = error as NodeJS.ErrnoException
  const frames = (error.stack ?? "").split("\n").filter(line => /^\s+at /.test(line))
  return oneLine([error.name, ...(code === undefined ? [] : [code]), ...frames.map(line => line.trim())].join(" "))
}
