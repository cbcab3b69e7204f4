// Status words of files and output (`spec/README.md` 2.2), word by word.

/** `/ctx/status` `state`. */
export const MOUNT_STATES = ["mounted", "stopping"] as const

/** Session `state`. */
export const SESSION_STATES = ["active", "idle", "done", "error"] as const

/** Session state as displayed. */
export const SESSION_DISPLAY_STATES = [...SESSION_STATES, "interrupted"] as const

/** `done` event `status`. */
export const DONE_STATUSES = ["ok", "error", "cancelled"] as const

/** Agent `.d/status`. */
export const AGENT_STATUSES = ["start", "ready", "busy", "idle", "stopping", "dead"] as const

/** Tool `.d/status`. */
export const TOOL_STATUSES = ["ready", "missing"] as const

/** Model `.d/status`. */
export const MODEL_STATUSES = ["ready", "unconfigured"] as const

/** Child channel `status`. */
export const CHANNEL_STATUSES = ["pending", "active", "done", "error", "cancelled"] as const

/** Schedule state. */
export const SCHEDULE_STATES = ["blocked", "ready", "pending", "active", "done", "error", "cancelled"] as const

/** Terminal state. */
export const TERMINAL_STATES = ["running", "exited"] as const

/** First word of a `ctx doctor` line. */
export const DOCTOR_WORDS = ["ok", "missing", "invalid", "stale", "stale-user", "unexpected"] as const

/** First word of a prune line of `ctx storage update`. */
export const PRUNE_WORDS = ["pruned", "kept"] as const

/** `phase` of a `status` reply (`session-abi.md` 6.6). */
export const PHASES = ["idle", "queued", "model", "tool", "approval", "input", "stopping"] as const

export type SessionState = (typeof SESSION_STATES)[number]
export type DoneStatus = (typeof DONE_STATUSES)[number]
export type AgentStatus = (typeof AGENT_STATUSES)[number]
export type DoctorWord = (typeof DOCTOR_WORDS)[number]
export type Phase = (typeof PHASES)[number]

function known<W extends string>(words: readonly W[], s: string, unknown: W): W {
  return (words as readonly string[]).includes(s) ? (s as W) : unknown
}

/** A session state as a reader shows it: an unknown word is `error`. */
export function showSessionState(s: string): SessionState {
  return known(SESSION_STATES, s, "error")
}

/** A `done` status as a reader shows it: an unknown word is `error`. */
export function showDoneStatus(s: string): DoneStatus {
  return known(DONE_STATUSES, s, "error")
}

/** An agent status as a reader shows it: an unknown word is `dead`. */
export function showAgentStatus(s: string): AgentStatus {
  return known(AGENT_STATUSES, s, "dead")
}

/** A tool status as a reader shows it: an unknown word is `missing`. */
export function showToolStatus(s: string): (typeof TOOL_STATUSES)[number] {
  return known(TOOL_STATUSES, s, "missing")
}

/** A model status as a reader shows it: an unknown word is `unconfigured`. */
export function showModelStatus(s: string): (typeof MODEL_STATUSES)[number] {
  return known(MODEL_STATUSES, s, "unconfigured")
}

/** A child channel's status as a reader shows it: an unknown word is `error`. */
export function showChannelStatus(s: string): (typeof CHANNEL_STATUSES)[number] {
  return known(CHANNEL_STATUSES, s, "error")
}

/** A terminal state as a reader shows it: an unknown word is `exited`. */
export function showTerminalState(s: string): (typeof TERMINAL_STATES)[number] {
  return known(TERMINAL_STATES, s, "exited")
}
