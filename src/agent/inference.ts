import { CtxError } from "../abi/error.js"
import { formatRow } from "../abi/json.js"
import { MODEL_TIMEOUT_MS } from "../abi/limit.js"
import { getDriver, type Message, type ModelEvent, type UsageEvent } from "../model/driver.js"
import { policyAllowsModel } from "../policy/decision.js"
import { tighten } from "../policy/interpreter.js"
import { checkPolicy } from "../policy/policy.js"
import { type Agent, readAgent } from "../store/agent.js"
import { resolveModel } from "../store/catalogue.js"
import type { ControlModel } from "./ask.js"
import type { Channel } from "./channel.js"
import type { ServeModel } from "./control.js"
import { explainDenial } from "./denial.js"
import { describeFailure, formatFrame } from "./frame.js"
import type { Host } from "./host.js"
import type { LoggedCall } from "./log.js"
import { listOffers } from "./offer.js"
import type { Window } from "./window.js"

/** What an inference needs of its run. */
export interface InferenceFacts {
  host: Host
  /** The controls the run began with; its model stays for the run. */
  agent: Agent
  session: string
  run: string
  system: string
  window: Window
  /** Stores and sends one usage row. */
  recordUsage: (usage: UsageEvent) => Promise<void>
}

/**
 * Whether the agent's policy of this moment lets it use its model; gives the MODEL. Errors: ENOENT (no such model),
 * EACCES. agent-runtime 5, agent-tool-security 5.1 #5
 */
export async function authoriseModel(host: Host, agent: Agent, session: string, run: string): Promise<string> {
  const model = resolveModel(host.source, agent.owner, agent.model)
  const policy = agent.policy && checkPolicy(agent.policy).policy
  const { name, subject, uid } = agent
  const request = { subject, class: "model" as const, object: model, permission: "use", agent: name, uid, session, run }
  const own = policyAllowsModel(policy, subject, agent.model, model)
  const decision = await tighten(own, host.interpreter, request)
  if (!decision.allow) throw explainDenial(host, agent, `allow ${subject} model:${agent.model} use`, own)
  return model
}

/**
 * The model calls of one run, asked for on its control socket: one at a time, each authorised anew, the system message
 * before the program's messages, one usage row each. agent-runtime 5
 */
export class Inference {
  /** True when the step in progress made a call. */
  hasCalled = false
  /** How the last call of the step in progress failed, when it did. */
  failure: CtxError | undefined
  private isBusy = false

  constructor(private readonly facts: InferenceFacts) {}

  /** Forgets what belongs to the step before. */
  beginStep(): void {
    this.hasCalled = false
    this.failure = undefined
  }

  /** Answers op `model` with frames and one `end`. Errors: EBUSY, EACCES for a tool outside the native set. */
  readonly serve: ServeModel = async (request, channel, signal) => {
    if (this.isBusy) throw new CtxError("EBUSY", "a model call of this run is under way")
    const { host, agent } = this.facts
    const now = readAgent(host.source, agent.name)
    for (const name of request.tools) {
      if (name !== "tsh" && !now.tools.includes(name)) {
        throw new CtxError("EACCES", `tool ${name} is not in the native set of agent ${agent.name}`)
      }
    }
    this.isBusy = true
    this.hasCalled = true
    this.failure = undefined
    const late = AbortSignal.timeout(MODEL_TIMEOUT_MS)
    const startedMs = performance.now()
    try {
      await this.call(now, request, channel, AbortSignal.any([signal, late]))
      this.log(startedMs, { status: "ok" })
      await channel.send(formatFrame({ type: "end", request_id: request.request_id, status: "ok" }))
    } catch (e) {
      const failure = late.aborted
        ? new CtxError("ETIMEDOUT", `model call took more than ${MODEL_TIMEOUT_MS / 1000} s`)
        : e
      const { code, message } = describeFailure(failure)
      this.log(startedMs, { status: "error", code: signal.aborted ? "ECANCELED" : code })
      // A caller that is gone has not been told: what it died of is the failure of the step, not this.
      if (!signal.aborted) this.failure = new CtxError(code, message, { cause: e })
      await channel.send(formatFrame({ type: "end", request_id: request.request_id, status: "error", code, message }))
    } finally {
      this.isBusy = false
    }
  }

  /** Leaves the line of a call in the log of models; one whose model does not exist belongs to none. model-abi 2 */
  private log(startedMs: number, end: Pick<LoggedCall, "status" | "code">): void {
    const { host, agent, session, run } = this.facts
    let model: string
    try {
      model = resolveModel(host.source, agent.owner, agent.model)
    } catch {
      return
    }
    host.logs.appendModel(model, { session, run, ...end }, Math.round(performance.now() - startedMs))
  }

  private async call(agent: Agent, request: ControlModel, channel: Channel, signal: AbortSignal): Promise<void> {
    const { facts } = this
    // The model is that of the run's start, the policy that of now.
    const begun = { ...agent, model: facts.agent.model }
    const model = await authoriseModel(facts.host, begun, facts.session, facts.run)
    const messages: Message[] = [{ role: "system", content: facts.system }, ...request.messages]
    const { budget } = facts.window
    if (budget !== undefined && Buffer.byteLength(formatRow(messages)) > budget) {
      throw new CtxError("EMSGSIZE", `messages are longer than the ${budget} bytes of the window`)
    }
    const tools = listOffers(facts.host.source, begun, request.tools)
    const driver = await getDriver(facts.host.source, model)
    const { effort, max_output_tokens: maxOutputTokens } = request
    let failure: CtxError | undefined
    for await (const event of driver.call({ model, messages, tools, effort, maxOutputTokens, signal })) {
      if (signal.aborted) break
      if (event.type === "error" && event.recoverable !== true) {
        failure = new CtxError(event.code, event.message)
      } else if (event.type === "done") {
        if (event.status !== "ok") failure ??= new CtxError("EIO", "model call ended without an answer")
        break
      }
      await this.relay(event, request.request_id, channel)
    }
    if (signal.aborted) throw new CtxError("ECANCELED", "model call was given up")
    if (failure) throw failure
  }

  private async relay(event: ModelEvent, requestId: string, channel: Channel): Promise<void> {
    if (event.type === "start" || event.type === "error" || event.type === "done") return
    if (event.type === "usage") await this.facts.recordUsage(event)
    const { type, ...fields } = event
    await channel.send(formatFrame({ type, request_id: requestId, ...fields }))
  }
}
