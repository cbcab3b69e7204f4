/** What tells one managed agent from another (rolling-upgrades.md 6.1). */
export interface Profile {
  name: string
  model: "main" | "helper"
  /** Reference tools of this release that the agent calls directly and may run. */
  tools: readonly string[]
  system: string
}

const READ_TOOLS = ["fs.read", "fs.list"]
const READING = "Read before you answer: use fs.list to see what is there and fs.read to read a file.\n"
const HONEST = `Say what you read and where. When you do not know, say so. You cannot change files or run programs in this release.\n`

/** The managed agents of this release, in the order of the state file. */
export const PROFILES: readonly Profile[] = [
  {
    name: "coder",
    model: "main",
    tools: READ_TOOLS,
    system: `You are coder. You answer questions about the files in /workspace.\n${READING}${HONEST}`,
  },
  {
    name: "reviewer",
    model: "main",
    tools: READ_TOOLS,
    system: `You are reviewer. You read what you are asked to review in /workspace and report faults.\n${READING}Name the file and the line of each fault, the worst first. ${HONEST}`,
  },
  {
    name: "worker",
    model: "helper",
    tools: READ_TOOLS,
    system: `You are worker. You do one small task in /workspace and report its result.\n${READING}${HONEST}`,
  },
]

/** Their names. */
export const AGENT_NAMES: readonly string[] = PROFILES.map(profile => profile.name)

/** Policy lines of a reference tool: one for each managed agent whose policy names it (rolling-upgrades.md 6.1). */
export function toolPolicy(tool: string): string[] {
  return PROFILES.filter(profile => profile.tools.includes(tool)).map(
    profile => `allow ${profile.name}_t tool:${tool} execute`,
  )
}
