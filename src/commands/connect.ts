import { string } from "@oclif/core/args"
import { CtxError } from "../abi/error.js"
import { FRAME_MAX } from "../abi/limit.js"
import { parseReply, replyError } from "../client/agent.js"
import { CtxCommand } from "../client/command.js"
import { usageError } from "../client/failure.js"
import { openObject } from "../client/object.js"
import { writeRaw } from "../client/output.js"
import { readLines } from "../client/socket.js"

const LF = 10

/** `ctx connect OBJECT`: one request line in, the reply lines out. Implements ctx-coreutils 4. */
export default class Connect extends CtxCommand {
  static override enableJsonFlag = false
  static override summary = "Send one request line from stdin to an object's socket"
  static override description =
    "Prints every reply line as it is. An error frame is also one line on stderr and decides the exit code."
  static override examples = [`printf '{"op":"ping"}\\n' | <%= config.bin %> connect agent/coder`]
  static override args = { object: string({ description: "agent/NAME or model/PROVIDER/MODEL", required: true }) }

  async run(): Promise<unknown> {
    const { args } = await this.parse(Connect)
    const places = this.mountedPlaces()
    const request = await readLine()
    const socket = await openObject(places, args.object)
    socket.end(request)
    let fault: CtxError | undefined
    for await (const line of readLines(socket)) {
      await writeRaw(Buffer.concat([line, Buffer.from("\n")]))
      const frame = parseReply(line, args.object)
      if (frame.type === "error" && frame.recoverable !== true) fault = replyError(frame, args.object)
      if (frame.type === "done" && frame.status === "cancelled") {
        fault = new CtxError("cancelled", `run ${frame.run} was cancelled`, { hint: "see the frames" })
      }
    }
    if (fault !== undefined) throw fault
    return undefined
  }
}

// Only the first line is a request: bytes behind it would be refused as a second one, and a terminal or a pipe that
// stays open must not hold it back.
async function readLine(): Promise<Buffer> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
    const end = chunk.indexOf(LF)
    chunks.push(end === -1 ? chunk : chunk.subarray(0, end + 1))
    size += chunk.length
    if (end !== -1) break
    // A longer one is refused by the other side, which needs no more of it than this to know.
    if (size > FRAME_MAX) break
  }
  if (size === 0) throw usageError("stdin holds no request", "give one JSON line on stdin")
  return Buffer.concat(chunks)
}
