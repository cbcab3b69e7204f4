import { oneLine } from "../native/journal.js"
import { sdNotify } from "../native/sys.js"

const WATCHDOG_MS = 60_000
const STATUS_MS = 1_000

/** What a runtime is doing, for its supervisor. */
export interface Load {
  connections: number
  sessions: number
  runs: number
  queued: number
}

/** In what time the service manager wants to hear of this process; undefined when it does not watch. */
function readWatchdogMs(): number | undefined {
  const usec = Number(process.env.WATCHDOG_USEC)
  return Number.isSafeInteger(usec) && usec > 0 ? usec / 1000 : undefined
}

/**
 * Tells a service manager how the runtime is, and when it has been without work for long enough. An idle process has
 * no timer but its exit, unless a drop-in makes the watchdog shorter than that. units 4, 5, 9
 */
export class Supervision {
  private idleTimer: NodeJS.Timeout | undefined
  private watchdogTimer: NodeJS.Timeout | undefined
  private statusTimer: NodeJS.Timeout | undefined
  private readonly watchdogMs = readWatchdogMs()
  private status = ""
  private shown = ""

  /** `idleMs` is undefined for a runtime that stays without work; `fault` is what it refuses everything with. */
  constructor(
    private readonly idleMs: number | undefined,
    private readonly onIdle: () => void,
    private readonly fault: string | undefined,
  ) {}

  /** Says READY: an accepted connection would be served now. */
  start(load: Load): void {
    this.status = this.describe(load)
    this.shown = this.status
    sdNotify(`READY=1\nSTATUS=${this.status}`)
    this.update(load)
  }

  /** Takes notice of a change of load. */
  update(load: Load): void {
    const isIdle = load.connections + load.runs + load.queued === 0
    if (isIdle && this.idleTimer === undefined) {
      if (this.watchdogTimer !== undefined) sdNotify("WATCHDOG=1")
      if (!this.isWatchedAtRest()) {
        clearInterval(this.watchdogTimer)
        this.watchdogTimer = undefined
      }
      if (this.idleMs !== undefined) this.idleTimer = setTimeout(() => this.onIdle(), this.idleMs)
    }
    if (!isIdle) {
      clearTimeout(this.idleTimer)
      this.idleTimer = undefined
    }
    if (!isIdle || this.isWatchedAtRest()) this.startWatchdog()
    this.status = this.describe(load)
    this.statusTimer ??= this.shown === this.status ? undefined : setTimeout(() => this.showStatus(), STATUS_MS).unref()
  }

  /** Says STOPPING and keeps no timer. */
  stop(): void {
    clearTimeout(this.idleTimer)
    clearInterval(this.watchdogTimer)
    clearTimeout(this.statusTimer)
    sdNotify("STOPPING=1")
  }

  /** True when the watchdog would end a process that rests before its own exit does. */
  private isWatchedAtRest(): boolean {
    return this.watchdogMs !== undefined && this.watchdogMs <= (this.idleMs ?? Number.POSITIVE_INFINITY)
  }

  private startWatchdog(): void {
    if (this.watchdogMs === undefined) return
    const everyMs = Math.min(WATCHDOG_MS, this.watchdogMs / 3)
    this.watchdogTimer ??= setInterval(() => sdNotify("WATCHDOG=1"), everyMs)
  }

  private describe(load: Load): string {
    if (this.fault !== undefined) return `refusing: ${oneLine(this.fault)}`
    const isIdle = load.connections + load.runs + load.queued === 0
    if (isIdle && this.idleMs !== undefined) return `idle, exits in ${this.idleMs / 1000} s`
    return `ready sessions=${load.sessions} runs=${load.runs} queued=${load.queued}`
  }

  private showStatus(): void {
    this.statusTimer = undefined
    if (this.shown === this.status) return
    this.shown = this.status
    sdNotify(`STATUS=${this.status}`)
  }
}
