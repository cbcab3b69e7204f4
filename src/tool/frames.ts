import { isErrnoName } from "../abi/errno.js"
import { isObject, type JsonObject, parseFrameObject } from "../abi/json.js"
import { INPUT_DEPTH_MAX, PROGRAM_FRAME_MAX, TOOL_OUTPUT_MAX } from "../abi/limit.js"

/** Why a native exchange is no good: an errno name and a text. */
export interface Fault {
  code: string
  message: string
}

/** How a native tool said that it is done. */
export interface Done {
  status: "ok" | "error"
  error?: Fault
  exit?: number
  signal?: string
}

/**
 * Reads what a native tool prints (tool-policy-abi 3.2) piece by piece. Text beyond what is stored is counted as cut
 * and thrown away; after a fault everything is.
 */
export class FrameReader {
  private pending: Buffer[] = []
  private pendingBytes = 0
  private deltas = new Text()
  private messages = new Text()
  private hasMessage = false
  private hasStart = false
  private error: Fault | undefined
  private frames = 0
  private ending: Done | undefined
  fault: Fault | undefined

  /** `onDelta` gets each live piece of text. */
  constructor(
    private readonly run: string,
    private readonly onDelta: (text: string) => void = () => {},
  ) {}

  /** What the tool has said at its end, if it got there. */
  get done(): Done | undefined {
    return this.ending
  }

  /** Whether any line came. */
  get hasFrames(): boolean {
    return this.frames > 0
  }

  /** The text so far: of all messages, without any of all deltas. */
  get text(): { content: string; isCut: boolean } {
    return (this.hasMessage ? this.messages : this.deltas).read()
  }

  push(chunk: Buffer): void {
    let start = 0
    while (this.fault === undefined) {
      const end = chunk.indexOf(0x0a, start)
      const piece = chunk.subarray(start, end === -1 ? undefined : end)
      this.pendingBytes += piece.length + (end === -1 ? 0 : 1)
      if (this.pendingBytes > PROGRAM_FRAME_MAX) {
        this.fault = { code: "EMSGSIZE", message: `frame of more than ${PROGRAM_FRAME_MAX} bytes` }
        this.pending = []
        return
      }
      this.pending.push(piece)
      if (end === -1) return
      this.readPending()
      start = end + 1
    }
  }

  /** The end of the output: a piece without LF is a frame too. */
  end(): void {
    if (this.fault === undefined && this.pendingBytes > 0) this.readPending()
  }

  private readPending(): void {
    const line = this.pending.length === 1 ? this.pending[0]! : Buffer.concat(this.pending)
    this.pending = []
    this.pendingBytes = 0
    this.frames++
    const flaw = this.readLine(line)
    if (flaw !== undefined) this.fault = { code: "EIO", message: flaw }
  }

  /** Takes one line in; gives what is wrong with it. */
  private readLine(line: Buffer): string | undefined {
    let frame: JsonObject
    try {
      frame = parseFrameObject(line, INPUT_DEPTH_MAX)
    } catch {
      return "output is not JSON lines"
    }
    if (this.ending !== undefined) return "frame after done"
    const { type } = frame
    if (!["start", "delta", "message", "error", "done"].includes(type as string)) return undefined
    if (frame.run !== this.run) return "frame of another run"
    if ((type === "start") === this.hasStart) return type === "start" ? "second start" : "no start"
    if (type === "start") {
      this.hasStart = true
      return undefined
    }
    if (this.error !== undefined && type !== "done") return "error is not directly before done"
    if (type === "delta") return this.readDelta(frame)
    if (type === "message") return this.readMessage(frame)
    return type === "error" ? this.readError(frame) : this.readDone(frame)
  }

  private readDelta(frame: JsonObject): string | undefined {
    if (typeof frame.text !== "string") return "delta without text"
    this.deltas.add(frame.text)
    this.onDelta(frame.text)
    return undefined
  }

  private readMessage(frame: JsonObject): string | undefined {
    if (!Array.isArray(frame.content)) return "message without content"
    this.hasMessage = true
    for (const part of frame.content) {
      if (isObject(part) && part.type === "text" && typeof part.text === "string") this.messages.add(part.text)
    }
    return undefined
  }

  private readError(frame: JsonObject): string | undefined {
    if (!isErrnoName(frame.code)) return "error without an errno name"
    this.error = { code: frame.code, message: typeof frame.message === "string" ? frame.message : "no reason" }
    return undefined
  }

  private readDone(frame: JsonObject): string | undefined {
    if (frame.status !== "ok" && frame.status !== "error") return "done with an unknown status"
    this.ending = { status: frame.status }
    if (this.error !== undefined) this.ending.error = this.error
    if (Number.isInteger(frame.exit)) this.ending.exit = frame.exit as number
    if (typeof frame.signal === "string" && /^SIG[A-Z0-9]{1,16}$/.test(frame.signal)) this.ending.signal = frame.signal
    return undefined
  }
}

/** Text that keeps no more than a result may store and knows whether more came. */
export class Text {
  private parts: string[] = []
  private sizeBytes = 0

  add(part: string): void {
    if (part === "") return
    // One part beyond the bound is kept, so that the cut can be seen.
    if (this.sizeBytes <= TOOL_OUTPUT_MAX) this.parts.push(part)
    this.sizeBytes += Buffer.byteLength(part)
  }

  read(): { content: string; isCut: boolean } {
    return cutText(this.parts.join(""))
  }
}

/** The first 1 MiB of a text, cut at a character (tool-policy-abi 3.3). */
export function cutText(text: string): { content: string; isCut: boolean } {
  if (Buffer.byteLength(text) <= TOOL_OUTPUT_MAX) return { content: text, isCut: false }
  const bytes = Buffer.from(text)
  let end = TOOL_OUTPUT_MAX
  while ((bytes[end]! & 0xc0) === 0x80) end--
  return { content: bytes.toString("utf8", 0, end), isCut: true }
}
