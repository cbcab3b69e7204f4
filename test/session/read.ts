// needs: root
import { join } from "node:path"
import t from "tap"
import { CtxError } from "../../src/abi/error.js"
import { beginTemp } from "../../src/session/temp.js"
import {
  linesOf,
  makePlace,
  openLocked,
  recordRun,
  runId,
  Sessions,
  startOf,
  takePicture,
} from "../fixture/session/place.js"

async function take(lines: AsyncIterable<string>): Promise<string[] | string> {
  const taken: string[] = []
  try {
    for await (const line of lines) taken.push(line)
  } catch (e) {
    if (!(e instanceof CtxError) || taken.length > 0) throw e
    return e.code
  }
  return taken
}

t.test(
  "session.10 (stored lines only) resume after 0, 3, the start id, the last seq, beyond it, and an unknown id",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    await recordRun(sessions, "s", startOf(1))
    await recordRun(sessions, "s", startOf(2))
    const session = sessions.find("s")!
    await session.open()
    const all = linesOf(join(place.dir, "s/events.jsonl")).map(line => `${line}\n`)
    t.equal(all.length, 9)
    t.strictSame(await take(session.resumeLines()), all)
    t.strictSame(await take(session.resumeLines(0)), all)
    t.strictSame(await take(session.resumeLines(3)), all.slice(3))
    t.strictSame(await take(session.resumeLines(runId(1))), all.slice(2))
    t.strictSame(await take(session.resumeLines(runId(2))), all.slice(6))
    t.strictSame(await take(session.resumeLines(9)), [])
    t.strictSame(await take(session.resumeLines(14)), [])
    t.strictSame(await take(session.resumeLines("nope")), "ENOENT")
  },
)

t.test("a follower gets each stored line once, in order, exactly as stored", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const session = await sessions.create("s", { cwd: "/workspace" })
  const lines: string[] = []
  const end = session.follow(line => lines.push(line))
  const recorder = await session.begin(startOf(1))
  await Promise.all([
    recorder.event({ type: "usage", step: 0, input_tokens: 1, output_tokens: 2 }),
    recorder.event({ type: "tool_call", id: "c-1", name: "x", arguments: {} }),
    recorder.toolResult({ name: "x", callId: "c-1", content: "out", status: "ok", truncated: true }),
    recorder.settle({ status: "ok", parts: [{ type: "text", text: "end" }] }),
  ])
  end()
  t.strictSame(
    lines,
    linesOf(join(place.dir, "s/events.jsonl"))
      .slice(1)
      .map(line => `${line}\n`),
  )
  session.close()
})

t.test(
  "a lock that is released while rows are being written stays until they are whole; the run is recovered afterwards",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    const session = await sessions.create("s", { cwd: "/workspace" })
    const recorder = await session.begin(startOf(1))
    const writing = recorder.toolResult({ name: "x", callId: "c-1", content: "x".repeat(1 << 20), status: "ok" })
    const queued = recorder.event({ type: "usage", step: 0, input_tokens: 1, output_tokens: 2 }).catch(e => e)
    await new Promise(resolve => setImmediate(resolve))
    session.unlockRun()
    t.equal(session.isLocked, true)
    const other = new Sessions(place).find("s")!
    t.equal(other.tryLockRun(), false)
    t.match(await writing, /"type":"message"/)
    t.match(await queued, { code: "EALREADY" })
    while (session.isLocked) await new Promise(resolve => setTimeout(resolve, 1))
    const beginning = openLocked(sessions, "s").then(async locked => {
      const begun = locked.begin(startOf(2))
      await new Promise(resolve => setImmediate(resolve))
      locked.unlockRun()
      return begun
    })
    t.equal((await beginning).isSettled, true)
    t.equal(session.isLocked, false)
    await other.open()
    t.equal(other.readState(), "error")
    const types = linesOf(join(place.dir, "s/events.jsonl")).map(line => JSON.parse(line).type)
    t.strictSame(types, ["session_created", "start", "message", "error", "done", "start", "error", "done"])
  },
)

t.test("resume gives no line of an append that is under way", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const session = await sessions.create("s", { cwd: "/workspace" })
  const recorder = await session.begin(startOf(1))
  const writing = recorder.event({ type: "tool_call", id: "c-1", name: "x", arguments: { text: "x".repeat(4 << 20) } })
  const early = (await take(session.resumeLines(1))) as string[]
  const line = await writing
  t.ok(early.length === 1 || (early.length === 2 && early[1] === line), `${early.length} lines`)
  t.strictSame(await take(session.resumeLines(2)), [line])
  await recorder.settle({ status: "ok" })
  session.close()
})

t.test("recent rows: the newest that fit, oldest first, with the number left out, none before a reset", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  for (let n = 1; n <= 4; n++) await recordRun(sessions, "s", startOf(n))
  const session = await openLocked(sessions, "s")
  const lines = linesOf(join(place.dir, "s/messages.jsonl")).map(line => `${line}\n`)
  const rows = lines.map(line => JSON.parse(line))
  const size = (from: number) => Buffer.byteLength(lines.slice(from).join(""))
  t.strictSame(await session.readRecent(1 << 20), { rows, omitted: 0 })
  t.strictSame(await session.readRecent(size(0)), { rows, omitted: 0 })
  t.strictSame(await session.readRecent(size(0) - 1), { rows: rows.slice(1), omitted: 1 })
  t.strictSame(await session.readRecent(size(5)), { rows: rows.slice(5), omitted: 5 })
  t.strictSame(await session.readRecent(size(5) + 1), { rows: rows.slice(5), omitted: 5 })
  t.strictSame(await session.readRecent(3), { rows: [], omitted: 8 })
  t.strictSame(await session.readRecent(0), { rows: [], omitted: 8 })
  const recorder = await session.begin(startOf(5))
  await recorder.event({ type: "context_reset", offset: size(0) - size(6) })
  await recorder.settle({ status: "ok" })
  const after = await session.readRecent(1 << 20)
  t.strictSame(after.rows.slice(0, 2), rows.slice(6))
  t.equal(after.rows.length, 3)
  t.equal(after.omitted, 0)
  session.close()
})

t.test("session.12 (temp recorder only) a temp run has ts but no seq and leaves no file", async t => {
  const place = makePlace()
  const before = takePicture(join(place.dir, "../../../../.."))
  const recorder = beginTemp(startOf(1, { scope: "temp" }))
  const lines = [
    recorder.startLine,
    await recorder.event({ type: "usage", step: 0, input_tokens: 1, output_tokens: 2 }),
    await recorder.toolResult({ name: "x", callId: "c-1", content: "out", status: "error" }),
    ...(await recorder.settle({ status: "ok", parts: [{ type: "text", text: "end" }] })),
  ]
  t.strictSame(
    lines.map(line => Object.keys(JSON.parse(line)).slice(0, 3).join(" ")),
    ["ts type id", "ts type run", "ts type run", "ts type run", "ts type run"],
  )
  t.ok(lines.every(line => line.endsWith("\n") && line.indexOf("\n") === line.length - 1))
  t.strictSame(takePicture(join(place.dir, "../../../../..")), before)
  await t.rejects(recorder.event({ type: "usage", step: 1, input_tokens: 1, output_tokens: 2 }), { code: "EALREADY" })
})
