import { CtxError } from "../abi/error.js"
import { RUNS_MAX, WAITERS_MAX } from "../abi/limit.js"

interface Waiter {
  key: string
  admit: () => void
  refuse: (e: CtxError) => void
}

/** A place among the running ones of a runtime; given back exactly once. */
export interface Turn {
  leave(): void
}

/**
 * Who runs now: at most one for each session key and RUNS_MAX in all; the rest waits in the order of arrival.
 * Everything here happens synchronously, so that order of arrival is order of calls. session-abi 6.3 step 5, 15
 */
export class Queue {
  private readonly running = new Set<string>()
  private readonly waiting: Waiter[] = []

  /** Runs in progress. */
  get size(): number {
    return this.running.size
  }

  /** Requests waiting for one session, or for any. */
  countWaiting(key?: string): number {
    return key === undefined ? this.waiting.length : this.waiting.filter(w => w.key === key).length
  }

  /** True when a request for this session cannot have its turn at once. */
  mustWait(key: string): boolean {
    return this.running.has(key) || this.running.size >= RUNS_MAX || this.countWaiting(key) > 0
  }

  /**
   * Takes a turn. Errors: EBUSY (the session has a run and `wait` is false), EAGAIN (no slot, or too many waiters),
   * ECANCELED (`onGone` said that the waiter left), EHOSTDOWN (the runtime stops).
   */
  enter(key: string, wait: boolean, onGone: (leave: () => void) => () => void): Promise<Turn> {
    if (!this.mustWait(key)) return Promise.resolve(this.admit(key))
    const isBusy = this.running.has(key)
    if (!wait) {
      if (isBusy || this.countWaiting(key) > 0) {
        throw new CtxError("EBUSY", "session has an active run; send again with wait, or wait for it")
      }
      throw new CtxError("EAGAIN", `${RUNS_MAX} runs are active; try again later`)
    }
    if (this.countWaiting(key) >= WAITERS_MAX) {
      throw new CtxError("EAGAIN", `${WAITERS_MAX} requests wait for this session; try again later`)
    }
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        key,
        admit: () => {
          stopListening()
          resolve(this.admit(key))
        },
        refuse: e => {
          stopListening()
          reject(e)
        },
      }
      this.waiting.push(waiter)
      const stopListening = onGone(() => {
        const at = this.waiting.indexOf(waiter)
        if (at < 0) return
        this.waiting.splice(at, 1)
        reject(new CtxError("ECANCELED", "the waiting client went away"))
      })
    })
  }

  /** Refuses every waiter. session-abi 6.3 */
  stop(): void {
    for (const waiter of this.waiting.splice(0))
      waiter.refuse(new CtxError("EHOSTDOWN", "the runtime stops; send again later"))
  }

  private admit(key: string): Turn {
    this.running.add(key)
    let isHeld = true
    return {
      leave: () => {
        if (!isHeld) return
        isHeld = false
        this.running.delete(key)
        this.next()
      },
    }
  }

  private next(): void {
    for (let i = 0; i < this.waiting.length && this.running.size < RUNS_MAX; ) {
      const waiter = this.waiting[i]!
      if (this.running.has(waiter.key)) i++
      else {
        this.waiting.splice(i, 1)
        waiter.admit()
      }
    }
  }
}
