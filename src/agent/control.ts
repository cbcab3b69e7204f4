import type { ControlModel } from "./ask.js"
import type { Channel } from "./channel.js"

/** What every request on a run's control socket must carry. agent-runtime 12 */
export interface ControlFacts {
  agent: string
  session: string
  run: string
  /** Whose processes may connect. */
  uid: number
}

/** The control socket of one run, host side. */
export interface Control {
  /** Path of the socket outside the sandbox. */
  readonly path: string
  /** Honours requests of this sandbox's processes; called while the sandbox is still held. `startTime`: field 22 of /proc/PID/stat. */
  register(kind: "step" | "tool", rootPid: number, startTime: string): void
  /** Honours nothing more from there. */
  unregister(rootPid: number): void
  /** Closes the socket; what still comes is refused. */
  close(): Promise<void>
}

/** Answers op `model`: frames down `channel`; `signal` aborts when the asker went away or the run is over. */
export type ServeModel = (request: ControlModel, channel: Channel, signal: AbortSignal) => Promise<void>

/** Opens the control socket of a run. The endpoint provides it, since it owns sockets, frames and peers. */
export type OpenControl = (facts: ControlFacts, serveModel: ServeModel) => Promise<Control>
