import { CtxError } from "../abi/error.js"
import type { JsonObject } from "../abi/json.js"
import { ROW_MAX } from "../abi/limit.js"
import { formatTs } from "../abi/time.js"
import { eventFields, formatEvent, settleEvents, startFields, toolParts } from "./format.js"
import type { EventFields, Recorder, RunStart, Settlement, ToolResult } from "./recorder.js"

/** Begins a run of scope `temp`: the same frames with `ts` but without `seq`, kept nowhere (session-abi 5, 6.1). Errors: `EINVAL`. */
export function beginTemp(start: RunStart): Recorder {
  return new TempRecorder(start)
}

class TempRecorder implements Recorder {
  readonly run: string
  readonly startLine: string
  #isSettled = false

  constructor(start: RunStart) {
    this.run = start.run
    this.startLine = this.#format(startFields(start))
  }

  get isSettled(): boolean {
    return this.#isSettled
  }

  async event(fields: EventFields): Promise<string> {
    return this.#format(eventFields(this.run, fields))
  }

  async toolResult(result: ToolResult): Promise<string> {
    const { name } = result
    return this.#format({ type: "message", run: this.run, role: "tool", name, content: toolParts(result) })
  }

  async settle(settlement: Settlement): Promise<string[]> {
    const lines = settleEvents(this.run, settlement).map(fields => this.#format(fields))
    this.#isSettled = true
    return lines
  }

  abandon(): void {
    this.#isSettled = true
  }

  #format(fields: JsonObject): string {
    if (this.#isSettled) throw new CtxError("EALREADY", `run ${this.run} is settled`)
    const { line } = formatEvent(undefined, formatTs(), fields)
    if (Buffer.byteLength(line) > ROW_MAX) throw new CtxError("EMSGSIZE", `frame is longer than ${ROW_MAX} bytes`)
    return line
  }
}
