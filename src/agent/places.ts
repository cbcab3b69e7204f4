import { durableHomePath, durableSpacePath } from "../abi/path.js"
import type { Session } from "../session/session.js"
import { Sessions } from "../session/sessions.js"
import type { Host } from "./host.js"

/** Which session a request means. */
export interface SessionRef {
  session: string
  scope: "private" | "shared" | "temp"
  shared?: string
}

/** One string for each session of a runtime, for locks and queues. */
export function sessionKey(ref: SessionRef): string {
  return `${ref.scope} ${ref.shared ?? ""} ${ref.session}`
}

/** The places in which one agent has sessions, on the durable tree. session-abi 5 */
export class Places {
  private readonly places = new Map<string, Sessions>()
  private readonly loaded = new Set<Session>()

  /** `uid` and `gid` own what is made. */
  constructor(
    private readonly host: Host,
    private readonly owner: { uid: number; gid: number },
  ) {}

  /** The private sessions, or those of a space. */
  get(shared?: string): Sessions {
    const key = shared ?? ""
    const known = this.places.get(key)
    if (known) return known
    const { dataRoot } = this.host.source
    const base = shared === undefined ? durableHomePath(this.owner.uid, dataRoot) : durableSpacePath(shared, dataRoot)
    const sessions = new Sessions({
      dir: `${base}/agent/${this.host.name}/session`,
      scope: shared === undefined ? "private" : "shared",
      shared,
      ...this.owner,
    })
    this.places.set(key, sessions)
    return sessions
  }

  /** A session with its history loaded and proven; undefined when there is none. Errors: EIO. */
  async open(ref: SessionRef): Promise<Session | undefined> {
    const session = this.get(ref.shared).find(ref.session)
    if (session === undefined) return undefined
    await session.open()
    this.loaded.add(session)
    return session
  }

  /** Every session that was opened here. */
  listLoaded(): Session[] {
    return [...this.loaded]
  }

  /** Remembers a session as loaded. */
  keep(session: Session): void {
    this.loaded.add(session)
  }

  /** Closes all of them. */
  close(): void {
    for (const sessions of this.places.values()) sessions.close()
  }
}
