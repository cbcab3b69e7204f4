import type { ControlModel } from "../abi/socket.js"
import type { Channel } from "./channel.js"
import type { StepProcess } from "./program.js"

/** What every request on a run's control socket must carry. agent-runtime 12 */
export interface ControlFacts {
  agent: string
  session: string
  run: string
  /** Whose processes may connect. */
  uid: number
}

/** A sandboxed process whose descendants may use the control socket. */
export interface Admitted extends StepProcess {
  /** Root of the sandbox as seen from here. */
  readonly rootPid: number
  /** Its start time, field 22 of /proc/PID/stat. */
  readonly startTime: string
}

/** The control socket of one run, host side. */
export interface Control {
  /** Path of the socket outside the sandbox. */
  readonly path: string
  /** Starts a process and honours its requests by `kind` from its first instruction on until it has exited. */
  admit<P extends Admitted>(kind: "step" | "tool", start: () => Promise<P>): Promise<P>
  /** Closes the socket; what still comes is refused. */
  close(): Promise<void>
}

/** Answers op `model`: frames down `channel`; `signal` aborts when the asker went away or the run is over. */
export type ServeModel = (request: ControlModel, channel: Channel, signal: AbortSignal) => Promise<void>

/** Opens the control socket of a run. The endpoint provides it, since it owns sockets, frames and peers. */
export type OpenControl = (facts: ControlFacts, serveModel: ServeModel) => Promise<Control>
