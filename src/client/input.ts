// The text of a request, from words or from stdin.

import { CtxError } from "../abi/error.js"
import { INPUT_MAX } from "../abi/limit.js"
import { usageError } from "./failure.js"

/**
 * The input of `send`: the words joined by one blank, or with the single word `-` stdin until its end. Errors: `usage`
 * when it is empty, EMSGSIZE over 256 KiB, EINVAL when stdin is no UTF-8 or holds NUL. Implements ctx-coreutils 2.7, 7.
 */
export async function readInput(words: readonly string[]): Promise<string> {
  const text = words.length === 1 && words[0] === "-" ? await readStdinText() : words.join(" ")
  if (text === "") throw usageError("input is empty", "give INPUT, or - to read stdin")
  if (Buffer.byteLength(text) > INPUT_MAX) throw tooLong()
  if (text.includes("\0")) throw new CtxError("EINVAL", "input holds a NUL byte", { hint: "send text only" })
  return text
}

/** Bytes of stdin until its end, at most `sizeBytes`. Errors: EMSGSIZE beyond. */
export async function readStdin(sizeBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
    size += chunk.length
    if (size > sizeBytes) throw tooLong(sizeBytes)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

async function readStdinText(): Promise<string> {
  const bytes = await readStdin(INPUT_MAX)
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes)
  } catch (cause) {
    throw new CtxError("EINVAL", "stdin is no UTF-8 text", { cause, hint: "send text only" })
  }
}

function tooLong(sizeBytes = INPUT_MAX): CtxError {
  return new CtxError("EMSGSIZE", `input has more than ${sizeBytes} bytes`, { hint: "put it into a file and name it" })
}
