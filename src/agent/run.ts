import { CtxError } from "../abi/error.js"
import type { Part } from "../abi/frame.js"
import type { Phase } from "../abi/status.js"
import type { UsageEvent } from "../model/driver.js"
import type { Recorder, Settlement } from "../session/recorder.js"
import type { Agent } from "../store/agent.js"
import { Caller } from "./call.js"
import type { Channel } from "./channel.js"
import type { Control, OpenControl } from "./control.js"
import { formatEnvelope, type Observation, type ProgramFrame, type ProgramUsageFrame } from "./envelope.js"
import { describeFailure, formatFrame } from "./frame.js"
import { checkView, type Host } from "./host.js"
import { Inference } from "./inference.js"
import { Program } from "./program.js"
import { startStep } from "./step.js"
import type { Window } from "./window.js"

/** Everything that is fixed when a run begins. */
export interface RunFacts {
  agent: Agent
  host: Host
  session: string
  input: string
  /** Effective cwd inside the sandbox. */
  cwd: string
  /** Host directory at /workspace, when the request names one. */
  workspace?: string
  /** Highest number of calls, K of agent-runtime 4. */
  steps: number
  window: Window
  /** System message, byte-equal in every model call of the run. */
  system: string
  /** `history_messages` of the envelopes. */
  history: string
  /** A run of scope temp: it ends when its client goes. */
  isTemp: boolean
}

/** Why a run is stopped: by a person, or because its runtime ends. session-abi 6.5, agent-runtime 2 */
export type StopReason = "cancelled" | "interrupted"

/**
 * One run from its recorded start to its recorded end: steps, calls, settlement. It owns every process of the run;
 * none is left when `done` resolves. session-abi 6.3 steps 10-13
 */
export class Run {
  readonly id: string
  readonly done: Promise<string>
  phase: Phase = "model"
  step = 0
  tool: string | undefined
  private resolveDone: (line: string) => void = () => undefined
  private readonly over = new AbortController()
  private readonly stopped = new Promise<void>(resolve => {
    this.over.signal.addEventListener("abort", () => resolve(), { once: true })
  })
  private stopReason: StopReason | undefined
  private program: Program | undefined
  private deltas = ""
  private parts: Part[] | undefined
  private usages: ProgramUsageFrame[] = []

  constructor(
    readonly facts: RunFacts,
    private readonly recorder: Recorder,
    private readonly channel: Channel,
    private readonly openControl: OpenControl,
  ) {
    this.id = recorder.run
    this.done = new Promise(resolve => {
      this.resolveDone = resolve
    })
  }

  /** Runs to the end and sends everything; never rejects. `done` resolves with the `done` line when it is stored. */
  async perform(): Promise<void> {
    const forget = this.facts.isTemp ? this.channel.onGone(() => this.stop("cancelled")) : () => undefined
    let settlement: Settlement
    let control: Control | undefined
    try {
      await this.tell(this.recorder.startLine)
      const inference = this.newInference()
      control = await this.openControl(
        { agent: this.facts.agent.name, session: this.facts.session, run: this.id, uid: this.facts.agent.uid },
        inference.serve,
      )
      await this.loop(inference, control)
      settlement = { status: "ok", parts: this.text() }
    } catch (e) {
      settlement = this.judge(e)
    }
    this.phase = "stopping"
    this.over.abort()
    forget()
    await this.program?.end()
    await control?.close()
    await this.settle(settlement)
  }

  /** Stops new work and kills what runs; the run then settles by itself. A run that settles already is not changed. */
  stop(reason: StopReason): void {
    if (this.stopReason !== undefined || this.over.signal.aborted) return
    this.stopReason = reason
    this.phase = "stopping"
    this.over.abort()
    this.program?.fail(new CtxError("ECANCELED", "the run was stopped"))
    void this.program?.stop()
  }

  private newInference(): Inference {
    const { host, agent, session, system, window } = this.facts
    return new Inference({
      host,
      agent,
      session,
      run: this.id,
      system,
      window,
      recordUsage: usage => this.recordUsage(usage),
    })
  }

  private async loop(inference: Inference, control: Control): Promise<void> {
    const { facts } = this
    const fault = facts.agent.toolsFault
    if (fault) await this.record({ type: "error", code: fault.code, message: fault.message, recoverable: true })
    const caller = new Caller(
      facts,
      this.id,
      control,
      this.over.signal,
      fields => this.record(fields),
      r => this.recordResult(r),
    )
    const program = new Program(this.id, step => startStep(facts, this.id, step, control, this.over.signal))
    this.program = program
    let observation: Observation | null = null
    for (this.step = 0; ; this.step++) {
      this.phase = "model"
      this.deltas = ""
      this.parts = undefined
      this.usages = []
      inference.beginStep()
      const line = formatEnvelope({
        run: this.id,
        step: this.step,
        input: facts.input,
        history_messages: facts.history,
        tool_context: "",
        observation,
      })
      this.checkStopped()
      // A warm program would go on over a dead view; a new one is checked again when it is started.
      await checkView(facts.host)
      const end = await program
        .step(this.step, line, frame => this.relay(frame))
        .catch(e => {
          throw inference.failure ?? e
        })
      this.checkStopped()
      if (inference.failure)
        await this.record({ type: "error", ...describeFailure(inference.failure), recoverable: true })
      if (!inference.hasCalled) for (const usage of this.usages) await this.recordUsage(usage)
      if (end.kind === "exit") return
      if (this.step >= facts.steps) throw new CtxError("ELOOP", "tool loop limit")
      this.phase = "tool"
      this.tool = end.call.name
      observation = await caller.call(end.call, program)
      this.tool = undefined
      this.checkStopped()
    }
  }

  private checkStopped(): void {
    if (this.stopReason !== undefined) throw new CtxError("ECANCELED", "the run was stopped")
  }

  private async relay(frame: ProgramFrame): Promise<void> {
    if (this.stopReason !== undefined) return
    switch (frame.type) {
      case "delta":
        this.deltas += frame.text
        await this.tell(formatFrame({ type: "delta", run: this.id, text: frame.text }))
        return
      case "reasoning_delta":
        await this.tell(formatFrame({ type: "reasoning_delta", run: this.id, text: frame.text }))
        return
      case "reasoning_message":
        await this.tell(formatFrame({ type: "reasoning_message", run: this.id, content: frame.content }))
        return
      case "message":
        this.parts = frame.content
        return
      case "usage":
        this.usages.push(frame)
        return
      case "error":
        await this.record({ type: "error", code: frame.code, message: frame.message, recoverable: true })
    }
  }

  /** Sends a line and lets a slow peer hold the run up, but never its end. */
  private async tell(line: string): Promise<void> {
    const sent = this.channel.send(line)
    if (!this.over.signal.aborted) await Promise.race([sent, this.stopped])
  }

  private async record(fields: { type: string; [key: string]: unknown }): Promise<void> {
    await this.tell(await this.recorder.event(fields))
  }

  /** One `usage` row in the key order of session-abi 6.1; the model is the control's value unless another answered. */
  private recordUsage(usage: Omit<UsageEvent, "type">): Promise<void> {
    return this.record({
      type: "usage",
      model: usage.model ?? this.facts.agent.model,
      step: this.step,
      input_tokens: usage.input_tokens,
      output_tokens: usage.output_tokens,
      cached_tokens: usage.cached_tokens,
      cache_write_tokens: usage.cache_write_tokens,
      elapsed_ms: usage.elapsed_ms,
      tool_calls: usage.tool_calls,
    })
  }

  private async recordResult(result: Parameters<Recorder["toolResult"]>[0]): Promise<void> {
    await this.tell(await this.recorder.toolResult(result))
  }

  private text(): Part[] {
    if (this.parts !== undefined) return this.parts
    return this.deltas === "" ? [] : [{ type: "text", text: this.deltas }]
  }

  private judge(e: unknown): Settlement {
    if (this.stopReason === "cancelled") return { status: "cancelled" }
    if (this.stopReason === "interrupted") {
      return { status: "error", error: { code: "EINTR", message: "the runtime was stopped" } }
    }
    return { status: "error", parts: this.text(), error: describeFailure(e) }
  }

  /** Stores and sends the end. A store that refuses is tried once more with its own error. */
  private async settle(settlement: Settlement): Promise<void> {
    let lines: string[]
    try {
      lines = await this.recorder.settle(settlement)
    } catch (e) {
      const error = describeFailure(e)
      lines = await this.recorder.settle({ status: "error", error }).catch(() => [
        // Nothing can be stored any more: the client learns it, the next start of the runtime settles the run.
        formatFrame({ type: "error", run: this.id, ...error }),
      ])
    }
    this.resolveDone(lines.at(-1)!)
    for (const line of lines) await this.tell(line)
  }
}
