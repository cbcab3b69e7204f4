import { CtxError } from "../abi/error.js"

const NAMES = ["SIGTERM", "SIGINT"] as const

/**
 * SIGTERM and SIGINT as the failure of a running step: they are noted, and `check` throws at the next safe place.
 * Between checks they are held back. `close` gives them their old listeners again.
 */
export class Interrupt {
  #signal: NodeJS.Signals | undefined
  readonly #others = NAMES.map(name => process.listeners(name))
  readonly #note = (signal: NodeJS.Signals) => {
    this.#signal ??= signal
  }

  constructor() {
    // A listener that exits would end the process between two system calls of a step.
    for (const name of NAMES) process.removeAllListeners(name).on(name, this.#note)
  }

  /** Lets a waiting signal in. Errors: `EINTR` when one has come. */
  async check(): Promise<void> {
    await new Promise(resolve => setImmediate(resolve))
    if (this.#signal === undefined) return
    throw new CtxError("EINTR", `ended by ${this.#signal}`, { hint: "run it again" })
  }

  close(): void {
    NAMES.forEach((name, i) => {
      process.off(name, this.#note)
      for (const listener of this.#others[i] ?? []) process.on(name, listener)
    })
  }
}
