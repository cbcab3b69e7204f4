import { appendFileSync, closeSync, constants, fstatSync, openSync } from "node:fs"
import { formatValue } from "../abi/control.js"
import { CtxError } from "../abi/error.js"
import { formatRow } from "../abi/json.js"
import type { AgentStatus } from "../abi/status.js"
import { formatTs } from "../abi/time.js"
import { replaceFile } from "../store/file.js"
import { issueReceipt, type UnitReceipt } from "../store/receipt.js"

/**
 * The agent's `status`, `pid` and `log`: summaries for people, never identity, so they are written without sync and a
 * failure to write them is only logged. agent-runtime 1, 2
 */
export class Presence {
  private shown: AgentStatus | undefined

  /** `controlDir` is the backing directory `agent/NAME.d`; `mode` of the files stays 0644 and their owner the process. */
  constructor(
    private readonly controlDir: string,
    private readonly agent: string,
    private readonly log: (line: string) => void,
  ) {}

  /** Shows a status word, and the pid of this process unless the word says that it goes. */
  show(status: AgentStatus): void {
    if (status === this.shown) return
    const isGoing = status === "idle" || status === "dead"
    try {
      const wasGoing = this.shown === undefined || this.shown === "idle" || this.shown === "dead"
      if (isGoing || wasGoing)
        replaceFile(`${this.controlDir}/pid`, isGoing ? "\n" : formatValue(String(process.pid)), { mode: 0o644 })
      replaceFile(`${this.controlDir}/status`, formatValue(status), { mode: 0o644 })
      this.shown = status
    } catch (e) {
      this.log(`status ${status} not written: ${(e as NodeJS.ErrnoException).code ?? "EIO"}`)
    }
  }

  /**
   * Issues the receipt of this launch; `unit` runs it, if one does. Without a receipt nobody can stop the agent by it, so
   * a failure is logged and no more. agent-runtime 16
   */
  issue(unit: UnitReceipt | undefined): void {
    try {
      issueReceipt(this.controlDir, unit)
    } catch (e) {
      this.log(`receipt not written: ${(e as NodeJS.ErrnoException).code ?? "EIO"}`)
    }
  }

  /** Appends one line to the agent's `log`. */
  append(type: string, status: string): void {
    const path = `${this.controlDir}/log`
    const row = { ts: formatTs(), type, agent: this.agent, session: "-", object: `agent/${this.agent}`, status }
    try {
      const fd = openSync(
        path,
        // Nonblocking: a fifo of that name must not hold the runtime until somebody reads it.
        constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT | constants.O_NOFOLLOW | constants.O_NONBLOCK,
        0o644,
      )
      try {
        if (!fstatSync(fd).isFile()) throw new CtxError("EINVAL", `${path} is not a regular file`)
        appendFileSync(fd, `${formatRow(row)}\n`)
      } finally {
        closeSync(fd)
      }
    } catch (e) {
      this.log(`log not written: ${(e as NodeJS.ErrnoException).code ?? "EIO"}`)
    }
  }
}
