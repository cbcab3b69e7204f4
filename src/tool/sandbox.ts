import { spawn } from "node:child_process"
import { closeSync, writeSync } from "node:fs"
import { Socket } from "node:net"
import { Readable, type Writable } from "node:stream"
import { isErrnoName } from "../abi/errno.js"
import { CtxError, codeOf } from "../abi/error.js"
import { KILL_GRACE_MS } from "../abi/limit.js"
import { SANDBOX_ENTER } from "../abi/path.js"
import { memfd, pipe, seccompProgram, socketPair } from "../native/sys.js"
import { Box, type Exit, findStartTime } from "./box.js"
import { checkIdentity, type Identity } from "./identity.js"
import {
  type Bind,
  closeFixtures,
  etcFiles,
  findCwdFault,
  type Layout,
  openFixtures,
  type Place,
  planLayout,
  treeArguments,
} from "./layout.js"
import { BWRAP, checkBwrap, findKernelFault, sandboxDown } from "./probe.js"
import { findReplaced, proveBinds } from "./proof.js"

const SETPRIV = "/usr/bin/setpriv"
/** How long bubblewrap may take to build a sandbox; a mount that hangs must not hold a run for ever. */
const BUILD_WAIT_MS = 10_000
const USERNS_ID = 1000
const LF = 0x0a
/** Descriptor numbers inside, the first two known to the entry program. */
const FIRST_FD = { payload: 3, status: 4, block: 5, seccomp: 6, etc: 7 }

/** One payload to be started in a sandbox of its own (agent-tool-security 7). */
export interface Launch extends Place {
  /** The payload as it was checked, O_PATH; it stays the caller's. */
  payloadFd: number
  /** Arguments of the payload behind its own name. */
  args: readonly string[]
  /** The whole environment, from `payloadEnv`. */
  env: Readonly<Record<string, string>>
  /** Working directory inside; must exist there. */
  cwd: string
  /** Host path of the run's control socket. */
  controlSocket?: string
  /** stdout and stderr are one pipe, so that their order is exact; then `stderr` is empty. */
  isJoined?: boolean
  /** Called with bubblewrap's pid and start time while nothing of the payload has run yet. */
  onHeld?: (pid: number, startTime: string) => void
  /** Ends the sandbox, also while it is being built. */
  signal?: AbortSignal
}

/** A payload that runs. Its streams must be read to their end or destroyed. */
export interface Sandboxed {
  /** bubblewrap's pid: every process of the sandbox descends from it. */
  pid: number
  /** Start time of that process in clock ticks after boot, as in /proc/PID/stat. */
  startTime: string
  stdin: Writable
  stdout: Readable
  stderr: Readable
  /** Resolves when the payload has ended and no process of the sandbox exists any more. Never rejects. */
  exited: Promise<Exit>
  /** SIGTERM to the payload's group, `graceMs` (250), SIGKILL; resolves when no process is left (7.8). */
  end(graceMs?: number): Promise<void>
}

function closeAll(fds: Iterable<number>): void {
  for (const fd of fds) {
    try {
      closeSync(fd)
    } catch {
      // Nothing was written through it that could be lost.
    }
  }
}

/** Arguments of agent-tool-security 7.2 in its order. */
function bwrapArguments(identity: Identity, l: Launch, tree: string[]): string[] {
  const args = [
    "--unshare-user",
    "--disable-userns",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-uts",
    "--unshare-cgroup",
  ]
  args.push("--unshare-net")
  if (l.agent.iso === "userns") args.push("--uid", String(USERNS_ID), "--gid", String(USERNS_ID))
  args.push("--hostname", "cortexfs", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv")
  for (const [key, value] of Object.entries(l.env)) args.push("--setenv", key, value)
  args.push(...tree, "--chdir", l.cwd, "--block-fd", String(FIRST_FD.block), "--seccomp", String(FIRST_FD.seccomp))
  args.push("--", SANDBOX_ENTER, ...l.args)
  if (identity.isTaken) return [BWRAP, ...args]
  const { uid, gid, groups } = identity
  const others = groups.length > 0 ? `--groups=${groups.join(",")}` : "--clear-groups"
  return [
    SETPRIV,
    `--reuid=${uid}`,
    `--regid=${gid}`,
    others,
    "--inh-caps=-all",
    "--ambient-caps=-all",
    "--",
    BWRAP,
    ...args,
  ]
}

/** Lets a held bubblewrap go on; one that has ended already needs no word. */
function release(blockFd: number): void {
  try {
    writeSync(blockFd, "\n")
  } catch (e) {
    if (codeOf(e) !== "EPIPE") throw e
  }
}

/**
 * Follows the entry program on the status socket to its end: undefined when the payload runs, else why it does not.
 * Its LF says that the sandbox stands and would end with us from now on; when `prove` agrees then, it gets the word to
 * execute the payload. Errors: those of `prove`.
 */
async function readStatus(status: Socket, prove: () => Promise<void>): Promise<string | undefined> {
  let text = ""
  let fault: unknown
  status.on("data", chunk => {
    if (text === "" && chunk[0] === LF) {
      prove().then(
        () => status.write("\n"),
        e => {
          fault = e
          // Without a word the entry program ends.
          status.destroy()
        },
      )
    }
    text += chunk
  })
  // An entry program that is killed in between resets the connection.
  status.on("error", () => undefined)
  await new Promise(resolve => status.once("close", resolve))
  if (fault !== undefined) throw fault
  if (text === "") return "unbuilt"
  return text === "\n" ? undefined : text.trim()
}

/** The error for a sandbox whose payload has not run. */
async function findFault(
  word: string,
  stderr: Readable,
  identity: Identity,
  layout: Layout,
  binds: readonly Bind[],
  cwd: string,
): Promise<CtxError> {
  if (word !== "unbuilt") {
    if (!isErrnoName(word)) return sandboxDown(`entry program ends with ${word}`)
    return word === "EHOSTDOWN"
      ? sandboxDown("a restriction is not in force")
      : new CtxError(word, "payload cannot be executed")
  }
  const missing = await findCwdFault(layout, cwd)
  if (missing !== undefined) return missing
  const replaced = await findReplaced(binds)
  if (replaced !== undefined) return replaced
  const kernel = findKernelFault(identity.uid, identity.gid)
  if (kernel !== undefined) return kernel
  let text = ""
  for await (const chunk of stderr) if (text.length < 4096) text += chunk
  const line = text.split("\n").find(one => one.trim() !== "")
  return sandboxDown(line?.replace(/^bwrap: /, "").slice(0, 300) ?? "bubblewrap ends without a word")
}

/**
 * Starts a payload in a new sandbox and resolves once it executes. Everything is proved anew; doubt means it does not
 * run and no process is left. Errors: EHOSTDOWN naming the layer, ENOENT (a mount source, the working directory),
 * EACCES (a source that is refused, or replaced by another inode meanwhile), EPERM (identity), EINVAL (controls), ENOEXEC,
 * ECANCELED (`signal`). agent-tool-security 3.1, 6, 7
 */
export async function launch(l: Launch): Promise<Sandboxed> {
  try {
    const identity = checkIdentity(l.agent)
    await checkBwrap()
    const layout = await planLayout(l)
    try {
      if (l.signal?.aborted) throw new CtxError("ECANCELED", "the call was cancelled")
      const fixtures = await openFixtures(l.payloadFd, l.controlSocket)
      try {
        return await build(l, identity, layout, fixtures)
      } finally {
        closeFixtures(fixtures)
      }
    } finally {
      layout.close()
    }
  } catch (e) {
    // Whatever a launch trips over while it is taken down, the cancel is its reason.
    if (l.signal?.aborted) throw new CtxError("ECANCELED", "the call was cancelled", { cause: e })
    throw e instanceof CtxError ? e : sandboxDown(`set-up ends with ${codeOf(e) ?? "an error"}`, e)
  }
}

async function build(l: Launch, identity: Identity, layout: Layout, fixtures: readonly Bind[]): Promise<Sandboxed> {
  const inside = new Set<number>()
  const outside = new Set<number>()
  let box: Box | undefined
  try {
    const addPipe = (isRead: boolean): [number, number] => {
      const [read, write] = pipe()
      outside.add(isRead ? read : write)
      inside.add(isRead ? write : read)
      return isRead ? [read, write] : [write, read]
    }
    const addFile = (name: string, data: Buffer): number => {
      const fd = memfd(name, data)
      inside.add(fd)
      return fd
    }
    const [stdinFd, stdinInside] = addPipe(false)
    const [stdoutFd, stdoutInside] = addPipe(true)
    const [stderrFd, stderrInside] = l.isJoined ? [-1, stdoutInside] : addPipe(true)
    const [statusFd, statusInside] = socketPair()
    outside.add(statusFd)
    inside.add(statusInside)
    const [blockFd, blockInside] = addPipe(false)
    const isUserns = l.agent.iso === "userns"
    const files = Object.entries(
      etcFiles(l.agent, isUserns ? USERNS_ID : identity.uid, isUserns ? USERNS_ID : identity.gid),
    )
    const stdio = [stdinInside, stdoutInside, stderrInside, l.payloadFd, statusInside, blockInside]
    stdio.push(addFile("seccomp", seccompProgram()), ...files.map(([name, data]) => addFile(name, data)))
    const etcFds = Object.fromEntries(files.map(([name], i) => [name, FIRST_FD.etc + i]))
    // A source bound twice has two numbers: bubblewrap closes each as it binds it.
    const numberOf = ({ fd }: { fd: number }) => stdio.push(fd) - 1
    const tree = await treeArguments(layout, { binds: fixtures, etcFds }, numberOf)
    const binds = [...(layout.tmp === undefined ? [] : [layout.tmp]), ...fixtures, ...layout.binds]
    const [file, ...args] = bwrapArguments(identity, l, tree)

    const deadline = Date.now() + BUILD_WAIT_MS
    const child = spawn(file!, args, { stdio, env: {}, cwd: "/", detached: true })
    closeAll(inside)
    inside.clear()
    box = new Box(child)
    const { pid } = child
    const startTime = pid === undefined ? undefined : findStartTime(pid)
    if (pid === undefined || startTime === undefined) throw sandboxDown(`${file} cannot be started`)

    const streams: Socket[] = []
    const wrap = (fd: number, options: { readable?: boolean; writable?: boolean }) => {
      outside.delete(fd)
      const stream = new Socket({ fd, readable: options.readable === true, writable: options.writable === true })
      streams.push(stream)
      return stream
    }
    const current = box
    const cancel = () => void current.end(KILL_GRACE_MS)
    let isLate = false
    let late: NodeJS.Timeout | undefined
    try {
      let init = 0
      const said = readStatus(wrap(statusFd, { readable: true, writable: true }), () => proveBinds(init, binds))
      // Whoever waits for it comes later; until then its fault is nobody's.
      said.catch(() => undefined)
      init = await current.findInit(pid, deadline)
      if (l.signal?.aborted) throw new CtxError("ECANCELED", "the call was cancelled")
      l.onHeld?.(pid, startTime)
      l.signal?.addEventListener("abort", cancel, { once: true })
      late = setTimeout(() => {
        isLate = true
        void current.end(0)
      }, BUILD_WAIT_MS)
      release(blockFd)
      closeAll([blockFd])
      outside.delete(blockFd)
      const word = await said
      if (l.signal?.aborted) throw new CtxError("ECANCELED", "the call was cancelled")
      if (isLate) throw sandboxDown(`not built in ${BUILD_WAIT_MS / 1000} s`)
      const errors = l.isJoined ? stdoutFd : stderrFd
      if (word !== undefined) {
        throw await findFault(word, wrap(errors, { readable: true }), identity, layout, binds, l.cwd)
      }
    } catch (e) {
      l.signal?.removeEventListener("abort", cancel)
      for (const stream of streams) stream.destroy()
      throw e
    } finally {
      clearTimeout(late)
    }
    void current.exited.then(() => l.signal?.removeEventListener("abort", cancel))
    // Made last: a stream that ends before its reader is there would never tell it.
    const stdin = wrap(stdinFd, { writable: true })
    // A payload that does not read its input is no fault of the writer.
    stdin.on("error", () => undefined)
    return {
      pid,
      startTime,
      stdin,
      stdout: wrap(stdoutFd, { readable: true }),
      stderr: l.isJoined ? Readable.from([]) : wrap(stderrFd, { readable: true }),
      exited: current.exited,
      end: (graceMs = KILL_GRACE_MS) => current.end(graceMs),
    }
  } catch (e) {
    // First the end: a closed block descriptor would let a held sandbox go on.
    await box?.end(0)
    closeAll(outside)
    throw e
  } finally {
    closeAll(inside)
  }
}
