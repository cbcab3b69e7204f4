import type { DoneStatus } from "./recorder.js"

/** What a client id is bound to (session-abi 6.2). */
export interface Payload {
  op: "send" | "tsh" | "answer"
  /** `input`; for `tsh` `:tsh ` + JSON of the args; for `answer` the stored text. */
  input: string
  pending?: string
  scope: string
  /** The effective cwd. */
  cwd: string | null
}

/** A proven claim: run, payload and, when finished, the status. */
export interface Claim {
  readonly clientId: string
  readonly run: string
  readonly op: "send" | "tsh" | "answer"
  readonly scope: string
  readonly cwd: string | null
  readonly status?: DoneStatus
}
