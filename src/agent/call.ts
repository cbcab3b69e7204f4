import { CtxError } from "../abi/error.js"
import type { ToolCallFrame } from "../abi/frame.js"
import type { ToolResult } from "../session/recorder.js"
import { readAgent } from "../store/agent.js"
import type { ToolPlace } from "../store/tool.js"
import { authoriseTool } from "../tool/authorise.js"
import { runTool } from "../tool/run.js"
import type { Control } from "./control.js"
import type { Observation } from "./envelope.js"
import { describeFailure } from "./frame.js"
import { checkView } from "./host.js"
import type { LoggedCall } from "./log.js"
import { shortenText } from "./observation.js"
import { invalidOutput, type Program } from "./program.js"
import type { RunFacts } from "./run.js"

/** What a call came to; `code` of one that was refused. */
interface Performed {
  status: "ok" | "error"
  content: string
  truncated: boolean
  code?: string
}

/**
 * Carries out the calls of one run: recorded first, authorised anew from the files, run in a sandbox, recorded again.
 * agent-runtime 6, agent-tool-security 5.2
 */
export class Caller {
  /** `record` stores and sends an event, `recordResult` a tool row with its event. */
  constructor(
    private readonly facts: RunFacts,
    private readonly run: string,
    private readonly control: Control,
    private readonly over: AbortSignal,
    private readonly record: (fields: { type: string; [key: string]: unknown }) => Promise<void>,
    private readonly recordResult: (result: ToolResult) => Promise<void>,
  ) {}

  /**
   * One call. A refusal and a failing tool are results, not errors. Errors: EIO when the program prints something
   * meanwhile; ECANCELED when the run ends meanwhile; then no result is stored.
   */
  async call(call: ToolCallFrame, program: Program): Promise<Observation> {
    const stray = new AbortController()
    program.onStray = () => stray.abort()
    const signal = AbortSignal.any([this.over, stray.signal])
    try {
      await this.record({ type: "tool_call", id: call.id, name: call.name, arguments: call.arguments })
      const result = await this.perform(call, signal)
      if (this.over.aborted) throw new CtxError("ECANCELED", "the run was stopped")
      if (stray.signal.aborted) throw invalidOutput("output behind its tool_call")
      const { text, isShortened } = shortenText(result.content)
      const truncated = result.truncated || isShortened
      await this.recordResult({
        name: call.name,
        callId: call.id,
        content: result.content,
        status: result.status,
        ...(truncated ? { truncated } : {}),
      })
      return { tool_call_id: call.id, name: call.name, status: result.status, content: text, truncated }
    } finally {
      program.onStray = undefined
    }
  }

  /** Carries the call out and leaves its line in the log of the tool, if one was found. agent-tool-security 14 */
  private async perform(call: ToolCallFrame, signal: AbortSignal): Promise<Performed> {
    const { session, host } = this.facts
    let log: ((end: Pick<LoggedCall, "status" | "code">) => void) | undefined
    const onFound = (place: ToolPlace, isSystem: boolean) => {
      const write = host.logs.openTool(place, call.name, isSystem)
      log = end => write({ session, run: this.run, ...end })
    }
    try {
      const result = await this.runAuthorised(call, onFound, signal)
      log?.({ status: result.status, code: result.code })
      return result
    } catch (e) {
      const { code, message } = describeFailure(e)
      log?.({ status: "error", code: signal.aborted ? "ECANCELED" : code })
      if (signal.aborted) return { status: "error", content: "", truncated: false }
      await this.record({ type: "error", code, message, tool: call.name, recoverable: true })
      return { status: "error", content: `ERROR: ${code}: ${message}`, truncated: false }
    }
  }

  private async runAuthorised(
    call: ToolCallFrame,
    onFound: (place: ToolPlace, isSystem: boolean) => void,
    signal: AbortSignal,
  ): Promise<Performed> {
    const { host, agent: begun, session, cwd, workspace } = this.facts
    const { source, interpreter, viewDir, protectedDirs } = host
    const agent = readAgent(source, begun.name)
    const { run } = this
    const { name, arguments: args } = call
    const grant = await authoriseTool({ agent, source, name, args, interpreter, session, run, onFound })
    if (agent.approval === "ask") {
      grant.close()
      return await this.deny(call)
    }
    let held = 0
    try {
      await checkView(host)
      return await runTool(grant, {
        session,
        run,
        cwd,
        viewDir,
        workspaceDir: workspace,
        protectedDirs,
        controlSocket: this.control.path,
        signal,
        onHeld: (pid, startTime) => {
          held = pid
          this.control.register("tool", pid, startTime)
        },
      })
    } finally {
      grant.close()
      this.control.unregister(held)
    }
  }

  /** Nobody can be asked yet: a call that needs an approval is denied. session-abi 6.9 */
  private async deny(call: ToolCallFrame): Promise<Performed> {
    const reason = "approval is ask and nobody can be asked"
    await this.record({ type: "approval_result", id: call.id, name: call.name, decision: "deny", reason })
    return { status: "error", content: `ERROR: EACCES: ${reason}`, truncated: false, code: "EACCES" }
  }
}
