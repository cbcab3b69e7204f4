// Ctrl-C while a run goes on.

/**
 * Turns the first SIGINT into a cancel of the run, as soon as its id is known, and the second into exit 130 at once.
 * Implements ctx-coreutils 2.7.
 */
export class Interrupt {
  #run: string | undefined
  #isAsked = false
  #isSent = false

  readonly #cancel: (run: string) => Promise<unknown>

  /** `cancel` asks for the end of a run; what it rejects with is dropped, since the run's own connection tells. */
  constructor(cancel: (run: string) => Promise<unknown>) {
    this.#cancel = cancel
    process.on("SIGINT", () => {
      if (this.#isAsked) process.exit(130)
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
