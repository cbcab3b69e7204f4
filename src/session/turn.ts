/** Runs asynchronous pieces of work one after another, in the order they were given. */
export class Turn {
  #last: Promise<unknown> = Promise.resolve()

  /** Starts `work` when everything given before has ended, however it ended. Resolves or rejects as the work does. */
  take<T>(work: () => Promise<T>): Promise<T> {
    const next = this.#last.then(work, work)
    this.#last = next.catch(() => {})
    return next
  }
}
