import { userInfo } from "node:os"
import { setTimeout as sleep } from "node:timers/promises"
import { CtxError, codeOf } from "../abi/error.js"
import { IDLE_EXIT_MS, STOP_MS } from "../abi/limit.js"
import { agentMountPath, systemAgentSocket, userRunDir } from "../abi/path.js"
import { describeFailure } from "../agent/frame.js"
import { type Host, listProtected } from "../agent/host.js"
import { checkOwner, type Identity, readIdentity, takeIdentity } from "../agent/identity.js"
import { findUnit } from "../agent/launch.js"
import { Logs } from "../agent/log.js"
import { Presence } from "../agent/presence.js"
import type { StopReason } from "../agent/run.js"
import { Runtime } from "../agent/runtime.js"
import { type Severity, writeJournal } from "../native/journal.js"
import { readInterpreter } from "../policy/interpreter.js"
import { parseMount } from "../policy/mount.js"
import { readAgent } from "../store/agent.js"
import type { Source } from "../store/generation.js"
import { pinTree } from "../store/source.js"
import { Controls } from "./controls.js"
import { bindListener, type Listener, takeListener } from "./listener.js"
import { Server } from "./server.js"
import { type Load, Supervision } from "./supervision.js"

/** Identity of a runtime whose agent names no owner: it can only say so. */
const NOBODY: Identity = { uid: 65534, gid: 65534, groups: [] }
/** Why a runtime ends. */
type Ending = StopReason | "idle"

/** How long answers that are on their way may still take when everything else is over. */
const FLUSH_MS = 250

/** The arguments of `cortexfs-agent`. */
export interface ServeOptions {
  source: string
  name: string
  runDir: string
  configDir: string
  /** Absolute path of a socket to bind, mode 0600, in place of the one below `runDir`. */
  listen: string | undefined
}

/** One line for the journal. */
function log(line: string, severity?: Severity): void {
  writeJournal("cortexfs-agent", line, severity)
}

/** The owner's identity, or why there is none that could be used. Errors: ENOENT, EPERM. */
function findIdentity(source: Source, name: string): { identity: Identity | undefined; fault: unknown } {
  try {
    return { identity: readIdentity(source, name), fault: undefined }
  } catch (e) {
    // A malformed control is the agent's fault and answered on the socket; the rest is the host's or an attack.
    if (codeOf(e) !== "EINVAL") throw e
    return { identity: undefined, fault: e }
  }
}

/** The home directory of the account of this process; undefined without one. */
function findHome(): string | undefined {
  try {
    return userInfo().homedir
  } catch {
    return undefined
  }
}

function findFault(source: Source, name: string): unknown {
  try {
    parseMount(readAgent(source, name).mount, `agent/${name}.d/mount`)
    return undefined
  } catch (e) {
    return e
  }
}

/**
 * Runs the runtime of one agent to its end and gives the exit code. As root it pins the source, takes or binds its
 * socket, and becomes the owner before it parses anything that others write.
 * Errors: "usage", EBUSY (another runtime, or an update), EPROTO, EINVAL (no reference tree), ENOENT (no agent), EPERM. agent-runtime 2, units 2.6, 4, 5
 */
export async function serveAgent(options: ServeOptions): Promise<number> {
  const { name, runDir, configDir, listen } = options
  process.umask(0o077)
  // Until there is something to end, a signal just ends the process.
  let onSignal: () => void = () => process.exit(0)
  for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => onSignal())
  const isSystem = process.geteuid!() === 0
  const taken = await takeListener("agent")
  if (taken !== undefined && listen !== undefined) {
    throw new CtxError("usage", "a supervisor hands over a socket already; leave --listen out")
  }
  const source = await pinTree(options.source)
  const { identity, fault: identityFault } = findIdentity(source, name)
  if (identity !== undefined) checkOwner(identity)
  const isOwn = !isSystem && runDir === userRunDir(process.geteuid!())
  const bind = () =>
    listen === undefined
      ? bindListener(systemAgentSocket(name, runDir), isOwn ? 0o600 : 0o666)
      : bindListener(listen, 0o600)
  const listener = taken ?? (await bind())
  onSignal = () => {
    listener.close()
    process.exit(0)
  }
  const logs = new Logs(name, source, log)
  takeIdentity(identity ?? NOBODY)

  const home = findHome()
  const owner = home === undefined ? undefined : { home, env: isSystem ? {} : process.env }
  const host: Host = {
    source,
    name,
    viewDir: agentMountPath(name, runDir),
    logs,
    get protectedDirs() {
      return listProtected(source, [runDir, configDir], owner)
    },
    interpreter: await readInterpreter(configDir, isSystem ? 0 : process.geteuid!(), e =>
      log(`policy interpreter denies everything: ${codeOf(e) ?? "EIO"}`, "warning"),
    ),
  }
  const fault = identityFault ?? findFault(source, name)
  const service = new Service(host, identity, fault, listener, isSystem)
  onSignal = () => service.finish("interrupted")
  return await service.run()
}

/** The parts of a runtime put together, from ready to the end. */
class Service {
  private readonly controls = new Controls()
  private readonly presence: Presence | undefined
  private readonly supervision: Supervision
  private readonly runtime: Runtime
  private server: Server | undefined
  /** Ends the service, once. */
  finish: (reason: Ending) => void = () => undefined
  private readonly finished: Promise<Ending>

  constructor(
    private readonly host: Host,
    identity: Identity | undefined,
    fault: unknown,
    private readonly listener: Listener,
    private readonly isSystem: boolean,
  ) {
    this.finished = new Promise(resolve => {
      this.finish = resolve
    })
    const { name, source } = host
    this.presence = identity && new Presence(`${source.dir}/agent/${name}.d`, name, log)
    const text = fault === undefined ? undefined : `${describeFailure(fault).code}: ${describeFailure(fault).message}`
    this.supervision = new Supervision(listener.isActivated ? idleMs() : undefined, () => this.finish("idle"), text)
    this.runtime = new Runtime({
      host,
      owner: identity,
      fault,
      openControl: this.controls.open,
      log,
      onChange: () => this.change(),
      onStop: () => this.finish("cancelled"),
    })
  }

  /** Recovers, serves, ends; resolves with the exit code. */
  async run(): Promise<number> {
    await this.runtime.recover()
    this.server = new Server(this.listener, this.runtime, this.isSystem, () => this.change(), log)
    log(`agent ${this.host.name} ready`)
    this.presence?.issue(findUnit(this.host.name))
    this.presence?.show("ready")
    this.supervision.start(this.load())
    this.change()
    const ending = await this.finished
    const late = setTimeout(() => process.exit(70), STOP_MS)
    this.supervision.stop()
    this.server.stop()
    if (ending === "idle") {
      await this.untilServed()
      this.presence?.show("idle")
    } else await this.stop(ending)
    clearTimeout(late)
    log(`agent ${this.host.name} stopped`)
    this.controls.remove()
    return 0
  }

  private async stop(reason: StopReason): Promise<void> {
    this.presence?.show("stopping")
    await this.runtime.stop(reason)
    await Promise.race([this.untilServed(), sleep(FLUSH_MS)])
    this.presence?.show("dead")
    if (reason === "cancelled") this.presence?.append("agent.stop", "dead")
  }

  /** A connection that was accepted is served, also when it came at the very end. */
  private async untilServed(): Promise<void> {
    while (this.load().connections > 0) await sleep(10)
  }

  private load(): Load {
    return { ...this.runtime.counts, connections: this.server?.size ?? 0 }
  }

  private change(): void {
    if (this.server === undefined || this.server.isStopping) return
    this.presence?.show(this.runtime.counts.runs > 0 ? "busy" : "ready")
    this.supervision.update(this.load())
  }
}

function idleMs(): number {
  const seconds = Number(process.env.CORTEXFS_IDLE_S)
  return Number.isInteger(seconds) && seconds >= 1 && seconds <= 3600 ? seconds * 1000 : IDLE_EXIT_MS
}
