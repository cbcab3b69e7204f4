import type { ChildProcess } from "node:child_process"
import { closeSync, readFileSync } from "node:fs"
import { constants } from "node:os"
import { setTimeout as sleep } from "node:timers/promises"
import { codeOf } from "../abi/error.js"
import { pidfdOpen, pidfdSignal, pidfdWait } from "../native/sys.js"
import { sandboxDown } from "./probe.js"

const SIGTERM = 15
const SIGKILL = 9
/** A number no process has. */
const NO_PROCESS = 0

/** How a payload's first process ended. */
export interface Exit {
  code: number | null
  signal: NodeJS.Signals | null
}

/** Fields of /proc/PID/stat behind the name; undefined when there is no such process. */
function readStat(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "utf8")
    return text.slice(text.lastIndexOf(")") + 2).split(" ")
  } catch {
    return undefined
  }
}

/** Start time of a process in clock ticks after boot; undefined when it is gone. */
export function findStartTime(pid: number): string | undefined {
  return readStat(pid)?.[19]
}

function findChild(pid: number): number | undefined {
  try {
    const child = Number(readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ")[0])
    return child > 0 ? child : undefined
  } catch {
    return undefined
  }
}

function tryPidfd(pid: number): number | undefined {
  try {
    return pidfdOpen(pid)
  } catch (e) {
    if (codeOf(e) === "ESRCH") return undefined
    throw e
  }
}

/** Exit of the payload from that of bubblewrap, which reports a signal as 128 + its number. */
function readExit(code: number | null, signal: NodeJS.Signals | null): Exit {
  const name =
    code === null ? undefined : Object.entries(constants.signals).find(([, number]) => number === code - 128)?.[0]
  return name === undefined ? { code, signal } : { code: null, signal: name as NodeJS.Signals }
}

/** The processes of one sandbox, built or still held, and the means to end them (agent-tool-security 7.8). */
export class Box {
  readonly exited: Promise<Exit>
  private initFd: number | undefined
  private isOver = false

  constructor(readonly child: ChildProcess) {
    this.exited = new Promise(resolve => {
      child.once("error", () => resolve({ code: null, signal: null }))
      child.once("exit", (code, signal) => resolve(this.reap(readExit(code, signal))))
    })
  }

  /**
   * Takes a descriptor of the init of the new pid namespace. bubblewrap ends as soon as the payload does, its init a
   * moment later; only this descriptor tells when the last process is gone. The sandbox is held meanwhile, so the
   * init is there for sure as soon as it is made. Returns its pid; 0 when bubblewrap has ended before.
   */
  async findInit(pid: number, deadline: number): Promise<number> {
    for (let tries = 0; !this.isOver; tries++) {
      const init = findChild(pid)
      const fd = init === undefined ? undefined : tryPidfd(init)
      if (init !== undefined && fd !== undefined) {
        // The number could have gone to another process only if bubblewrap had lost its child and forked again.
        if (readStat(init)?.[1] === String(pid)) {
          this.initFd = fd
          return init
        }
        closeSync(fd)
      }
      if (Date.now() > deadline) throw sandboxDown("bubblewrap does not get ready")
      await sleep(tries < 20 ? 1 : 5)
    }
    return NO_PROCESS
  }

  private async reap(exit: Exit): Promise<Exit> {
    if (this.initFd !== undefined) {
      this.signal(SIGKILL)
      // A process in uninterruptible sleep ends when its system call does; before that the end is not reported.
      while (!(await pidfdWait(this.initFd, 60_000))) {}
      closeSync(this.initFd)
      this.initFd = undefined
    }
    this.isOver = true
    return exit
  }

  private signal(number: number, group = false): boolean {
    return this.initFd !== undefined && pidfdSignal(this.initFd, number, { group })
  }

  /** The init of a bubblewrap that can no longer make one; undefined when it has none or is gone. */
  private async findLateInit(): Promise<number | undefined> {
    const { pid } = this.child
    if (pid === undefined || !this.child.kill("SIGSTOP")) return undefined
    // Stopped (T) or ended: either way the call that makes a process is behind it or will not come.
    while (!this.isOver && !/^[TtZX]/.test(readStat(pid)?.[0] ?? "X")) await sleep(1)
    const init = this.isOver ? undefined : findChild(pid)
    return init === undefined ? undefined : tryPidfd(init)
  }

  async end(graceMs: number): Promise<void> {
    if (this.isOver) return
    // The session of the payload is led by the init, which takes no SIGTERM itself.
    if (graceMs > 0 && this.signal(SIGTERM, true)) {
      const stop = new AbortController()
      await Promise.race([this.exited, sleep(graceMs, undefined, { signal: stop.signal }).catch(() => undefined)])
      stop.abort()
    }
    // Killing bubblewrap alone would orphan an init that is still held.
    this.initFd ??= await this.findLateInit()
    this.signal(SIGKILL)
    this.child.kill("SIGKILL")
    await this.exited
  }
}
