import type { Readable } from "node:stream"
import { CtxError } from "../abi/error.js"
import { formatRow } from "../abi/json.js"
import { FAILURE_TEXT_MAX, KILL_GRACE_MS, STDERR_MAX, TOOL_OUTPUT_MAX } from "../abi/limit.js"
import type { ToolGrant } from "./authorise.js"
import type { Exit } from "./box.js"
import { payloadEnv } from "./env.js"
import { cutText, type Fault, FrameReader } from "./frames.js"
import type { Place } from "./layout.js"
import { launch, type Sandboxed } from "./sandbox.js"

/** The run a tool is called in. */
export interface ToolRun extends Omit<Place, "agent"> {
  session: string
  run: string
  /** Working directory inside. */
  cwd: string
  /** Host path of the run's control socket. */
  controlSocket?: string
  /** Cancels the call. */
  signal?: AbortSignal
  /** Called with bubblewrap's pid and start time before the tool begins. */
  onHeld?: (pid: number, startTime: string) => void
  /** Live text of a native tool. */
  onDelta?: (text: string) => void
}

/** What a call came to (tool-policy-abi 3.3); `truncated` says that output beyond 1 MiB was thrown away. */
export interface ToolOutcome {
  status: "ok" | "error"
  content: string
  truncated: boolean
}

/**
 * Runs an authorised call in a sandbox of its own and gives its result; the grant is closed. When it resolves no
 * process of the call is left. A tool that fails, is killed or takes longer than its `timeout` is a result.
 * Errors: those of `launch` when the tool did not run; ECANCELED when `signal` fires, then there is no result.
 */
export async function runTool(grant: ToolGrant, run: ToolRun): Promise<ToolOutcome> {
  const { tool, agent, call } = grant
  let box: Sandboxed
  try {
    const env = payloadEnv(agent, run.session, run.run, { kind: "tool", tool: tool.name, mode: call.mode })
    const args = call.mode === "native" ? [] : call.args
    box = await launch({
      ...run,
      agent,
      payloadFd: grant.fd,
      args,
      env,
      isJoined: call.mode !== "native",
    })
  } finally {
    grant.close()
  }
  let isLate = false
  const clock = setTimeout(() => {
    isLate = true
    void box.end(KILL_GRACE_MS)
  }, tool.timeoutS * 1000)
  try {
    box.stdin.end(call.mode === "native" ? `${formatRow(call.input)}\n` : call.stdin)
    const read = call.mode === "native" ? readNative : readPlain
    const finish = read(box, run)
    const exit = await box.exited
    const outcome = await finish(exit, () => isLate)
    if (run.signal?.aborted) throw new CtxError("ECANCELED", "the call was cancelled")
    return outcome
  } finally {
    clearTimeout(clock)
    await box.end(0)
    for (const stream of [box.stdin, box.stdout, box.stderr]) stream.destroy()
  }
}

type Finish = (exit: Exit, isLate: () => boolean) => Promise<ToolOutcome>

/** Resolves at the end of a stream; no writer is left when its sandbox has ended, so the end comes by itself. */
function drained(stream: Readable): Promise<void> {
  return new Promise(resolve => {
    if (stream.readableEnded || stream.destroyed) return resolve()
    stream
      .once("end", resolve)
      .once("close", resolve)
      .on("error", () => resolve())
  })
}

/** The bytes of a stream up to `max`; the rest is read and thrown away. */
function collect(stream: Readable, max: number): { bytes(): Buffer; over: Promise<void>; isCut(): boolean } {
  const kept: Buffer[] = []
  let size = 0
  let isCut = false
  stream.on("data", (chunk: Buffer) => {
    const part = chunk.subarray(0, max - size)
    if (part.length < chunk.length) isCut = true
    if (part.length === 0) return
    size += part.length
    kept.push(part)
  })
  return { bytes: () => Buffer.concat(kept), over: drained(stream), isCut: () => isCut }
}

function failed(first: string, text: string, isCut: boolean): ToolOutcome {
  const { content, isCut: isCutNow } = cutText(text === "" ? first : `${first}\n${text}`)
  return { status: "error", content, truncated: isCut || isCutNow }
}

function reason(fault: Fault): string {
  return `ERROR: ${fault.code}: ${fault.message.replace(/\s*\n\s*/g, " ") || "no reason"}`
}

function readPlain(box: Sandboxed): Finish {
  // A few bytes more than are stored, so that a cut inside a character is one of ours.
  const out = collect(box.stdout, TOOL_OUTPUT_MAX + 4)
  return async (exit, isLate) => {
    await out.over
    const { content, isCut } = cutText(out.bytes().toString("utf8"))
    const truncated = isCut || out.isCut()
    if (isLate()) return failed("ERROR: ETIMEDOUT", content, truncated)
    if (exit.signal !== null) return failed(`ERROR: signal ${exit.signal}`, content, truncated)
    if (exit.code !== 0) return failed(`ERROR: exit ${exit.code}`, content, truncated)
    return { status: "ok", content, truncated }
  }
}

function firstLine(stderr: Buffer): string {
  const line =
    stderr
      .toString("utf8")
      .split("\n")
      .find(one => one.trim() !== "") ?? "no reason"
  return [...line.trim()].slice(0, FAILURE_TEXT_MAX).join("")
}

/** Codes for a native tool that ends without a frame. */
const EXIT_CODES: Readonly<Record<number, string>> = { 2: "EINVAL", 13: "EACCES", 69: "EHOSTDOWN" }

function readNative(box: Sandboxed, run: ToolRun): Finish {
  const frames = new FrameReader(run.run, run.onDelta)
  box.stdout.on("data", chunk => frames.push(chunk))
  const over = drained(box.stdout)
  const stderr = collect(box.stderr, STDERR_MAX)
  return async (exit, isLate) => {
    await Promise.all([over, stderr.over])
    // A frame that a kill cut in two is not the tool's fault.
    if (!isLate()) frames.end()
    const { content, isCut } = frames.text
    if (isLate()) return failed("ERROR: ETIMEDOUT", content, isCut)
    if (frames.fault !== undefined) return failed(reason(frames.fault), "", false)
    if (!frames.hasFrames) {
      const code = (exit.code !== null && EXIT_CODES[exit.code]) || "EIO"
      return failed(reason({ code, message: firstLine(stderr.bytes()) }), "", false)
    }
    const { done } = frames
    if (done === undefined) return failed(reason({ code: "EIO", message: "output ends without done" }), "", false)
    if (done.status === "ok") return { status: "ok", content, truncated: isCut }
    if (done.error !== undefined) return failed(reason(done.error), content, isCut)
    if (done.exit !== undefined) return failed(`ERROR: exit ${done.exit}`, content, isCut)
    if (done.signal !== undefined) return failed(`ERROR: signal ${done.signal}`, content, isCut)
    return failed("ERROR: EIO: no reason", content, isCut)
  }
}
