import { CtxError } from "../abi/error.js"
import type { ToolCallFrame } from "../abi/frame.js"
import type { ToolResult } from "../session/recorder.js"
import { readAgent } from "../store/agent.js"
import { authoriseTool } from "../tool/authorise.js"
import { runTool } from "../tool/run.js"
import type { Control } from "./control.js"
import type { Observation } from "./envelope.js"
import { describeFailure } from "./frame.js"
import { checkView } from "./host.js"
import { shortenText } from "./observation.js"
import { invalidOutput, type Program } from "./program.js"
import type { RunFacts } from "./run.js"

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

  private async perform(
    call: ToolCallFrame,
    signal: AbortSignal,
  ): Promise<{ status: "ok" | "error"; content: string; truncated: boolean }> {
    try {
      const { host, agent: begun, session, cwd, workspace } = this.facts
      const { source, interpreter, viewDir, protectedDirs } = host
      const agent = readAgent(source, begun.name)
      const { run } = this
      const grant = await authoriseTool({
        agent,
        source,
        name: call.name,
        args: call.arguments,
        interpreter,
        session,
        run,
      })
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
    } catch (e) {
      if (signal.aborted) return { status: "error", content: "", truncated: false }
      const { code, message } = describeFailure(e)
      await this.record({ type: "error", code, message, tool: call.name, recoverable: true })
      return { status: "error", content: `ERROR: ${code}: ${message}`, truncated: false }
    }
  }

  /** Nobody can be asked yet: a call that needs an approval is denied. session-abi 6.9 */
  private async deny(call: ToolCallFrame): Promise<{ status: "error"; content: string; truncated: boolean }> {
    const reason = "approval is ask and nobody can be asked"
    await this.record({ type: "approval_result", id: call.id, name: call.name, decision: "deny", reason })
    return { status: "error", content: `ERROR: EACCES: ${reason}`, truncated: false }
  }
}
