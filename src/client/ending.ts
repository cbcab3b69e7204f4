// Stopping an agent by what its receipt proves (agent-runtime 14.3, 16): first everything is proven, then it is done.

import { appendFileSync, closeSync, constants, fchownSync, fstatSync, openSync } from "node:fs"
import type { Socket } from "node:net"
import { setTimeout as sleep } from "node:timers/promises"
import { CtxError, codeOf } from "../abi/error.js"
import { formatRow } from "../abi/json.js"
import { STOP_MS } from "../abi/limit.js"
import { agentControlPath, CTX_ROOT, escapeUnitName } from "../abi/path.js"
import { formatTs } from "../abi/time.js"
import { peerCred, pidfdOpen, pidfdWait } from "../native/sys.js"
import { openBacking } from "../session/backing.js"
import { replaceFile } from "../store/file.js"
import { findReceipt, provesControl, type Receipt } from "../store/receipt.js"
import { hasManager, isUp, type Manager, readUnit, stopUnits } from "../unit/systemctl.js"
import { openAgent, parseReply } from "./agent.js"
import type { Kin } from "./family.js"
import { isUserRoot, type Places, systemctlOf } from "./place.js"
import { readLines, sendRequest } from "./socket.js"

/** How long a unit that just starts may take to issue its receipt. */
const ISSUE_MS = 3_000
const POLL_MS = 50
/** How long a runtime may take to say that it stops. */
const ACCEPT_MS = 5_000

/** What is proven of an agent: nothing of it runs, its units, or a runtime outside of a service manager. */
export type Hold =
  | { kind: "dead" }
  | { kind: "units"; manager: Manager; service: string; socket: string; isRunning: boolean }
  | { kind: "process"; pid: number; pidFd: number; socket: Socket }

function conflict(agent: string, why: string): CtxError {
  return new CtxError("EBUSY", `agent/${agent}: ${why}`, {
    hint: `nothing was stopped; ctx cat agent/${agent}.d/meta.json`,
  })
}

/** Opens the control directory on the backing tree: receipts are bound to that. Errors: EHOSTDOWN where it is not seen. */
export function openControls(places: Places, agent: string): number {
  const path = agentControlPath(agent, undefined, places.root)
  const fd = openSync(path, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW)
  try {
    const backingFd = openBacking(fd)
    if (backingFd !== undefined) return backingFd
    throw new CtxError("EHOSTDOWN", `agent/${agent}.d cannot be seen behind the mount`, {
      hint: "run it on the host, outside of any sandbox",
    })
  } finally {
    closeSync(fd)
  }
}

/** The receipt of an agent, which must be of this control directory; undefined when it has none. Errors: EBUSY. */
function readProven(places: Places, agent: string): Receipt | undefined {
  const controlFd = openControls(places, agent)
  try {
    const receipt = findReceipt(controlFd)
    if (receipt === undefined || provesControl(receipt, fstatSync(controlFd, { bigint: true }))) return receipt
    throw conflict(agent, "the receipt is of another control directory")
  } catch (error) {
    if (codeOf(error) !== "EINVAL") throw error
    throw conflict(agent, (error as Error).message)
  } finally {
    closeSync(controlFd)
  }
}

/** Whether the summary says that a process of the agent lives. */
async function seemsAlive({ controls }: Kin): Promise<boolean> {
  return ["ready", "busy"].includes(await controls.readStatus())
}

/**
 * Proves what of an agent runs. Reads only, but that it connects to the socket of a runtime outside of a service manager.
 * Errors: EBUSY for a conflict: another control directory, another invocation, a pid that is somebody else's, something
 * alive without a receipt.
 */
export async function proveHold(places: Places, kin: Kin): Promise<Hold> {
  for (const end = Date.now() + ISSUE_MS; ; await sleep(POLL_MS)) {
    const receipt = readProven(places, kin.agent)
    if (receipt === undefined) {
      if (await seemsAlive(kin)) throw conflict(kin.agent, "it seems to run, without a receipt")
      return { kind: "dead" }
    }
    if (receipt.terminal !== undefined) throw conflict(kin.agent, "this program stops no terminal")
    if (receipt.system === undefined) return await proveProcess(places, kin)
    const proven = await proveUnits(places, kin, receipt.system)
    if (proven !== "starting") return proven
    if (Date.now() > end) throw conflict(kin.agent, "the receipt is of another invocation of its unit")
  }
}

/** The managers that may have units of this tree; only where its root does not tell are there two. */
function managersOf(places: Places): Manager[] {
  if (isUserRoot(places)) return ["user"]
  return places.root === CTX_ROOT ? ["system"] : ["system", "user"]
}

/** The units of an agent, up under exactly the invocation of the receipt. "starting" while a new one is on its way. */
async function proveUnits(
  places: Places,
  kin: Kin,
  system: NonNullable<Receipt["system"]>,
): Promise<Hold | "starting"> {
  const { agent } = kin
  const instance = `cortexfs-agent@${escapeUnitName(agent)}`
  const [service, socket] = [`${instance}.service`, `${instance}.socket`]
  if (![service, socket].includes(system.unit)) throw conflict(agent, `the receipt names ${system.unit}`)
  if (!system.isOwnedStart) throw conflict(agent, `${system.unit} was up before: ${systemctlOf(places)} stop it`)
  const managers = managersOf(places).filter(hasManager)
  const states = await Promise.all(
    managers.map(async manager => {
      const [unit, listener] = await Promise.all([readUnit(manager, system.unit), readUnit(manager, socket)])
      return { manager, unit, listener }
    }),
  )
  const own = states.find(({ unit }) => isUp(unit) && unit.invocation === system.invocation)
  if (own !== undefined) return { kind: "units", manager: own.manager, service, socket, isRunning: true }
  const other = states.find(({ unit }) => isUp(unit))
  if (other?.unit.active === "activating") return "starting"
  if (other !== undefined) throw conflict(agent, `the receipt is of another invocation of ${system.unit}`)
  if (await seemsAlive(kin)) throw conflict(agent, `${system.unit} is down, but the pid in its controls lives`)
  // Its runtime went to rest; the next connection would wake it.
  const idle = states.find(({ listener }) => isUp(listener))
  return idle === undefined
    ? { kind: "dead" }
    : { kind: "units", manager: idle.manager, service, socket, isRunning: false }
}

/** A runtime that was started by hand: the process that listens is the one its controls name. */
async function proveProcess(places: Places, kin: Kin): Promise<Hold> {
  if (!(await seemsAlive(kin))) return { kind: "dead" }
  const pid = (await kin.controls.readPid())!
  let socket: Socket
  try {
    socket = await openHeld(places, kin.agent)
  } catch (error) {
    if (!["ENOENT", "ECONNREFUSED"].includes(codeOf(error) ?? "")) throw error
    throw conflict(kin.agent, `nobody listens, but pid ${pid} lives`)
  }
  try {
    const { fd } = (socket as unknown as { _handle: { fd: number } })._handle
    // The pid is held before it is compared, so that it cannot become another process in between.
    const pidFd = pidfdOpen(pid)
    if (peerCred(fd).pid === pid) return { kind: "process", pid, pidFd, socket }
    closeSync(pidFd)
  } catch (error) {
    socket.destroy()
    if (codeOf(error) === "ESRCH") return { kind: "dead" }
    throw error
  }
  socket.destroy()
  throw conflict(kin.agent, `another process than pid ${pid} listens`)
}

/** Lets go of what a hold keeps open. */
export function releaseHold(hold: Hold): void {
  if (hold.kind !== "process") return
  hold.socket.destroy()
  closeSync(hold.pidFd)
}

/** Connects to an agent for a request to come; its going meanwhile is no error. */
async function openHeld(places: Places, agent: string): Promise<Socket> {
  return (await openAgent(places, agent)).on("error", () => {})
}

/** Asks a runtime to end its runs as cancelled; false when it does not say that it will. */
async function askStop(socket: Socket, agent: string): Promise<boolean> {
  const clock = setTimeout(() => socket.destroy(), ACCEPT_MS)
  try {
    sendRequest(socket, { op: "stop", agent })
    socket.end()
    for await (const line of readLines(socket)) return parseReply(line, `agent/${agent}`).type === "accepted"
    return false
  } catch {
    return false
  } finally {
    clearTimeout(clock)
    socket.destroy()
  }
}

/**
 * Ends what was proven: closes the socket, lets the runtime settle its runs as cancelled, and ends the unit, whose
 * manager kills what stays. What a runtime that ended in its own time has written is left to `recordEnd`.
 * Errors: EACCES, EHOSTDOWN, ETIMEDOUT.
 */
export async function endHold(
  places: Places,
  kin: Kin,
  hold: Exclude<Hold, { kind: "dead" }>,
): Promise<{ isTold: boolean }> {
  let isTold: boolean
  if (hold.kind === "process") {
    isTold = await askStop(hold.socket, kin.agent)
    if (!(await pidfdWait(hold.pidFd, STOP_MS + ACCEPT_MS))) {
      throw new CtxError("ETIMEDOUT", `agent/${kin.agent}: pid ${hold.pid} does not end`, {
        hint: `look at it, then kill it`,
      })
    }
  } else {
    const { manager, socket, service } = hold
    const asked = hold.isRunning ? await openHeld(places, kin.agent).catch(() => undefined) : undefined
    try {
      // The socket first: a connection in between would start the runtime again.
      await stopUnits(manager, [socket], true)
    } catch (error) {
      asked?.destroy()
      throw error
    }
    isTold = asked !== undefined && (await askStop(asked, kin.agent))
    await stopUnits(manager, [socket, service])
  }
  return { isTold }
}

/**
 * Writes the summaries `status` and `pid` of an agent that ended, and the line in `log` unless its runtime has. The files
 * are the owner's. Errors: errno of writing.
 */
export function recordEnd(places: Places, agent: string, isLogged: boolean): void {
  const controlFd = openControls(places, agent)
  const dir = `/proc/self/fd/${controlFd}/.`
  try {
    const { uid, gid } = fstatSync(controlFd)
    replaceFile(`${dir}/status`, "dead\n", { mode: 0o644, uid, gid })
    replaceFile(`${dir}/pid`, "\n", { mode: 0o644, uid, gid })
    if (isLogged) return
    // Nonblocking: a fifo of that name must not hold this process until somebody reads it.
    const { O_WRONLY, O_APPEND, O_CREAT, O_NOFOLLOW, O_NONBLOCK } = constants
    const flags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK
    const fd = openSync(`${dir}/log`, flags, 0o644)
    try {
      const stat = fstatSync(fd)
      if (!stat.isFile()) throw new CtxError("EINVAL", `agent/${agent}.d/log is no regular file`)
      if (stat.uid !== uid && process.geteuid!() === 0) fchownSync(fd, uid, gid)
      const row = { ts: formatTs(), type: "agent.stop", agent, session: "-", object: `agent/${agent}`, status: "dead" }
      appendFileSync(fd, `${formatRow(row)}\n`)
    } finally {
      closeSync(fd)
    }
  } finally {
    closeSync(controlFd)
  }
}
