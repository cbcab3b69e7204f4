// needs: root
import { chmodSync, chownSync, mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { performance } from "node:perf_hooks"
import t from "tap"
import { checkTrajectory } from "../../src/abi/atif.js"
import { checkSteps, Trajectory } from "../../src/session/export.js"
import type { Place } from "../../src/session/place.js"
import { startTotals } from "../../src/session/trajectory.js"
import { beginRun, emptyEnv, libDir, makePlace, recordRun, Sessions, startOf } from "../fixture/session/place.js"
import { OWNER } from "../harness/product.js"
import { startProgram, stopProgram } from "../harness/program.js"

const SPEC = readFileSync(new URL("../../spec/session-abi.md", import.meta.url), "utf8")

// The blocks of section 14: messages, events, expected document.
function readVector(): [string, string, string] {
  const section = SPEC.slice(SPEC.indexOf("## 14. ATIF"), SPEC.indexOf("## 15."))
  const blocks = [...section.matchAll(/```jsonl?\n([\s\S]*?)```/g)].map(match => match[1]!)
  return [blocks[0]!, blocks[1]!, blocks[2]!]
}

function writeSession(place: Place, messages: string, events: string, meta: string): void {
  const dir = join(place.dir, "build-fix")
  mkdirSync(join(dir, "context"), { recursive: true })
  const files = { "messages.jsonl": messages, "events.jsonl": events, "meta.json": meta, state: "done\n" }
  for (const [name, text] of Object.entries(files)) writeFileSync(join(dir, name), text, { mode: 0o600 })
}

async function print(
  place: Place,
  session = "build-fix",
): Promise<{ document: Record<string, unknown>; text: string; dropped: number }> {
  const trajectory = await Trajectory.open(place.dir, "coder", session)
  try {
    t.strictSame(trajectory.issues, { lines: [], count: 0 })
    let text = ""
    for await (const piece of trajectory.format()) text += piece
    return { document: JSON.parse(text), text, dropped: trajectory.dropped }
  } finally {
    trajectory.close()
  }
}

t.test(
  "session.18 (vector) the vector of section 14 gives exactly its document, in its key order, and drops one result",
  async t => {
    const [messages, events, expected] = readVector()
    const place = makePlace()
    writeSession(place, messages, events, '{"client":"ctx","scope":"private","model":"main"}\n')
    const { document, text, dropped } = await print(place)
    t.strictSame(document, JSON.parse(expected))
    t.equal(text, `${JSON.stringify(JSON.parse(expected), null, 2)}\n`)
    t.equal(dropped, 1)
  },
)

t.test("session.18 (no call) a session whose only tool result has no call has no observation", async t => {
  const [messages, events] = readVector()
  const place = makePlace()
  const without = events.split("\n").filter(line => line !== "" && !line.includes('"tool_call"'))
  const numbered = without.map((line, i) => `${line.replace(/"seq":\d+/, `"seq":${i + 1}`)}\n`).join("")
  writeSession(place, messages.replace(/.*"c-9".*\n/, ""), numbered, "{}\n")
  const { document, dropped } = await print(place)
  const steps = document.steps as Record<string, unknown>[]
  t.equal(steps.length, 2)
  t.notOk("observation" in steps[1]! || "tool_calls" in steps[1]!)
  t.equal(dropped, 1)
  t.strictSame(document.agent, { name: "cortexfs", version: "0.1.0" })
})

t.test("session.18 (step_id gap) a document with a step_id gap is refused", async t => {
  const document = JSON.parse(readVector()[2])
  t.equal(checkTrajectory(document).count, 0)
  document.steps[1].step_id = 3
  t.equal(checkTrajectory(document).count, 1)
  async function* steps() {
    yield* document.steps
  }
  const { steps: _, final_metrics: __, ...head } = document
  const issues = await checkSteps(head, steps(), startTotals())
  t.strictSame(issues, { lines: ["steps[1].step_id: must be 2"], count: 1 })
})

t.test("session.18 (empty session, store level) a session without rows gives ENODATA", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  ;(await sessions.create("s", { cwd: "/workspace" })).close()
  await t.rejects(Trajectory.open(place.dir, "coder", "s"), { code: "ENODATA" })
  await t.rejects(Trajectory.open(place.dir, "coder", "none"), { code: "ENOENT" })
})

t.test("a run without assistant text and one that only called give their steps; issues are bounded", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const first = await beginRun(sessions, "s", startOf(1))
  await first.event({ type: "tool_call", id: "c-1", name: "fs.read", arguments: {} })
  await first.settle({ status: "error", error: { code: "EIO", message: "no output" } })
  sessions.close()
  const second = await beginRun(sessions, "s", startOf(2))
  await second.settle({ status: "error", error: { code: "EIO", message: "no output" } })
  sessions.close()
  await recordRun(sessions, "s", startOf(3, { content: "line\u2028separator\n" }))
  const { document } = await print(place, "s")
  const steps = document.steps as Record<string, unknown>[]
  t.strictSame(
    steps.map(step => step.source),
    ["user", "agent", "user", "user", "agent"],
  )
  t.strictSame(
    steps.map(step => step.message),
    ["input 1", "", "input 2", "line\u2028separator\n", "answer to line\u2028separator\n"],
  )
  t.strictSame(document.final_metrics, { total_prompt_tokens: 3, total_completion_tokens: 4, total_steps: 5 })
  const bad = Array.from({ length: 40 }, (_, i) => ({
    step_id: i + 1,
    source: "user",
    message: "",
    ["k".repeat(400)]: 1,
  }))
  async function* many() {
    yield* bad
  }
  const head = { schema_version: "ATIF-v1.7", agent: { name: "ctx", version: "0.1.0" } }
  const issues = await checkSteps(head, many(), startTotals())
  t.equal(issues.count, 40)
  t.equal(issues.lines.length, 16)
  t.ok(issues.lines.every(line => line.length <= 256))
})

t.test("a damaged history stops the trajectory with EIO and the line number", async t => {
  const [messages, events] = readVector()
  const place = makePlace()
  writeSession(place, messages, events.replace('{"seq":4', '{"seq":5'), "{}\n")
  await t.rejects(Trajectory.open(place.dir, "coder", "build-fix"), {
    code: "EIO",
    message: /events\.jsonl line 4 .*seq-gap/,
  })
})

t.test("session.26 (store level) a trajectory of 100 MiB stopped in mid-file delays no send", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const recorder = await beginRun(sessions, "s", startOf(1))
  for (let i = 0; i < 50; i++) {
    await recorder.toolResult({ name: "fs.read", callId: `c-${i}`, content: "x".repeat(1 << 20), status: "ok" })
  }
  await recorder.settle({ status: "ok" })
  sessions.find("s")!.unlockRun()
  const lib = await libDir()
  const script = `import("${lib}/dist/session/export.js").then(async ({ Trajectory }) => {
    const trajectory = await Trajectory.open(process.argv[1], "coder", "s")
    for await (const piece of trajectory.format()) process.stdout.write(piece)
  })`
  const child = startProgram([...emptyEnv(), process.execPath, "-e", script, place.dir], {
    uid: OWNER,
    stdio: ["ignore", "ignore", "inherit"],
  })
  t.teardown(() => stopProgram(child))
  const readBytes = () => {
    try {
      return Number(/rchar: (\d+)/.exec(readFileSync(`/proc/${child.pid}/io`, "utf8"))![1])
    } catch {
      return 0
    }
  }
  // Stopped as soon as it has read some of the messages, long before their end.
  const deadline = Date.now() + 20_000
  while (readBytes() < 20 << 20 && Date.now() < deadline) await new Promise(resolve => setTimeout(resolve, 2))
  t.ok(child.kill("SIGSTOP"))
  await new Promise(resolve => setTimeout(resolve, 50))
  t.match(readFileSync(`/proc/${child.pid}/stat`, "utf8"), /\) T /, "it is stopped")
  t.ok(readBytes() < 100 << 20, `in mid-file: ${readBytes()} bytes read`)
  const begin = performance.now()
  await recordRun(sessions, "s", startOf(2))
  t.ok(performance.now() - begin < 2000, "the send went on")
  child.kill("SIGCONT")
})

t.test("a trajectory needs no write permission and writes nothing", async t => {
  const [messages, events] = readVector()
  const place = makePlace()
  writeSession(place, messages, events, "{}\n")
  chownSync(join(place.dir, "build-fix"), OWNER, OWNER)
  chmodSync(join(place.dir, "build-fix"), 0o500)
  const { takePicture } = await import("../fixture/session/place.js")
  const before = takePicture(place.dir)
  await print(place)
  t.strictSame(takePicture(place.dir), before)
})
