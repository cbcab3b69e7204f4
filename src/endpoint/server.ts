import type { Socket } from "node:net"
import { CtxError } from "../abi/error.js"
import { parseRequest } from "../abi/frame.js"
import { CONNECTIONS_MAX } from "../abi/limit.js"
import { formatRefusal } from "../agent/frame.js"
import type { Runtime } from "../agent/runtime.js"
import type { Severity } from "../native/journal.js"
import { peerCred } from "../native/sys.js"
import { readFrame } from "./framing.js"
import type { Listener } from "./listener.js"
import { Output, socketFd } from "./output.js"
import { checkHostRequest, checkPeer, type Peer } from "./peer.js"

const LINGER_MS = 5_000
const REFUSED_LINGER_MS = 1_000

/**
 * Accepts connections of one agent socket and passes each request to the runtime: peer, frame, op, in this order.
 * It holds no state of a run. session-abi 3
 */
export class Server {
  private connections = 0
  /** True once `stop` was called. */
  isStopping = false

  /** `isSystem`: uid 0 counts as host. `onChange` is called when the number of connections changed. */
  constructor(
    private readonly listener: Listener,
    private readonly runtime: Runtime,
    private readonly isSystem: boolean,
    private readonly onChange: () => void,
    private readonly log: (line: string, severity?: Severity) => void,
  ) {
    listener.serve(socket => void this.serve(socket))
  }

  /** Connections whose request is being read or served. */
  get size(): number {
    return this.connections
  }

  /** Takes no further connection and gives up the path. Served ones go on. */
  stop(): void {
    if (this.isStopping) return
    this.isStopping = true
    this.listener.close()
  }

  private async serve(socket: Socket): Promise<void> {
    const output = new Output(socket)
    let lingerMs = REFUSED_LINGER_MS
    this.connections++
    this.onChange()
    try {
      const peer = this.checkPeer(socket)
      if (this.connections > CONNECTIONS_MAX) {
        throw new CtxError("EAGAIN", `${CONNECTIONS_MAX} connections are open; try again later`)
      }
      lingerMs = LINGER_MS
      const frame = await readFrame(socket)
      // No op of this version takes a second frame.
      output.watchInput()
      const request = parseRequest(frame)
      checkHostRequest(peer, request)
      await this.runtime.serve(request, output)
    } catch (e) {
      await output.send(formatRefusal(e))
    }
    this.connections--
    this.onChange()
    await output.close(lingerMs)
  }

  private checkPeer(socket: Socket): Peer {
    const fd = socketFd(socket)
    try {
      return checkPeer(fd, this.runtime.ownerUid, this.isSystem)
    } catch (e) {
      const { pid, uid } = peerCred(fd)
      this.log(`refused peer uid=${uid} pid=${pid}`, "warning")
      throw e
    }
  }
}
