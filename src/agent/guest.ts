import { randomBytes } from "node:crypto"
import { closeSync, constants, fstatSync, openSync, readFileSync } from "node:fs"
import { connect } from "node:net"
import { CONTROL_MAX, parseList } from "../abi/control.js"
import { CtxError } from "../abi/error.js"
import { formatRow, isObject, type JsonObject, parseJsonObject } from "../abi/json.js"
import { isName } from "../abi/name.js"
import { agentControlPath } from "../abi/path.js"
import type { Message, MessagePart } from "../model/driver.js"
import { type Envelope, parseEnvelope } from "./envelope.js"

/** What the reference agent program needs of the world around it; all of it lies inside the sandbox. */
export interface GuestFacts {
  agent: string
  session: string
  /** `CTX_ROOT`. */
  root: string
  /** `CTX_CONTROL_SOCKET`. */
  controlSocket: string
  /** Prints one output line, given with its LF. */
  print: (line: string) => void
}

interface Call {
  id: string
  name: string
  arguments: JsonObject
}

/**
 * The reference agent program: a loop of model answer and tool result, nothing more. It stays for all steps of a run
 * and so knows every earlier call; one that is started in the middle knows the last one only. agent-runtime 4, 5
 */
export class Guest {
  private messages: Message[] = []
  private readonly calls: Call[] = []

  constructor(private readonly facts: GuestFacts) {}

  /**
   * One step for one envelope line; true when it ended with a call and another envelope will come.
   * Errors: EINVAL for a bad envelope, the code the host gave for a failed model call.
   */
  async step(line: Buffer): Promise<boolean> {
    const envelope = parseEnvelope(line)
    this.take(envelope)
    if (this.calls.length === 0) await this.ask(envelope)
    const call = this.calls.shift()
    if (call === undefined) return false
    this.print({ type: "tool_call", run: envelope.run, ...call })
    return true
  }

  private take({ input, observation }: Envelope): void {
    if (this.messages.length === 0) this.messages.push({ role: "user", content: input })
    if (observation === null) return
    const { tool_call_id, name, status, content } = observation
    const isKnown = this.messages.some(
      m => typeof m.content !== "string" && m.content.some(p => p.type === "tool_call" && p.id === tool_call_id),
    )
    if (!isKnown) {
      this.messages.push({ role: "assistant", content: [{ type: "tool_call", id: tool_call_id, name, arguments: {} }] })
    }
    this.messages.push({ role: "tool", content: [{ type: "tool_result", tool_call_id, content, status }] })
  }

  /** Asks the host for the next answer, prints it as it comes, and keeps the calls it holds. */
  private async ask({ run }: Envelope): Promise<void> {
    const parts: MessagePart[] = []
    let text = ""
    for await (const frame of this.request(run)) {
      switch (frame.type) {
        case "delta":
          text += frame.text
          this.print({ type: "delta", run, text: frame.text })
          break
        case "reasoning_delta":
          this.print({ type: "reasoning_delta", run, text: frame.text })
          break
        case "reasoning_message":
          this.print({ type: "reasoning_message", run, content: frame.content })
          break
        case "message":
          this.print({ type: "message", run, role: "assistant", content: frame.content })
          break
        case "tool_call":
          this.calls.push({
            id: frame.id as string,
            name: frame.name as string,
            arguments: frame.arguments as JsonObject,
          })
          break
        case "end":
          if (frame.status !== "ok") throw refusal(frame)
          if (text !== "") parts.push({ type: "text", text })
          for (const call of this.calls) parts.push({ type: "tool_call", ...call })
          if (parts.length > 0) this.messages.push({ role: "assistant", content: parts })
          return
        case "error":
          throw refusal(frame)
      }
    }
    throw new CtxError("EIO", "the host closed the control socket before the end of the answer")
  }

  private async *request(run: string): AsyncIterable<JsonObject> {
    const { agent, session, controlSocket } = this.facts
    const socket = connect({ path: controlSocket })
    const id = `q-${randomBytes(8).toString("hex")}`
    const messages = this.messages
    socket.write(
      `${formatRow({ op: "model", request_id: id, agent, session, run, messages, tools: this.listTools() })}\n`,
    )
    let rest: Buffer = Buffer.alloc(0)
    try {
      for await (const chunk of socket as AsyncIterable<Buffer>) {
        rest = Buffer.concat([rest, chunk])
        for (let at = rest.indexOf(10); at >= 0; at = rest.indexOf(10)) {
          yield parseJsonObject(rest.subarray(0, at))
          rest = rest.subarray(at + 1)
        }
      }
    } finally {
      socket.destroy()
    }
  }

  /** The native set as the agent's own control has it; an absent or malformed one counts as empty, as on the host. */
  private listTools(): string[] {
    try {
      const path = agentControlPath(this.facts.agent, "tools", this.facts.root)
      const names = parseList(readControl(path), "tools")
      const isGood =
        names.length <= 64 && new Set(names).size === names.length && names.every(n => isName(n) && n !== "tsh")
      return isGood ? ["tsh", ...names] : ["tsh"]
    } catch {
      return ["tsh"]
    }
  }

  private print(frame: JsonObject): void {
    this.facts.print(`${formatRow(frame)}\n`)
  }
}

/** The bytes of a regular file of at most 64 KiB; anything else is refused without waiting for it or following it. */
function readControl(path: string): Buffer {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK)
  try {
    const stat = fstatSync(fd)
    if (!stat.isFile() || stat.size > CONTROL_MAX) throw new CtxError("EINVAL", `${path}: is not a control`)
    return readFileSync(fd)
  } finally {
    closeSync(fd)
  }
}

function refusal(frame: JsonObject): CtxError {
  const { code, message } = isObject(frame) ? frame : {}
  return new CtxError("EIO", `${String(code)}: ${String(message)}`)
}
