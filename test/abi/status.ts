// Status words and product facts against the documents.
import { readFileSync } from "node:fs"
import t from "tap"
import { ERROR_WORDS } from "../../src/abi/errno.js"
import { ABI, VERSION } from "../../src/abi/product.js"
import * as status from "../../src/abi/status.js"

const README = readFileSync(new URL("../../spec/README.md", import.meta.url), "utf8")

/** Row of table 2.2: where, words, owner document, unknown is shown as. */
function rows(): Map<string, { words: string; unknown: string }> {
  const section = README.slice(README.indexOf("### 2.2"), README.indexOf("## 3."))
  const found = new Map<string, { words: string; unknown: string }>()
  for (const line of section
    .split("\n")
    .filter(line => line.startsWith("| "))
    .slice(2)) {
    const [, where, words, , unknown] = line.split("|").map(cell => cell.trim())
    found.set(where!.replaceAll("`", ""), { words: words!, unknown: unknown!.replaceAll("`", "") })
  }
  return found
}

const CONSTANTS: Record<string, readonly string[]> = {
  "/ctx/status state": status.MOUNT_STATES,
  "session state": status.SESSION_STATES,
  "done event status": status.DONE_STATUSES,
  "agent .d/status": status.AGENT_STATUSES,
  "tool .d/status": status.TOOL_STATUSES,
  "model .d/status": status.MODEL_STATUSES,
  "child channel status": status.CHANNEL_STATUSES,
  "schedule state": status.SCHEDULE_STATES,
  "terminal state": status.TERMINAL_STATES,
  "ctx doctor first word": status.DOCTOR_WORDS,
  "storage update": status.PRUNE_WORDS,
}

t.test("spec.5 the status words of 2.2 are the constants, word by word", async t => {
  const table = rows()
  for (const [where, words] of Object.entries(CONSTANTS))
    t.equal(table.get(where)?.words, `\`${words.join(" ")}\``, where)
  t.equal(table.get("session, displayed")?.words, "these and `interrupted`")
  t.same(status.SESSION_DISPLAY_STATES, [...status.SESSION_STATES, "interrupted"])
  t.equal(table.get("error line")?.words, `errno name, \`${ERROR_WORDS.join(" ")}\``)
  t.equal(table.size, Object.keys(CONSTANTS).length + 2)
})

t.test("spec.5 an unknown word is shown as the last column says and a known one as itself", async t => {
  const shows: [string, (s: string) => string][] = [
    ["session state", status.showSessionState],
    ["done event status", status.showDoneStatus],
    ["agent .d/status", status.showAgentStatus],
    ["tool .d/status", status.showToolStatus],
    ["model .d/status", status.showModelStatus],
    ["child channel status", status.showChannelStatus],
    ["terminal state", status.showTerminalState],
  ]
  for (const [where, show] of shows) {
    t.equal(show("nonsense"), rows().get(where)?.unknown, where)
    for (const word of CONSTANTS[where]!) t.equal(show(word), word)
  }
})

t.test("version and ABI number are those of package.json and the specification", async t => {
  const pack = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as { version: string }
  t.equal(VERSION, pack.version)
  t.equal(ABI, 1)
  t.match(README, "`abi` in `/ctx/status` is `1`")
})
