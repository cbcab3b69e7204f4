import { fstatSync, writeSync } from "node:fs"
import type { Socket } from "node:net"
import { OUTPUT_BUFFER_MAX, OUTPUT_STALL_MS } from "../abi/limit.js"
import type { Channel } from "../agent/channel.js"

const CHUNK = 65_536
const PROBE_MS = 1_000
const EMPTY = Buffer.alloc(0)

interface Handle {
  fd: number
  writeQueueSize: number
}

/** The descriptor behind a Node.js socket; -1 once it is closed. */
export function socketFd(socket: Socket): number {
  return (socket as unknown as { _handle: Handle | null })._handle?.fd ?? -1
}

function queueSize(socket: Socket): number {
  return (socket as unknown as { _handle: Handle | null })._handle?.writeQueueSize ?? 0
}

/**
 * The sending half of one connection: bounded, in order, with a limit on how long the peer may take nothing.
 * One writer loop; `queue` holds what the kernel has not been offered yet. session-abi 3.4, 3.6, 3.7
 */
export class Output implements Channel {
  isOpen = true
  private readonly queue: Buffer[] = []
  private queuedBytes = 0
  private isWriting = false
  private readonly goneListeners = new Set<() => void>()
  private readonly waiters: { limit: number; resume: () => void }[] = []
  private probe: NodeJS.Timeout | undefined

  /** Takes over the sending half of `socket`; `stallMs` is how long a peer may take no byte. */
  constructor(
    private readonly socket: Socket,
    private readonly stallMs: number = OUTPUT_STALL_MS,
  ) {
    socket.on("error", () => this.leave())
    socket.on("close", () => this.leave())
  }

  send(line: string): Promise<void> {
    if (!this.isOpen) return Promise.resolve()
    const bytes = Buffer.from(line)
    this.queue.push(bytes)
    this.queuedBytes += bytes.length
    void this.write()
    return this.settled(Math.max(OUTPUT_BUFFER_MAX, bytes.length))
  }

  flush(): Promise<void> {
    return this.settled(0)
  }

  onGone(fn: () => void): () => void {
    if (!this.isOpen) {
      fn()
      return () => undefined
    }
    this.goneListeners.add(fn)
    return () => this.goneListeners.delete(fn)
  }

  /** From now on whatever the peer sends is thrown away, and its end is noted. */
  watchInput(): void {
    this.socket.on("data", () => undefined)
    this.socket.on("end", () => this.checkPeer())
    if (this.socket.readableEnded) this.checkPeer()
    this.socket.resume()
  }

  /**
   * The peer has closed its sending half. Tells a closed peer from a half-closed one: Node.js reports both alike,
   * but a send of no bytes fails with EPIPE only for the first. A half-closed one is asked again once a second,
   * since the kernel event that would tell it later cannot be had.
   */
  private checkPeer(): void {
    if (!this.isOpen) return
    if (!this.isPeerThere()) {
      this.leave()
      return
    }
    this.probe ??= setInterval(() => {
      if (!this.isPeerThere()) this.leave()
    }, PROBE_MS).unref()
  }

  /** Sends what is queued, closes the sending half, and destroys the socket once the peer has closed or `lingerMs` passed. */
  async close(lingerMs: number): Promise<void> {
    await this.flush()
    clearInterval(this.probe)
    if (!this.isOpen) {
      this.socket.destroy()
      return
    }
    await new Promise<void>(resolve => {
      // What the peer still sends is thrown away: closing over unread bytes would turn its end of file into ECONNRESET.
      const timer = setTimeout(() => this.socket.destroy(), lingerMs)
      this.socket.once("close", () => {
        clearTimeout(timer)
        resolve()
      })
      this.socket.on("data", () => undefined)
      this.socket.resume()
      this.socket.end()
      if (this.socket.destroyed) resolve()
    })
  }

  private isPeerThere(): boolean {
    const fd = socketFd(this.socket)
    if (fd < 0) return false
    try {
      writeSync(fd, EMPTY)
      fstatSync(fd)
      return true
    } catch (e) {
      return (e as NodeJS.ErrnoException).code === "EAGAIN"
    }
  }

  private settled(limit: number): Promise<void> {
    if (!this.isOpen || this.queuedBytes <= limit) return Promise.resolve()
    return new Promise(resume => this.waiters.push({ limit, resume }))
  }

  private wake(): void {
    for (let i = 0; i < this.waiters.length; ) {
      const waiter = this.waiters[i]!
      if (this.isOpen && this.queuedBytes > waiter.limit) i++
      else {
        this.waiters.splice(i, 1)
        waiter.resume()
      }
    }
  }

  private async write(): Promise<void> {
    if (this.isWriting) return
    this.isWriting = true
    while (this.isOpen && this.queue.length > 0) {
      const bytes = this.queue.shift()!
      for (let offset = 0; this.isOpen && offset < bytes.length; offset += CHUNK) {
        const piece = bytes.subarray(offset, offset + CHUNK)
        await this.writePiece(piece)
        this.queuedBytes -= piece.length
        this.wake()
      }
    }
    this.isWriting = false
    this.wake()
  }

  private writePiece(piece: Buffer): Promise<void> {
    return new Promise(resolve => {
      let timer: NodeJS.Timeout | undefined
      let waiting = 0
      const finish = () => {
        clearTimeout(timer)
        stopListening()
        resolve()
      }
      const check = () => {
        const size = queueSize(this.socket)
        if (size >= waiting) this.leave()
        else {
          waiting = size
          timer = setTimeout(check, this.stallMs)
        }
      }
      const stopListening = this.onGone(finish)
      this.socket.write(piece, finish)
      // What the kernel took at once is not counted as taken by the peer later.
      waiting = queueSize(this.socket)
      timer = setTimeout(check, this.stallMs)
    })
  }

  private leave(): void {
    if (!this.isOpen) return
    this.isOpen = false
    clearInterval(this.probe)
    this.queue.length = 0
    this.queuedBytes = 0
    this.socket.destroy()
    this.wake()
    for (const fn of [...this.goneListeners]) fn()
    this.goneListeners.clear()
  }
}
