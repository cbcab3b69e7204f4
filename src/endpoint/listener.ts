import { closeSync, constants, fstatSync, lstatSync, mkdirSync, openSync, rmSync, unlinkSync } from "node:fs"
import { connect, createServer, type Server, type Socket } from "node:net"
import { basename, dirname } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import { CtxError, codeOf } from "../abi/error.js"
import { SOCKET_PATH_MAX } from "../abi/path.js"
import { closeOnExec, flock, listenFds } from "../native/sys.js"

const CONNECT_MS = 1_000
const LOCK_MS = 10_000
const LOCK_RETRY_MS = 10

/** A listening stream socket and how it came to be. */
export class Listener {
  private held: Socket[] = []
  private serveOne: ((socket: Socket) => void) | undefined

  /** `close` accepts nothing more; a path bound here is removed, but only while it is still this socket. */
  constructor(
    server: Server,
    /** True when a supervisor handed it over; then its path is neither bound, changed nor removed here. */
    readonly isActivated: boolean,
    readonly close: () => void,
  ) {
    server.on("connection", socket => {
      if (this.serveOne) this.serveOne(socket)
      else this.held.push(socket)
    })
  }

  /** Hands every connection to `fn`, those first that came before there was anybody to serve them. */
  serve(fn: (socket: Socket) => void): void {
    this.serveOne = fn
    for (const socket of this.held.splice(0)) fn(socket)
  }
}

/**
 * Takes the listener of a supervisor, if there is one: LISTEN_PID is this process, LISTEN_FDS is 1 and LISTEN_FDNAMES
 * is `name`. Undefined without these variables. Errors: "usage" for any other form. units 5
 */
export async function takeListener(name: string): Promise<Listener | undefined> {
  const { LISTEN_FDS: count, LISTEN_PID: pid, LISTEN_FDNAMES: names } = process.env
  if (count === undefined && pid === undefined) return undefined
  const fds = pid === String(process.pid) && count === "1" && names === name ? listenFds() : []
  for (const key of ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"]) delete process.env[key]
  const fd = fds[0]
  if (fds.length !== 1 || fd === undefined) {
    throw new CtxError("usage", `LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES do not hand over one socket named ${name}`)
  }
  closeOnExec(fd, true)
  const server = newServer()
  await listen(server, { fd }).catch(e => {
    throw new CtxError("usage", `descriptor ${fd} is not a listening stream socket`, { cause: e })
  })
  // Only a socket with an IP address gives one as an object.
  if (typeof server.address() === "object" && server.address() !== null) {
    throw new CtxError("usage", `descriptor ${fd} is not a Unix socket`)
  }
  return new Listener(server, true, () => server.close())
}

/**
 * Binds `path` itself with `mode`; missing directories are made, by root for everybody to enter, else for the user
 * alone. A dead socket there is replaced. Of several that start at once one binds and the others are EBUSY.
 * Errors: EBUSY (something answers there), EEXIST (not a socket), ENAMETOOLONG (over 107 bytes), those of bind.
 */
export async function bindListener(path: string, mode: number): Promise<Listener> {
  if (Buffer.byteLength(path) > SOCKET_PATH_MAX) {
    throw new CtxError("ENAMETOOLONG", `socket path has more than ${SOCKET_PATH_MAX} bytes`, { path })
  }
  makeDirectory(dirname(path))
  const server = newServer()
  const unlock = await lock(path)
  try {
    await clearDead(path)
    await listenAt(server, path, mode)
  } finally {
    unlock()
  }
  const { dev, ino } = lstatSync(path)
  return new Listener(server, false, () => {
    const now = lstatSync(path, { throwIfNoEntry: false })
    // Node.js unlinks the path when it closes the listener. When that is not ours any more it stays open, deaf, to the
    // end of the process. Where the directory belongs to root the dead socket stays: the next start replaces it.
    if (now === undefined || (now.dev === dev && now.ino === ino)) server.close()
    else
      server
        .removeAllListeners("connection")
        .on("connection", socket => socket.destroy())
        .unref()
  })
}

function newServer(): Server {
  return createServer({ allowHalfOpen: true, pauseOnConnect: true })
}

function listen(server: Server, where: { fd: number } | { path: string }): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject)
    server.listen({ ...where, backlog: 256 }, () => {
      server.off("error", reject)
      resolve()
    })
  })
}

async function listenAt(server: Server, path: string, mode: number): Promise<void> {
  const umask = process.umask(0o777 & ~mode)
  try {
    await listen(server, { path })
  } catch (e) {
    if (codeOf(e) === "EADDRINUSE") throw new CtxError("EBUSY", "another runtime took this socket", { path, cause: e })
    throw e
  } finally {
    process.umask(umask)
  }
}

function makeDirectory(dir: string): void {
  const umask = process.umask(process.geteuid!() === 0 ? 0o022 : 0o077)
  try {
    mkdirSync(dir, { recursive: true })
  } finally {
    process.umask(umask)
  }
}

/**
 * Takes the right to look at `path` and to bind it, from the look to the listening socket: between them a living one
 * can be mistaken for a dead one. The lock is a file beside the socket, for the time of the start only.
 * Errors: EBUSY after 10 s, those of open. Gives the function that returns the right.
 */
async function lock(path: string): Promise<() => void> {
  const file = `${dirname(path)}/.${basename(path)}.lock`
  for (const deadline = Date.now() + LOCK_MS; ; await sleep(LOCK_RETRY_MS)) {
    const lockFd = openSync(file, constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW, 0o600)
    // A file that its holder has removed meanwhile locks nobody out any more.
    if (flock(lockFd, "ex") && isAt(file, lockFd)) {
      return () => {
        rmSync(file, { force: true })
        closeSync(lockFd)
      }
    }
    closeSync(lockFd)
    if (Date.now() >= deadline) throw new CtxError("EBUSY", "another runtime is about to take this socket", { path })
  }
}

function isAt(file: string, fd: number): boolean {
  const named = lstatSync(file, { throwIfNoEntry: false })
  const open = fstatSync(fd)
  return named !== undefined && named.dev === open.dev && named.ino === open.ino
}

async function clearDead(path: string): Promise<void> {
  let found: ReturnType<typeof lstatSync>
  try {
    found = lstatSync(path)
  } catch (e) {
    if (codeOf(e) === "ENOENT") return
    throw e
  }
  if (!found.isSocket()) throw new CtxError("EEXIST", "something that is no socket lies there; remove it", { path })
  const answer = await tryConnect(path)
  if (answer !== "ECONNREFUSED" && answer !== "ENOENT") {
    throw new CtxError("EBUSY", "another runtime serves this socket; stop it first", { path })
  }
  if (answer === "ECONNREFUSED") unlinkSync(path)
}

function tryConnect(path: string): Promise<string> {
  return new Promise(resolve => {
    const socket = connect({ path })
    const finish = (answer: string) => {
      socket.destroy()
      resolve(answer)
    }
    socket.setTimeout(CONNECT_MS, () => finish("ETIMEDOUT"))
    socket.once("connect", () => finish("alive"))
    socket.once("error", e => finish(codeOf(e) ?? "EIO"))
  })
}
