import { setTimeout as sleep } from "node:timers/promises"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import type { SendRequest } from "../abi/frame.js"
import { RUN_LOCK_RETRY_MS } from "../abi/limit.js"
import { formatTs } from "../abi/time.js"
import { getrandom } from "../native/sys.js"
import type { Payload } from "../session/claim.js"
import type { RunStart } from "../session/recorder.js"
import type { Session } from "../session/session.js"
import { beginTemp } from "../session/temp.js"
import type { Channel } from "./channel.js"
import type { OpenControl } from "./control.js"
import { readHistory } from "./history.js"
import type { Host } from "./host.js"
import { type Places, sessionKey } from "./places.js"
import { type Plan, planRun, readServedAgent } from "./plan.js"
import { BUILT_IN_TEMPLATE, RUNTIME_CONTRACT, renderPrompt } from "./prompt.js"
import type { Queue, Turn } from "./queue.js"
import { Run } from "./run.js"

const LOCK_RETRY_MS = 50

/** What a send needs of its runtime. */
export interface SendFacts {
  host: Host
  places: Places
  queue: Queue
  openControl: OpenControl
  /** Told of each run that begins; the function it returns is called when the run is over. */
  onRun: (run: Run, key: string) => () => void
  /** True when the runtime ends and nothing new may begin. */
  isStopping: () => boolean
  /** One line for the journal. */
  log: (line: string) => void
}

/** A fault of a system call below a session, told by what was to be done and not by the call; others as they are. */
function explainFault(what: string, e: unknown): unknown {
  const { code, syscall, path } = toCtxError(e)
  if (syscall === undefined || code === "EEXIST" || code === "ENOENT") return e
  return new CtxError(code, `${what}: ${code}`, { path, cause: e })
}

/** A new run id: 16 random bytes. session-abi 4 */
export function mintRun(): string {
  return `ctx-${getrandom(16).toString("hex")}`
}

/**
 * Op `send`: replay, checks, turn, recording, run, in the order of session-abi 6.3. Requests for one session are
 * prepared one after another, so that those that wait do so in the order in which they came.
 */
export class Sender {
  private readonly preparing = new Map<string, Promise<unknown>>()
  private temps = 0

  constructor(private readonly facts: SendFacts) {}

  /** Serves one request to its end. Errors: request-level ones; nothing is recorded then. */
  async send(request: SendRequest, channel: Channel): Promise<void> {
    const isTemp = request.scope === "temp"
    const key = isTemp ? `temp ${++this.temps}` : sessionKey(request)
    const prepared = await this.inOrder(key, () => this.prepare(request, channel, key))
    if (prepared === undefined) return
    const turn = await prepared.turn
    try {
      if (this.facts.isStopping()) throw new CtxError("EHOSTDOWN", "the runtime stops; send again later")
      // After a wait the session, the claims and the controls may be others.
      const plan = prepared.hasWaited ? await this.check(request, channel) : prepared.plan
      if (plan === undefined) return
      if (isTemp) await this.runTemp(request, plan, channel, key)
      else await this.runRecorded(request, plan, channel, key)
    } finally {
      turn.leave()
    }
  }

  private async inOrder<T>(key: string, fn: () => Promise<T>): Promise<T> {
    const before = this.preparing.get(key)
    const mine = (async () => {
      await before?.catch(() => undefined)
      return await fn()
    })()
    this.preparing.set(key, mine)
    try {
      return await mine
    } finally {
      if (this.preparing.get(key) === mine) this.preparing.delete(key)
    }
  }

  private async prepare(
    request: SendRequest,
    channel: Channel,
    key: string,
  ): Promise<{ plan: Plan; turn: Promise<Turn>; hasWaited: boolean } | undefined> {
    const plan = await this.check(request, channel)
    if (plan === undefined) return undefined
    const { queue } = this.facts
    const hasWaited = queue.mustWait(key)
    return { plan, turn: queue.enter(key, request.wait, leave => channel.onGone(leave)), hasWaited }
  }

  /** Steps 1 to 4; undefined when the request was answered from history. */
  private async check(request: SendRequest, channel: Channel): Promise<Plan | undefined> {
    const { host, places } = this.facts
    const agent = readServedAgent(host)
    const cwd = request.cwd ?? agent.cwd
    if (request.scope !== "private" && (await places.get().hasClaim(request.session, request.id))) {
      throw new CtxError("EINVAL", `id ${request.id} was used in the private session ${request.session}`)
    }
    if (request.scope !== "temp") {
      const session = await places.open(request).catch(e => {
        throw explainFault(`session ${request.session} cannot be opened`, e)
      })
      if (session && (await this.replay(session, request, cwd, channel))) return undefined
    }
    const plan = await planRun(host, agent, request, cwd)
    if (request.scope !== "temp") {
      const { hash, uuid } = request
      places.get(request.shared).checkIndex(request.session, { cwd, hash, uuid })
    }
    return plan
  }

  private async replay(session: Session, request: SendRequest, cwd: string, channel: Channel): Promise<boolean> {
    const payload: Payload = { op: "send", input: request.input, scope: request.scope, cwd }
    const line = await session.replay(request.id, payload)
    if (line !== undefined) await channel.send(line)
    return line !== undefined
  }

  private async runTemp(request: SendRequest, plan: Plan, channel: Channel, key: string): Promise<void> {
    const start = this.describe(request, plan)
    await this.perform(request, plan, beginTemp(start), undefined, channel, key)
  }

  private async runRecorded(request: SendRequest, plan: Plan, channel: Channel, key: string): Promise<void> {
    const session = await this.lock(request, plan)
    try {
      if (await this.replay(session, request, plan.cwd, channel)) return
      const history = await readHistory(session, plan.window.history)
      const recorder = await session.begin(this.describe(request, plan))
      await this.perform(request, plan, recorder, history, channel, key)
    } finally {
      session.unlockRun()
    }
  }

  /** Steps 5 and 6: the session with its run lock held, made when it is not there. Errors: EBUSY, EIO. */
  private async lock(request: SendRequest, plan: Plan): Promise<Session> {
    const { places, log } = this.facts
    const sessions = places.get(request.shared)
    const deadline = Date.now() + RUN_LOCK_RETRY_MS
    for (;;) {
      try {
        const session = sessions.find(request.session)
        if (session === undefined) {
          const { title } = request
          const facts = { cwd: plan.cwd, model: plan.agent.model, title }
          const made = await sessions.create(request.session, facts).catch(e => {
            throw explainFault(`session ${request.session} cannot be made`, e)
          })
          places.keep(made)
          log(`session ${request.session} created`)
          await made.open()
          return made
        }
        if (session.tryLockRun()) {
          await session.open().catch(e => {
            session.unlockRun()
            throw e
          })
          return session
        }
      } catch (e) {
        // Somebody else made it, or took it away, between the look and the lock: look again.
        const code = codeOf(e)
        if (code !== "EEXIST" && code !== "ENOENT") throw e
      }
      if (Date.now() >= deadline) throw new CtxError("EBUSY", `session ${request.session} is locked by another process`)
      await sleep(LOCK_RETRY_MS)
    }
  }

  private describe(request: SendRequest, plan: Plan): RunStart {
    const { id, scope, shared, window, workspace, input, hash, uuid } = request
    const facts = { scope, shared, cwd: plan.cwd, model: plan.agent.model, content: input }
    return { run: mintRun(), clientId: id, ...facts, window, workspace, hash, uuid }
  }

  private async perform(
    request: SendRequest,
    plan: Plan,
    recorder: ReturnType<typeof beginTemp>,
    history: string | undefined,
    channel: Channel,
    key: string,
  ): Promise<void> {
    const { host, openControl, onRun } = this.facts
    const text = history ?? (await readHistory(undefined, plan.window.history))
    const system = renderPrompt(plan.agent.templateText === "" ? BUILT_IN_TEMPLATE : plan.agent.templateText, {
      agent: plan.agent.name,
      current_time_unix: String(Math.floor(Date.parse(formatTs()) / 1000)),
      runtime_contract: RUNTIME_CONTRACT,
      agent_instructions: plan.agent.systemText,
      rules: "",
      skills: "",
      tool_injection: "",
      history_messages: text,
    })
    const { session, input, scope } = request
    const { agent, cwd, workspace, steps, window } = plan
    const facts = {
      host,
      agent,
      session,
      input,
      cwd,
      workspace,
      steps,
      window,
      system,
      history: text,
      isTemp: scope === "temp",
    }
    const run = new Run(facts, recorder, channel, openControl)
    const forget = onRun(run, key)
    try {
      await run.perform()
    } finally {
      forget()
    }
  }
}
