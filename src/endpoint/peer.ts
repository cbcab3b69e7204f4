import { closeSync, readFileSync } from "node:fs"
import { CtxError, codeOf } from "../abi/error.js"
import type { Request } from "../abi/frame.js"
import { peerCred, peerPidfd, pidfdSignal } from "../native/sys.js"

/** Who is at the other end of an agent socket. `owner` may everything, `host` (uid 0) a few ops. session-abi 3 */
export type Peer = { kind: "owner" | "host"; uid: number; pid: number }

/** How many pid namespaces deep a process is, seen from here; undefined when it is gone or hidden. */
export function pidDepth(pid: number | "self"): number | undefined {
  try {
    const line = /^NSpid:\s*(.*)$/m.exec(readFileSync(`/proc/${pid}/status`, "latin1"))?.[1]
    return line === undefined ? undefined : line.trim().split(/\s+/).length
  } catch {
    return undefined
  }
}

/** As `pidDepth`, of exactly the process that connected where the kernel can name it, also when pids are reused. */
function readPeerDepth(fd: number, pid: number): number | undefined {
  if (pid <= 0) return undefined
  const pidFd = peerPidfd(fd)
  if (pidFd === undefined) return pidDepth(pid)
  try {
    const depth = pidDepth(pid)
    return pidfdSignal(pidFd, 0) ? depth : undefined
  } catch (e) {
    // EPERM: it lives and is somebody else's.
    return codeOf(e) === "EPERM" ? pidDepth(pid) : undefined
  } finally {
    closeSync(pidFd)
  }
}

/**
 * Decides by SO_PEERCRED and the peer's pid namespace, before a byte is read. `isSystem` says that uid 0 counts as
 * host. Errors: EACCES for everybody else, for a process inside a sandbox, and for one that is gone already.
 * session-abi 3.5, agent-tool-security 5.1 #1
 */
export function checkPeer(fd: number, ownerUid: number | undefined, isSystem: boolean): Peer {
  const { pid, uid } = peerCred(fd)
  const own = pidDepth("self")
  if (own === undefined || readPeerDepth(fd, pid) !== own) {
    throw new CtxError("EACCES", "peer is not in the pid namespace of the runtime")
  }
  if (uid === ownerUid) return { kind: "owner", uid, pid }
  if (uid === 0 && isSystem) return { kind: "host", uid, pid }
  throw new CtxError("EACCES", `uid ${uid} does not own this agent`)
}

/** What uid 0 may ask for when it is not the owner. Errors: EACCES. agent-tool-security 5.1 #3 */
export function checkHostRequest(peer: Peer, request: Request): void {
  if (peer.kind === "owner") return
  if (request.op === "ping" || request.op === "status" || request.op === "stop") return
  if (request.op === "send" && request.parent !== undefined) return
  throw new CtxError("EACCES", `uid 0 may not use ${request.op} on an agent it does not own`)
}
