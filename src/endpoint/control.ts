import { chmodSync, readFileSync, rmSync } from "node:fs"
import { createServer, type Socket } from "node:net"
import { CtxError, codeOf } from "../abi/error.js"
import { ANCESTORS_MAX, MODEL_FRAME_MAX, REQUEST_IDS_MAX } from "../abi/limit.js"
import { type ControlRequest, findRequestId, parseControlRequest } from "../agent/ask.js"
import type { Control, ControlFacts, ServeModel } from "../agent/control.js"
import { describeFailure, formatFrame } from "../agent/frame.js"
import { peerCred } from "../native/sys.js"
import { readFrame } from "./framing.js"
import { Output, socketFd } from "./output.js"

const LINGER_MS = 1_000
const CONNECTIONS_MAX = 64

/** Parent and start time of a process from /proc/PID/stat; undefined when it is gone. */
export function readProcess(pid: number): { parent: number; startTime: string } | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1")
    // The name in parentheses may hold blanks and parentheses: what counts begins behind the last one.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ")
    return { parent: Number(fields[1]), startTime: fields[19]! }
  } catch {
    return undefined
  }
}

interface Root {
  kind: "step" | "tool"
  startTime: string
}

/**
 * The control socket of one run: peers are processes of the run's sandboxes and nobody else, each connection brings
 * one request, each request id counts once. agent-runtime 12
 */
export class ControlSocket implements Control {
  private readonly server = createServer({ allowHalfOpen: true, pauseOnConnect: true })
  private readonly roots = new Map<number, Root>()
  private readonly ids = new Set<string>()
  private readonly over = new AbortController()
  private readonly sockets = new Set<Socket>()

  private constructor(
    readonly path: string,
    private readonly facts: ControlFacts,
    private readonly serveModel: ServeModel,
  ) {}

  /** Binds `path`. Errors: those of bind. */
  static async open(path: string, facts: ControlFacts, serveModel: ServeModel): Promise<ControlSocket> {
    const control = new ControlSocket(path, facts, serveModel)
    control.server.on("connection", socket => void control.serve(socket))
    await new Promise<void>((resolve, reject) => {
      control.server.once("error", reject)
      control.server.listen({ path }, resolve)
    })
    chmodSync(path, 0o600)
    return control
  }

  register(kind: Root["kind"], rootPid: number, startTime: string): void {
    this.roots.set(rootPid, { kind, startTime })
  }

  unregister(rootPid: number): void {
    this.roots.delete(rootPid)
  }

  async close(): Promise<void> {
    this.over.abort()
    this.server.close()
    rmSync(this.path, { force: true })
    for (const socket of this.sockets) socket.destroy()
  }

  private async serve(socket: Socket): Promise<void> {
    this.sockets.add(socket)
    socket.once("close", () => this.sockets.delete(socket))
    const output = new Output(socket)
    let requestId: string | undefined
    try {
      if (this.sockets.size > CONNECTIONS_MAX)
        throw new CtxError("EAGAIN", "too many connections to the control socket")
      const kind = this.checkPeer(socketFd(socket))
      const line = await this.readLine(socket)
      requestId = findRequestId(line)
      if (requestId !== undefined) this.takeId(requestId)
      await this.answer(kind, parseControlRequest(line), output)
    } catch (e) {
      const { code, message } = describeFailure(e)
      await output.send(formatFrame({ type: "error", request_id: requestId, code, message }))
    }
    await output.close(LINGER_MS)
  }

  /** Which kind of sandbox the peer lives in. Errors: EACCES for any process that is not of this run. */
  private checkPeer(fd: number): Root["kind"] {
    const { pid, uid } = peerCred(fd)
    let at = uid === this.facts.uid ? pid : 0
    for (let depth = 0; at > 1 && depth <= ANCESTORS_MAX; depth++) {
      const process = readProcess(at)
      if (process === undefined) break
      const root = this.roots.get(at)
      if (root !== undefined) {
        if (root.startTime !== process.startTime) break
        return root.kind
      }
      at = process.parent
    }
    throw new CtxError("EACCES", "peer is no process of this run")
  }

  private async readLine(socket: Socket): Promise<Buffer> {
    try {
      return await readFrame(socket, { maxBytes: MODEL_FRAME_MAX })
    } catch (e) {
      if (codeOf(e) !== "EMSGSIZE") throw e
      throw new CtxError("EINVAL", `frame is longer than ${MODEL_FRAME_MAX} bytes`)
    }
  }

  /** Uses the request id up, whatever becomes of the request. Errors: EALREADY, ENOSPC, ECANCELED. */
  private takeId(id: string): void {
    if (this.over.signal.aborted) throw new CtxError("ECANCELED", "the run is over")
    if (this.ids.has(id)) throw new CtxError("EALREADY", `request_id ${id} was used before`)
    if (this.ids.size >= REQUEST_IDS_MAX) throw new CtxError("ENOSPC", `a run has at most ${REQUEST_IDS_MAX} requests`)
    this.ids.add(id)
  }

  private async answer(kind: Root["kind"], request: ControlRequest, output: Output): Promise<void> {
    const { facts } = this
    if (request.agent !== facts.agent || request.session !== facts.session || request.run !== facts.run) {
      throw new CtxError("EINVAL", "agent, session and run must be those of this run")
    }
    if (request.op === "ping") {
      await output.send(formatFrame({ type: "pong", request_id: request.request_id }))
      return
    }
    if (kind !== "step") throw new CtxError("EACCES", "op model is for the step program alone")
    const gone = new AbortController()
    output.onGone(() => gone.abort())
    output.watchInput()
    await this.serveModel(request, output, AbortSignal.any([gone.signal, this.over.signal]))
  }
}
