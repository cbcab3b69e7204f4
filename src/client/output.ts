// Writing to stdout and stderr of a command.

import { escapeTerminal } from "./escape.js"

/**
 * Writes to stdout and resolves when the bytes were taken. A closed stdout ends the process at once with exit 0 and no
 * word (ctx-coreutils 2.4); any other failure rejects with the error of the stream.
 */
export async function writeOut(bytes: string | Uint8Array): Promise<void> {
  if (bytes.length === 0) return
  await new Promise<void>((resolve, reject) => {
    process.stdout.write(bytes, error => {
      if (error === null || error === undefined) resolve()
      else if ((error as NodeJS.ErrnoException).code === "EPIPE") process.exit(0)
      else reject(error)
    })
  })
}

/**
 * Writes raw output: the bytes as they are, but on a terminal with control characters escaped, all but LF and TAB.
 * Implements ctx-coreutils 2.4 for `cat`, `output`, `--raw`, `trajectory` and assistant text.
 */
export async function writeRaw(bytes: string | Uint8Array): Promise<void> {
  if (!process.stdout.isTTY) return writeOut(bytes)
  return writeOut(escapeTerminal(typeof bytes === "string" ? bytes : Buffer.from(bytes).toString("utf8")))
}

/** Writes one JSON value, two-space indent, one LF. Implements ctx-coreutils 2.4. */
export async function writeJson(value: unknown): Promise<void> {
  return writeOut(`${JSON.stringify(value, null, 2)}\n`)
}

/** Writes to stderr; a closed stderr is no matter. */
export function writeErr(text: string): void {
  process.stderr.write(text)
}

/** Makes a broken pipe on stdout end the process silently with 0, also for writers that do not go through writeOut. */
export function endOnClosedOutput(): void {
  process.stdout.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code === "EPIPE") process.exit(0)
  })
  process.stderr.on("error", () => {})
}
