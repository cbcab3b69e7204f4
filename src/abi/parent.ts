// The control `parent` of an agent (agent-runtime 1).
import { isName } from "./name.js"

/** Whose an agent is: the agent, and the session and run that made it where they are named. */
export interface ParentReference {
  agent: string
  session?: string
  run?: string
}

/** Parses `agent:A[ session:S][ run:R]`. Undefined for the empty line of a top-level agent, null for anything else. */
export function parseParent(value: string): ParentReference | undefined | null {
  if (value === "") return undefined
  const match = /^agent:([^ ]+)(?: session:([^ ]+))?(?: run:([^ ]+))?$/.exec(value)
  const [, agent, session, run] = match ?? []
  if (agent === undefined || ![agent, session, run].every(part => part === undefined || isName(part))) return null
  return { agent, session, run }
}
