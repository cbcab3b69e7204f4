import { createHash } from "node:crypto"
import type { DoneStatus } from "../abi/status.js"
import type { MessageRow } from "./row.js"

export type Op = "send" | "tsh" | "answer"

/** What a client id is bound to (session-abi 6.2). */
export interface Payload {
  op: Op
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
  readonly op: Op
  readonly scope: string
  readonly shared?: string
  readonly cwd: string | null
  readonly resumes?: string
  readonly pending?: string
  /** SHA-256 of the stored text, base64. */
  readonly digest: string
  /** Present when the run is finished; an unknown stored word is `error`. */
  readonly status?: DoneStatus
}

/** The claim that a user row makes. The row has been checked. */
export function claimOf(row: MessageRow): Claim {
  return {
    clientId: row.client_id as string,
    run: row.run as string,
    op: (row.op as Op | undefined) ?? "send",
    scope: row.scope as string,
    shared: row.shared,
    cwd: row.cwd as string | null,
    resumes: row.resumes,
    pending: row.pending,
    digest: digestOf(row.content as string),
  }
}

/** True when a request of this payload is a repetition of the claim, byte for byte (6.2 rows 2 to 12). */
export function isSamePayload(claim: Claim, payload: Payload): boolean {
  return (
    claim.op === payload.op &&
    claim.scope === payload.scope &&
    claim.cwd === payload.cwd &&
    claim.pending === payload.pending &&
    claim.digest === digestOf(payload.input)
  )
}

function digestOf(text: string): string {
  return createHash("sha256").update(text).digest("base64")
}
