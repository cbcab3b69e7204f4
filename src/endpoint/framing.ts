import type { Socket } from "node:net"
import { CtxError } from "../abi/error.js"
import { FRAME_MAX, REQUEST_TIMEOUT_MS } from "../abi/limit.js"

const LF = 0x0a

/**
 * Reads the one request frame of a connection: up to the first LF, or to the end of file. The LF, if
 * there was one, is part of the result. Afterwards the socket is paused; nothing behind the frame has been thrown away unless it fails.
 * Errors: ETIMEDOUT (not complete in time), EMSGSIZE (over `maxBytes` with its LF), EINVAL (empty, or bytes already
 * received behind the LF), ECONNRESET (the peer went away). session-abi 3.1-3.3
 */
export function readFrame(
  socket: Socket,
  { maxBytes = FRAME_MAX, timeoutMs = REQUEST_TIMEOUT_MS } = {},
): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = []
    let size = 0
    let lineEnd = -1
    let isDone = false
    const leave = () => {
      isDone = true
      clearTimeout(timer)
      socket.off("data", onData)
      socket.off("end", onEnd)
      socket.off("close", onClose)
      socket.pause()
    }
    const fail = (code: "ETIMEDOUT" | "EMSGSIZE" | "EINVAL" | "ECONNRESET", message: string) => {
      if (isDone) return
      leave()
      reject(new CtxError(code, message))
    }
    const finish = () => {
      if (isDone) return
      const all = Buffer.concat(chunks, size)
      const frame = lineEnd < 0 ? all : all.subarray(0, lineEnd + 1)
      if (size > (lineEnd < 0 ? size : lineEnd + 1)) fail("EINVAL", "more bytes behind the request line")
      else if (size === 0 || lineEnd === 0) fail("EINVAL", "empty request")
      else {
        leave()
        resolve(frame)
      }
    }
    const onData = (chunk: Buffer) => {
      const at = lineEnd < 0 ? chunk.indexOf(LF) : -1
      if (at >= 0) lineEnd = size + at
      chunks.push(chunk)
      size += chunk.length
      if (lineEnd >= maxBytes || (lineEnd < 0 && size > maxBytes)) {
        fail("EMSGSIZE", `request is longer than ${maxBytes} bytes; send less input`)
        return
      }
      // The turn after this one: what the kernel holds behind the LF already belongs to "already received".
      if (at >= 0) setImmediate(finish)
    }
    const onEnd = () => finish()
    const onClose = () => fail("ECONNRESET", "peer went away")
    const timer = setTimeout(
      () => fail("ETIMEDOUT", `request was not complete within ${timeoutMs / 1000} s`),
      timeoutMs,
    )
    socket.on("data", onData)
    socket.on("end", onEnd)
    socket.on("close", onClose)
    socket.resume()
  })
}
