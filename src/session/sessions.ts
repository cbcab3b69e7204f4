import { CtxError } from "../abi/error.js"
import type { Place } from "./place.js"
import type { Creation, Session } from "./session.js"

/** The sessions of one place and their index. */
export class Sessions {
  readonly place: Place
  constructor(place: Place) {
    this.place = place
  }
  /** The session of that name, undefined when absent. Errors: `EIO` a symlink or special file stands there. */
  find(_name: string): Session | undefined {
    throw new CtxError("ENOSYS", "find")
  }
  /**
   * Makes a session whole and shows it by one rename (session-abi 6.3 step 6); the run lock is held on return.
   * Errors: `EEXIST` somebody was faster: find it; `EINVAL` name.
   */
  async create(_name: string, _creation: Creation): Promise<Session> {
    throw new CtxError("ENOSYS", "create")
  }
  /** Checks the index files a send will touch (6.3 step 4). Errors: `EINVAL` bad body, or key bound to another session. */
  checkIndex(_name: string, _keys: { cwd: string | null; hash?: string; uuid?: string }): void {
    throw new CtxError("ENOSYS", "index")
  }
  /** Session names, newest first. */
  list(): string[] {
    throw new CtxError("ENOSYS", "list")
  }
  /** `index/current`, undefined when missing. Errors: `EINVAL`. */
  readCurrent(): string | undefined {
    throw new CtxError("ENOSYS", "current")
  }
  /** True when the named session holds a claim of that id; absence or damage is false (6.2 row 9). */
  async hasClaim(_name: string, _clientId: string): Promise<boolean> {
    throw new CtxError("ENOSYS", "claim")
  }
  /** Opens those of the newest `limit` listed sessions whose state is `active` (11). Returns names with the code of a refusal. */
  async recoverActive(_limit = 64): Promise<{ session: string; code?: string }[]> {
    throw new CtxError("ENOSYS", "recover")
  }
  /** Closes every session. */
  close(): void {
    throw new CtxError("ENOSYS", "close")
  }
}
