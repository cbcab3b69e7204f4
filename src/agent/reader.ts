import type { Readable } from "node:stream"
import type { CtxError } from "../abi/error.js"

const LF = 0x0a

/**
 * Lines of a pipe, taken one at a time, with a limit on each and back-pressure on the writer. It can be made to fail
 * from outside, which wakes whoever waits. Used by one taker only.
 */
export class LineReader {
  private buffer: Buffer = Buffer.alloc(0)
  private isEnded = false
  private failure: CtxError | undefined
  private wake: (() => void) | undefined
  /** Rejects with what `fail` said; never resolves. */
  readonly failed: Promise<never>
  private reject: (e: CtxError) => void = () => undefined
  /** Called for bytes that come while nobody has asked for a line. */
  onStray: (() => void) | undefined

  /** `maxLine` bytes with LF; a longer line fails with `tooLong`. */
  constructor(
    private readonly stream: Readable,
    private readonly maxLine: number,
    private readonly invalid: (why: string) => CtxError,
  ) {
    this.failed = new Promise((_, reject) => {
      this.reject = reject
    })
    this.failed.catch(() => undefined)
    stream.on("data", (chunk: Buffer) => {
      this.buffer = this.buffer.length === 0 ? chunk : Buffer.concat([this.buffer, chunk])
      if (this.buffer.length > this.maxLine) stream.pause()
      if (this.wake) this.wake()
      else this.onStray?.()
    })
    const end = () => {
      this.isEnded = true
      this.wake?.()
    }
    stream.on("end", end)
    stream.on("close", end)
    stream.on("error", end)
  }

  /** True when bytes are there that nobody has taken. */
  get hasPending(): boolean {
    return this.buffer.length > 0
  }

  /** Makes this and every later `next` throw `e`. */
  fail(e: CtxError): void {
    this.failure ??= e
    this.reject(this.failure)
    this.wake?.()
  }

  /** The next line without its LF; undefined at the end. Errors: EIO (line too long, no LF at the end), what `fail` said. */
  async next(): Promise<Buffer | undefined> {
    for (;;) {
      if (this.failure) throw this.failure
      const at = this.buffer.indexOf(LF)
      if (at >= this.maxLine || (at < 0 && this.buffer.length >= this.maxLine)) {
        throw this.invalid(`a line of more than ${this.maxLine} bytes`)
      }
      if (at >= 0) {
        const line = this.buffer.subarray(0, at)
        this.buffer = this.buffer.subarray(at + 1)
        return line
      }
      if (this.isEnded) {
        if (this.buffer.length > 0) throw this.invalid("a last line without line end")
        return undefined
      }
      this.stream.resume()
      await new Promise<void>(resolve => {
        this.wake = resolve
      })
      this.wake = undefined
    }
  }
}
