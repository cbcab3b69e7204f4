// The shape of an exported trajectory.
import { readFileSync } from "node:fs"
import fc from "fast-check"
import t from "tap"
import { ATIF_LINE_MAX, ATIF_LINES_MAX, checkTrajectory } from "../../src/abi/atif.js"

// biome-ignore lint/suspicious/noExplicitAny: documents are damaged at any place
type Damaged = any

function vector(): Damaged {
  const text = readFileSync(new URL("../../spec/session-abi.md", import.meta.url), "utf8")
  const start = text.indexOf('{"schema_version":"ATIF-v1.7"')
  return JSON.parse(text.slice(start, text.indexOf("```", start)))
}

t.test("session.18 (document shape) the vector has no issue", async t => {
  t.same(checkTrajectory(vector()), { lines: [], count: 0 })
})

const FAULTS: [string, (d: Damaged) => void, string][] = [
  ["a gap in step_id", d => (d.steps[1].step_id = 3), "steps[1].step_id: must be 2"],
  ["step_id that begins at 0", d => (d.steps[0].step_id = 0), "steps[0].step_id: must be 1"],
  ["no step", d => (d.steps = []), "steps: must have at least one step"],
  ["no steps", d => delete d.steps, "steps: is missing"],
  ["another version", d => (d.schema_version = "ATIF-v1.6"), "schema_version: must be ATIF-v1.7"],
  ["an unknown key", d => (d.nonsense = 1), 'document: unknown key "nonsense"'],
  ["an unknown key of a step", d => (d.steps[0].role = "user"), 'steps[0]: unknown key "role"'],
  [
    "a null",
    d => (d.steps[1].metrics.cached_tokens = null),
    "steps[1].metrics.cached_tokens: must be a whole number from 0",
  ],
  ["a time without a date", d => (d.steps[0].timestamp = "10:00"), "steps[0].timestamp: must be an ISO 8601 time"],
  [
    "a day that is none",
    d => (d.steps[0].timestamp = "2026-13-01T00:00:00Z"),
    "steps[0].timestamp: must be an ISO 8601 time",
  ],
  ["metrics on a user step", d => (d.steps[0].metrics = {}), "steps[0].metrics: belongs to agent steps only"],
  ["calls on a user step", d => (d.steps[0].tool_calls = []), "steps[0].tool_calls: belongs to agent steps only"],
  [
    "a result without its call",
    d => (d.steps[1].observation.results[0].source_call_id = "c-9"),
    "steps[1].observation.results[0].source_call_id: names no call of this step",
  ],
  ["another source", d => (d.steps[0].source = "tool"), "steps[0].source: must be user, system or agent"],
  ["no agent", d => delete d.agent, "agent: is missing"],
  [
    "arguments that are text",
    d => (d.steps[1].tool_calls[0].arguments = "{}"),
    "steps[1].tool_calls[0].arguments: must be an object",
  ],
]

for (const [what, damage, line] of FAULTS) {
  t.test(`session.18 (document shape) a document with ${what} is refused`, async t => {
    const document = vector()
    damage(document)
    const { lines, count } = checkTrajectory(document)
    t.ok(lines.includes(line), lines.join("; "))
    t.equal(count, lines.length)
  })
}

t.test("at most 16 lines of at most 256 printable characters are kept, and all are counted", async t => {
  const document = vector()
  for (let i = 0; i < 40; i++) document[`\u202e\n${"k".repeat(400)}${i}`] = 1
  const { lines, count } = checkTrajectory(document)
  t.equal(lines.length, ATIF_LINES_MAX)
  t.equal(count, 40)
  for (const line of lines) {
    t.ok(line.length <= ATIF_LINE_MAX)
    t.match(line, /^[\x20-\x7e]+$/)
  }
})

t.test("no value makes the check throw", async t => {
  fc.assert(
    fc.property(fc.jsonValue(), fc.constantFrom("steps", "agent", "final_metrics", "session_id", ""), (v, key) => {
      const { count } = checkTrajectory(key === "" ? v : { ...vector(), [key]: v })
      return Number.isInteger(count)
    }),
  )
  t.pass()
})
