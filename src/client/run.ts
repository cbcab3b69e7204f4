// Reading one run from its frames: the text as it comes, and how it ended.

import { type DoneStatus, showDoneStatus } from "../abi/status.js"
import type { ReplyFrame } from "./agent.js"

/** Takes pieces of assistant text; `writeRaw` in a command. */
export type TextSink = (text: string) => Promise<void>

/**
 * Follows the frames of one run. Text goes to the sink once: deltas as they come, then what the stored message has
 * beyond them; text of different steps is kept on different lines, and the last byte is LF. A frame without a run that
 * is an error ends the request. Implements ctx-coreutils 7 (send, resume) over session-abi 6.1.
 */
export class RunReader {
  /** The run, from its first frame on. */
  run: string | undefined
  /** `seq` of the stored start line, absent for temp runs. */
  startSeq: number | undefined
  /** True once a start line was read: without it a `done` is a replay. */
  hasStart = false
  /** How the run ended, absent while it goes on. */
  status: DoneStatus | undefined
  /** The last error frame that was not recoverable. */
  fault: ReplyFrame | undefined
  /** Text of the stored assistant message. */
  answer: string | undefined
  /** Number of frames taken. */
  frames = 0

  readonly #sink: TextSink
  #step = ""
  #last = "\n"

  constructor(sink: TextSink) {
    this.#sink = sink
  }

  /** True when nothing more of this run comes. */
  get isEnded(): boolean {
    return this.status !== undefined || (this.fault !== undefined && this.fault.run === undefined)
  }

  /** Takes one frame. */
  async take(frame: ReplyFrame): Promise<void> {
    this.frames++
    if (typeof frame.run === "string") this.run ??= frame.run
    switch (frame.type) {
      case "start":
        this.hasStart = true
        if (typeof frame.seq === "number") this.startSeq = frame.seq
        return
      case "delta":
        return this.#delta(String(frame.text ?? ""))
      case "tool_call":
        this.#step = ""
        return
      case "message":
        return frame.role === "assistant" ? this.#message(textOf(frame.content)) : undefined
      case "error":
        if (frame.recoverable !== true) this.fault = frame
        return
      case "done":
        this.status = showDoneStatus(String(frame.status))
        return this.#endLine()
      default:
        return
    }
  }

  async #delta(text: string): Promise<void> {
    if (this.#step === "") await this.#endLine()
    this.#step += text
    await this.#write(text)
  }

  async #message(text: string): Promise<void> {
    this.answer = text
    if (text.startsWith(this.#step)) {
      if (this.#step === "") await this.#endLine()
      await this.#write(text.slice(this.#step.length))
    } else {
      await this.#endLine()
      await this.#write(text)
    }
    this.#step = ""
    await this.#endLine()
  }

  async #endLine(): Promise<void> {
    if (this.#last !== "\n") await this.#write("\n")
  }

  async #write(text: string): Promise<void> {
    if (text === "") return
    this.#last = text.slice(-1)
    await this.#sink(text)
  }
}

/** The text parts of a message's content, joined; a string is taken as it is. */
export function textOf(content: unknown): string {
  if (typeof content === "string") return content
  if (!Array.isArray(content)) return ""
  return content.map(part => (part?.type === "text" && typeof part.text === "string" ? part.text : "")).join("")
}
