import { setTimeout as sleep } from "node:timers/promises"
import { CtxError, codeOf } from "../abi/error.js"
import type { CancelRequest, Request, ResumeRequest, StatusRequest, StopRequest } from "../abi/frame.js"
import { RECOVER_MAX } from "../abi/limit.js"
import type { Session } from "../session/session.js"
import type { Channel } from "./channel.js"
import type { OpenControl } from "./control.js"
import { formatFrame } from "./frame.js"
import type { Host } from "./host.js"
import { Places, sessionKey } from "./places.js"
import { readServedAgent } from "./plan.js"
import { Queue } from "./queue.js"
import type { Run, StopReason } from "./run.js"
import { Sender } from "./send.js"

/** What a runtime is started with. */
export interface RuntimeFacts {
  host: Host
  /** Owner and group of everything it writes; undefined when the agent's controls do not say. */
  owner: { uid: number; gid: number } | undefined
  /** Why no request can be served, when the agent's controls were malformed at start. units 5 */
  fault?: unknown
  openControl: OpenControl
  /** One line for the journal. */
  log: (line: string) => void
  /** Called when the number of runs or waiters changed. */
  onChange: () => void
  /** Called when op `stop` was accepted and its reply is out. */
  onStop: () => void
}

/** How often the end of the last turn is looked for while the runtime stops. */
const TURN_POLL_MS = 5

interface ActiveRun {
  run: Run
  key: string
}

/** Op dispatch and the runs of one agent. It knows no socket; the endpoint hands it parsed requests. session-abi 6 */
export class Runtime {
  private readonly queue = new Queue()
  private readonly runs = new Map<string, ActiveRun>()
  private readonly places: Places | undefined
  private readonly sender: Sender | undefined
  private stopReason: StopReason | undefined

  constructor(private readonly facts: RuntimeFacts) {
    if (facts.owner === undefined) return
    this.places = new Places(facts.host, facts.owner)
    this.sender = new Sender({
      host: facts.host,
      places: this.places,
      queue: this.queue,
      openControl: facts.openControl,
      log: facts.log,
      isStopping: () => this.stopReason !== undefined,
      onRun: (run, key) => {
        this.runs.set(run.id, { run, key })
        if (this.stopReason !== undefined) run.stop(this.stopReason)
        facts.onChange()
        return () => {
          this.runs.delete(run.id)
          facts.onChange()
        }
      },
    })
  }

  /** The only uid that may use every op. */
  get ownerUid(): number | undefined {
    return this.facts.owner?.uid
  }

  /** Numbers for the status line. units 9 */
  get counts(): { sessions: number; runs: number; queued: number } {
    return {
      sessions: this.places?.listLoaded().length ?? 0,
      runs: this.runs.size,
      queued: this.queue.countWaiting(),
    }
  }

  /** Settles what an earlier process left unfinished. A damaged session is logged and left alone. session-abi 11 */
  async recover(): Promise<void> {
    if (this.places === undefined || this.facts.fault !== undefined) return
    try {
      for (const { session, code } of await this.places.get().recoverActive(RECOVER_MAX)) {
        if (code !== undefined) this.facts.log(`session ${session} not recovered: ${code}`)
      }
    } catch (e) {
      this.facts.log(`sessions not recovered: ${codeOf(e) ?? "EIO"}`)
    }
  }

  /** Serves one request; what it throws becomes the one `error` frame of the connection. */
  async serve(request: Request, channel: Channel): Promise<void> {
    this.checkFault()
    switch (request.op) {
      case "ping":
        return await channel.send(formatFrame({ type: "pong" }))
      case "send":
        if (this.stopReason !== undefined) throw new CtxError("EHOSTDOWN", "the runtime stops; send again later")
        return await this.sender!.send(request, channel)
      case "status":
        return await this.status(request, channel)
      case "cancel":
        return await this.cancel(request, channel)
      case "resume":
        return await this.resume(request, channel)
      case "stop":
        return await this.acceptStop(request, channel)
      default:
        throw new CtxError("ENOSYS", `op ${request.op} is not served yet`)
    }
  }

  /** Ends every run and waiter; resolves when all are settled. Takes no new run afterwards. agent-runtime 2 */
  async stop(reason: StopReason): Promise<void> {
    this.stopReason = reason
    this.queue.stop()
    for (const { run } of this.runs.values()) run.stop(reason)
    // A send that was past its checks may still begin a run, which is then stopped at once; its turn is counted.
    while (this.queue.size > 0) await sleep(TURN_POLL_MS)
    this.places?.close()
  }

  /** An agent that was malformed at start is looked at again for each request: its owner may have mended it. */
  private checkFault(): void {
    if (this.facts.fault === undefined) return
    if (this.sender === undefined) throw this.facts.fault
    readServedAgent(this.facts.host)
  }

  private findRun(key: string): Run | undefined {
    for (const active of this.runs.values()) if (active.key === key) return active.run
    return undefined
  }

  private async status(request: StatusRequest, channel: Channel): Promise<void> {
    const key = sessionKey(request)
    const session = this.places!.get(request.shared).find(request.session)
    const run = this.findRun(key)
    const waiting = this.queue.countWaiting(key)
    const active = run && { run: run.id, step: run.step, tool: run.tool, model: run.facts.agent.model }
    await channel.send(
      formatFrame({
        type: "status",
        session: request.session,
        status: session?.readState() ?? "idle",
        phase: run?.phase ?? (waiting > 0 ? "queued" : "idle"),
        ...active,
        waiting,
        updated_at: session?.readUpdatedAt() ?? "0",
      }),
    )
  }

  private async cancel(request: CancelRequest, channel: Channel): Promise<void> {
    const { id, session, scope, shared } = request
    const active = this.runs.get(id)
    if (
      active &&
      (session === undefined || active.key.startsWith("temp ") || active.key === sessionKey({ session, scope, shared }))
    ) {
      active.run.stop("cancelled")
      await channel.send(await active.run.done)
      return
    }
    const found = session === undefined ? await this.findLoaded(id) : undefined
    if (found !== undefined) return await channel.send(found)
    const ref = { session: session ?? "default", scope, shared }
    const opened = await this.places!.open(ref)
    const line = await opened?.findDone(id)
    if (line !== undefined) return await channel.send(line)
    if (opened && (await hasStart(opened, id))) {
      throw new CtxError("EBUSY", `run ${id} is active in another process`)
    }
    throw new CtxError("ENOENT", `run ${id} is not known`)
  }

  private async findLoaded(run: string): Promise<string | undefined> {
    for (const session of this.places!.listLoaded()) {
      const line = await session.findDone(run)
      if (line !== undefined) return line
    }
    return undefined
  }

  private async resume(request: ResumeRequest, channel: Channel): Promise<void> {
    const session = await this.places!.open(request)
    if (session === undefined) throw new CtxError("ENOENT", `session ${request.session} does not exist`)
    const run = request.follow ? this.findRun(sessionKey(request)) : undefined
    if (run === undefined) {
      for await (const line of session.resumeLines(request.after)) await channel.send(line)
      return
    }
    await follow(session, run.id, request.after, channel)
  }

  private async acceptStop(request: StopRequest, channel: Channel): Promise<void> {
    if (request.agent !== this.facts.host.name) {
      throw new CtxError("EACCES", `this is the runtime of agent ${this.facts.host.name}`)
    }
    await channel.send(formatFrame({ type: "accepted", op: "stop", agent: request.agent }))
    await channel.flush()
    this.facts.onStop()
  }
}

async function hasStart(session: Session, run: string): Promise<boolean> {
  try {
    for await (const _ of session.resumeLines(run)) break
    return true
  } catch (e) {
    if (codeOf(e) === "ENOENT") return false
    throw e
  }
}

/**
 * Sends stored lines up to and with the `done` of `run`, each once. Lines are read from the file, not kept: a slow
 * follower costs no memory and never holds the run up. session-abi 6.4
 */
async function follow(
  session: Session,
  run: string,
  after: number | string | undefined,
  channel: Channel,
): Promise<void> {
  let wake: () => void = () => undefined
  let isDirty = true
  const notice = () => {
    isDirty = true
    wake()
  }
  const stopFollowing = session.follow(notice)
  const stopListening = channel.onGone(notice)
  const isEnd = new RegExp(`^\\{"seq":[0-9]+,"ts":"[^"]*","type":"done","run":"${run}"`)
  let from = after
  try {
    while (channel.isOpen) {
      isDirty = false
      for await (const line of session.resumeLines(from)) {
        await channel.send(line)
        from = Number(/^\{"seq":([0-9]+),/.exec(line)?.[1])
        if (isEnd.test(line)) return
      }
      if (!isDirty) {
        await new Promise<void>(resolve => {
          wake = resolve
        })
      }
    }
  } finally {
    stopFollowing()
    stopListening()
  }
}
