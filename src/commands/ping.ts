import { string } from "@oclif/core/args"
import { CtxError } from "../abi/error.js"
import { parseReply, replyError } from "../client/agent.js"
import { CtxCommand } from "../client/command.js"
import { openObject } from "../client/object.js"
import { readLines, sendRequest } from "../client/socket.js"

/** `ctx ping OBJECT`: asks a socket for a sign of life. Implements ctx-coreutils 4, session-abi 6.8. */
export default class Ping extends CtxCommand {
  static override summary = "Ask an object's socket for a sign of life"
  static override description =
    "Prints pong. Nothing there is ENOENT, a declared socket where nobody listens ECONNREFUSED, no mount EHOSTDOWN."
  static override examples = ["<%= config.bin %> ping agent/coder"]
  static override args = { object: string({ description: "agent/NAME or model/PROVIDER/MODEL", required: true }) }

  async run(): Promise<unknown> {
    const { args } = await this.parse(Ping)
    const socket = await openObject(this.mountedPlaces(), args.object)
    sendRequest(socket, { op: "ping" })
    socket.end()
    for await (const line of readLines(socket)) {
      const frame = parseReply(line, args.object)
      if (frame.type === "error") throw replyError(frame, args.object)
      if (frame.type !== "pong") break
      await this.text("pong\n")
      return { type: "pong" }
    }
    throw new CtxError("EIO", `${args.object} did not answer with pong`, { hint: `ctx connect ${args.object}` })
  }
}
