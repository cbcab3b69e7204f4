import { once } from "node:events"
import type { Readable, Writable } from "node:stream"
import { setTimeout as sleep } from "node:timers/promises"
import { CtxError } from "../abi/error.js"
import type { ToolCallFrame } from "../abi/frame.js"
import {
  FAILURE_TEXT_MAX,
  KILL_GRACE_MS,
  PROGRAM_FRAME_MAX,
  PROGRAM_OUTPUT_MAX,
  STDERR_MAX,
  STEP_TIMEOUT_MS,
} from "../abi/limit.js"
import { type ProgramFrame, parseProgramFrame } from "./envelope.js"
import { LineReader } from "./reader.js"

/** An output that ends the run. agent-runtime 4 */
export function invalidOutput(why: string): CtxError {
  return new CtxError("EIO", `agent program: ${why}`)
}

/** A sandboxed process that runs the agent's executable. */
export interface StepProcess {
  readonly stdin: Writable
  readonly stdout: Readable
  readonly stderr: Readable
  readonly exited: Promise<{ code: number | null; signal: string | null }>
  /** SIGTERM, `graceMs`, SIGKILL; resolves when no process of it is left. */
  end(graceMs: number): Promise<void>
}

/** How a step ended: by a call, or by the program's exit after it had said something. */
export type StepEnd = { kind: "call"; call: ToolCallFrame } | { kind: "exit" }

/** Waits until a stream has given all it has, at most as long as a kill takes; not at all for one nobody reads on. */
async function settled(stream: Readable): Promise<void> {
  if (stream.readableEnded || stream.destroyed || stream.isPaused()) return
  const stop = new AbortController()
  await Promise.race([
    once(stream, "close", { signal: stop.signal }).catch(() => undefined),
    sleep(KILL_GRACE_MS, undefined, { signal: stop.signal }).catch(() => undefined),
  ])
  stop.abort()
}

interface Worker {
  process: StepProcess
  reader: LineReader
  stderr: Buffer[]
  /** True once the run is over and the program may still say what it likes, for 250 ms. */
  isEnding: boolean
  exit?: { code: number | null; signal: string | null }
}

/**
 * The program of one run: one process for all steps, or a new one for each, as the program likes. stdin stays open
 * between steps; a process never serves two runs. agent-runtime 4
 */
export class Program {
  private worker: Worker | undefined
  private readonly usedIds = new Set<string>()
  private failure: CtxError | undefined
  /** Called when the program prints something between its call and the next envelope. */
  onStray: (() => void) | undefined

  /** `start` makes a sandboxed process for a step number. */
  constructor(
    private readonly run: string,
    private readonly start: (step: number) => Promise<StepProcess>,
    private readonly stepTimeoutMs: number = STEP_TIMEOUT_MS,
  ) {}

  /**
   * Runs one step: gives `line` to the running process or to a new one and hands every frame to `sink`, one at a time.
   * Errors: EIO (invalid output, crash, no output), ETIMEDOUT, those of `start`, what `fail` said.
   */
  async step(step: number, line: Buffer, sink: (frame: ProgramFrame) => Promise<void>): Promise<StepEnd> {
    const timer = setTimeout(() => this.fail(new CtxError("ETIMEDOUT", this.describeTimeout(step))), this.stepTimeoutMs)
    try {
      // A process that stayed but went away without a word gets one successor for the same envelope.
      for (let isRetry = false; ; isRetry = true) {
        const { worker, isFresh } = await this.getWorker(step, isRetry)
        worker.process.stdin.write(line)
        const end = await this.readStep(worker, sink)
        if (end !== undefined) return end
        if (isFresh || isRetry) throw new CtxError("EIO", "agent program: no output")
        await this.close(worker)
      }
    } finally {
      clearTimeout(timer)
    }
  }

  /** Makes the step in progress, and every later one, throw `e`. */
  fail(e: CtxError): void {
    this.failure ??= e
    this.worker?.reader.fail(e)
  }

  /** Closes stdin and ends what has not exited 250 ms later. No process is left when it resolves. */
  async end(): Promise<void> {
    const worker = this.worker
    if (worker === undefined) return
    worker.reader.onStray = undefined
    worker.isEnding = true
    worker.process.stdin.end()
    worker.process.stdout.resume()
    worker.process.stderr.resume()
    await this.close(worker)
  }

  /** Ends the process at once: SIGTERM, 250 ms, SIGKILL. */
  async stop(): Promise<void> {
    await this.worker?.process.end(KILL_GRACE_MS)
  }

  private describeTimeout(step: number): string {
    const text = `step ${step} took more than ${this.stepTimeoutMs / 1000} s`
    return this.worker?.process.stderr.isPaused()
      ? `${text}; nothing is read behind ${STDERR_MAX} bytes of its stderr`
      : text
  }

  private async close(worker: Worker): Promise<void> {
    if (worker.exit === undefined) {
      let timer: NodeJS.Timeout | undefined
      const late = new Promise<void>(resolve => {
        timer = setTimeout(resolve, KILL_GRACE_MS)
      })
      await Promise.race([worker.process.exited, late])
      clearTimeout(timer)
    }
    await worker.process.end(0)
    // A stream that is not read to its end keeps its descriptor.
    worker.process.stderr.destroy()
    if (this.worker === worker) this.worker = undefined
  }

  private async getWorker(step: number, isRetry: boolean): Promise<{ worker: Worker; isFresh: boolean }> {
    if (this.failure) throw this.failure
    const worker = this.worker
    if (worker !== undefined && !isRetry) {
      if (worker.reader.hasPending) throw invalidOutput("output behind its tool_call")
      if (worker.exit === undefined) return { worker, isFresh: false }
      this.checkExit(worker)
      await this.close(worker)
    }
    const fresh = this.watch(await this.start(step))
    this.worker = fresh
    if (this.failure) throw this.failure
    return { worker: fresh, isFresh: true }
  }

  private watch(process: StepProcess): Worker {
    const worker: Worker = {
      process,
      reader: new LineReader(process.stdout, PROGRAM_FRAME_MAX, invalidOutput),
      stderr: [],
      isEnding: false,
    }
    worker.reader.onStray = () => this.onStray?.()
    // A program that does not read its envelope is no fault of ours. agent-runtime 4
    process.stdin.on("error", () => undefined)
    let kept = 0
    process.stderr.on("data", (chunk: Buffer) => {
      const part = chunk.subarray(0, STDERR_MAX - kept)
      kept += part.length
      if (part.length > 0) worker.stderr.push(part)
      // From here on a program that goes on waits in its write: reading only to throw away would cost a core.
      if (kept === STDERR_MAX && !worker.isEnding) process.stderr.pause()
    })
    process.stderr.on("error", () => undefined)
    void process.exited.then(exit => {
      worker.exit = exit
    })
    return worker
  }

  /** Undefined: it exited 0 and no frame of this step came. */
  private async readStep(worker: Worker, sink: (frame: ProgramFrame) => Promise<void>): Promise<StepEnd | undefined> {
    let size = 0
    let frames = 0
    let hasText = false
    for (;;) {
      const line = await worker.reader.next()
      if (line === undefined) {
        // stdout is at its end; the exit may still be to come, and the step's time may run out first.
        worker.exit = await Promise.race([worker.process.exited, worker.reader.failed])
        await settled(worker.process.stderr)
        this.checkExit(worker)
        if (hasText) return { kind: "exit" }
        if (frames > 0) throw new CtxError("EIO", "agent program: no output")
        return undefined
      }
      size += line.length + 1
      if (size > PROGRAM_OUTPUT_MAX) throw invalidOutput(`more than ${PROGRAM_OUTPUT_MAX} bytes in one step`)
      const frame = parseProgramFrame(line, this.run)
      frames++
      if (frame.type === "tool_call") {
        if (this.usedIds.has(frame.id)) throw invalidOutput(`call id ${frame.id} a second time`)
        if (worker.reader.hasPending) throw invalidOutput("output behind its tool_call")
        this.usedIds.add(frame.id)
        return { kind: "call", call: frame }
      }
      if (frame.type === "message" || frame.type === "delta") hasText = true
      await sink(frame)
    }
  }

  private checkExit(worker: Worker): void {
    const exit = worker.exit
    if (exit === undefined || exit.code === 0) return
    const said = Buffer.concat(worker.stderr)
      .toString("utf8")
      .split("\n")
      .map(text => text.trim())
      .find(text => text !== "")
    const how = exit.signal === null ? `exit ${exit.code}` : `signal ${exit.signal}`
    throw new CtxError("EIO", [...(said ?? `agent program: ${how}`)].slice(0, FAILURE_TEXT_MAX).join(""))
  }
}
