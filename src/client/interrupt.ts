// Signals: what ends ctx, and Ctrl-C while a run goes on.

/**
 * Lets SIGINT and SIGTERM end this process by themselves, as SIGHUP does: only then do they also end a process whose
 * one thread waits for a mount that does not answer. Node.js has handlers of its own, which a wait in the kernel never
 * gets to; a handler that is taken away again leaves the default. Implements ctx-coreutils 2.7.
 */
export function letSignalsEnd(): void {
  const nothing = (): void => {}
  for (const name of ["SIGINT", "SIGTERM"] as const) process.on(name, nothing).removeListener(name, nothing)
}

/**
 * Turns the first SIGINT into a cancel of the run, as soon as its id is known; the second ends the process, as it does
 * every other command. Implements ctx-coreutils 2.7.
 */
export class Interrupt {
  #run: string | undefined
  #isAsked = false
  #isSent = false
  #isOn = false

  readonly #cancel: (run: string) => Promise<unknown>

  /** `cancel` asks for the end of a run; what it rejects with is dropped, since the run's own connection tells. */
  constructor(cancel: (run: string) => Promise<unknown>) {
    this.#cancel = cancel
  }

  /** Begins to listen: from here on there may be a run. Until then the first SIGINT ends the process. */
  start(): void {
    if (this.#isOn) return
    this.#isOn = true
    process.once("SIGINT", () => {
      this.#isAsked = true
      this.#send()
    })
  }

  /** True once a SIGINT came. */
  get isAsked(): boolean {
    return this.#isAsked
  }

  /** Tells the run that a SIGINT is about; undefined while there is none. */
  setRun(run: string | undefined): void {
    if (run === this.#run) return
    this.#run = run
    this.#send()
  }

  #send(): void {
    if (!this.#isAsked || this.#isSent || this.#run === undefined) return
    this.#isSent = true
    this.#cancel(this.#run).catch(() => {})
  }
}
