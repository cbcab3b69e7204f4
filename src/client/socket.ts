// The client end of an object's socket: one request line out, a stream of JSON lines back.

import { closeSync, constants, openSync } from "node:fs"
import { connect, type Socket } from "node:net"
import { basename, dirname } from "node:path"
import { CtxError } from "../abi/error.js"
import { ROW_MAX } from "../abi/limit.js"
import { SOCKET_PATH_MAX } from "../abi/path.js"

/**
 * Connects to the socket at exactly this path; a path of more than 107 bytes is reached through its directory's
 * descriptor. `what` names the object in errors. Errors: ENOENT (nothing there), ECONNREFUSED (nobody listens), EACCES,
 * ENAMETOOLONG. Implements object-abi 6, ctx-coreutils 11.
 */
export async function openSocket(path: string, what: string): Promise<Socket> {
  if (Buffer.byteLength(path) <= SOCKET_PATH_MAX) return connectPath(path, what)
  let dirFd: number
  try {
    dirFd = openSync(dirname(path), constants.O_RDONLY | constants.O_DIRECTORY)
  } catch (error) {
    throw socketError(error, what)
  }
  try {
    const short = `/proc/self/fd/${dirFd}/${basename(path)}`
    if (Buffer.byteLength(short) > SOCKET_PATH_MAX) {
      throw new CtxError("ENAMETOOLONG", `socket of ${what}: name is too long`, { path, hint: "use a shorter name" })
    }
    return await connectPath(short, what)
  } finally {
    closeSync(dirFd)
  }
}

/** Sends one request object as one line; the write side stays open. */
export function sendRequest(socket: Socket, request: object): void {
  socket.write(`${JSON.stringify(request)}\n`)
}

/**
 * The lines of a socket without their LF, as bytes, until the other side closes. An unfinished last line is dropped.
 * Errors: EIO when the connection breaks or a line is longer than 8 MiB.
 */
export async function* readLines(socket: Socket): AsyncGenerator<Buffer> {
  const parts: Buffer[] = []
  let size = 0
  try {
    for await (const chunk of socket as AsyncIterable<Buffer>) {
      let from = 0
      for (let at = chunk.indexOf(10); at !== -1; at = chunk.indexOf(10, from)) {
        parts.push(chunk.subarray(from, at))
        yield parts.length === 1 ? (parts[0] as Buffer) : Buffer.concat(parts)
        parts.length = 0
        size = 0
        from = at + 1
      }
      if (from === chunk.length) continue
      parts.push(chunk.subarray(from))
      size += chunk.length - from
      if (size > ROW_MAX) throw new CtxError("EIO", "reply line is longer than 8 MiB", { hint: "see its log" })
    }
  } catch (error) {
    if (error instanceof CtxError) throw error
    throw new CtxError("EIO", "connection broke", { cause: error, hint: "ctx agent resume shows what was stored" })
  }
}

function connectPath(path: string, what: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect({ path, allowHalfOpen: true })
    socket.once("connect", () => {
      socket.removeAllListeners("error")
      resolve(socket)
    })
    socket.once("error", error => reject(socketError(error, what, path)))
  })
}

function socketError(error: unknown, what: string, path?: string): unknown {
  const { code } = error as NodeJS.ErrnoException
  if (code === "ENOENT" || code === "ENOTDIR") {
    return new CtxError("ENOENT", what, { path, cause: error, hint: "run ctx ls agent" })
  }
  if (code === "ECONNREFUSED") {
    return new CtxError("ECONNREFUSED", `${what}: nobody listens`, {
      path,
      cause: error,
      hint: "start the service behind it",
    })
  }
  return error
}
