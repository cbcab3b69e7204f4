// needs: root
import { appendFileSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { verifyNamed } from "../../src/session/reader.js"
import type { Reason } from "../../src/session/scan.js"
import {
  linesOf,
  makePlace,
  payloadOf,
  recordRun,
  runChild,
  runId,
  Sessions,
  startOf,
  takePicture,
} from "../fixture/session/place.js"

interface Case {
  file: "messages.jsonl" | "events.jsonl"
  what: string
  reason: Reason
  line: number
  change: (bytes: Buffer) => Buffer
}

const split = (bytes: Buffer): string[] => bytes.toString("latin1").slice(0, -1).split("\n")
const join1 = (lines: string[]): Buffer => Buffer.from(`${lines.join("\n")}\n`, "latin1")
const changeLine = (n: number, change: (line: string) => string) => (bytes: Buffer) => {
  const lines = split(bytes)
  lines[n - 1] = change(lines[n - 1]!)
  return join1(lines)
}
const insertLine = (n: number, line: string) => (bytes: Buffer) => join1(split(bytes).toSpliced(n - 1, 0, line))
const withSeq = (line: string, seq: number) => line.replace(/^\{"seq":\d+/, `{"seq":${seq}`)

// Two runs: messages 1 to 4; events 1 created, 2 start, 3 usage, 4 message, 5 done, 6 start, 7 usage, 8 message, 9 done.
const CASES: Case[] = [
  { file: "messages.jsonl", what: "last LF dropped", reason: "torn-tail", line: 4, change: b => b.subarray(0, -1) },
  { file: "events.jsonl", what: "last LF dropped", reason: "torn-tail", line: 9, change: b => b.subarray(0, -1) },
  {
    file: "messages.jsonl",
    what: "half a line",
    reason: "torn-tail",
    line: 5,
    change: b => Buffer.concat([b, Buffer.from('{"role":')]),
  },
  { file: "messages.jsonl", what: "a brace in line 2", reason: "bad-json", line: 2, change: insertLine(2, "{") },
  { file: "events.jsonl", what: "a brace in line 2", reason: "bad-json", line: 2, change: insertLine(2, "{") },
  { file: "events.jsonl", what: "an empty line", reason: "bad-json", line: 3, change: insertLine(3, "") },
  {
    file: "events.jsonl",
    what: "a duplicate key",
    reason: "bad-json",
    line: 5,
    change: changeLine(5, l => l.replace("}", ',"status":"ok"}')),
  },
  {
    file: "messages.jsonl",
    what: "a byte order mark",
    reason: "bad-json",
    line: 1,
    change: b => Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), b]),
  },
  {
    file: "messages.jsonl",
    what: "a stray byte",
    reason: "bad-utf8",
    line: 3,
    change: changeLine(3, l => l.replace("input", "in\xffput")),
  },
  { file: "messages.jsonl", what: "a list", reason: "not-object", line: 2, change: insertLine(2, "[]") },
  { file: "events.jsonl", what: "null", reason: "not-object", line: 1, change: insertLine(1, "null") },
  {
    file: "messages.jsonl",
    what: "9 MiB in a row",
    reason: "row-too-long",
    line: 2,
    change: insertLine(2, `{"role":"${"x".repeat(9 << 20)}"}`),
  },
  {
    file: "messages.jsonl",
    what: "no content",
    reason: "bad-field",
    line: 1,
    change: changeLine(1, l => l.replace('"content"', '"contents"')),
  },
  {
    file: "messages.jsonl",
    what: "an unknown role",
    reason: "bad-field",
    line: 2,
    change: changeLine(2, l => l.replace("assistant", "assistent")),
  },
  {
    file: "messages.jsonl",
    what: "a number for run",
    reason: "bad-field",
    line: 1,
    change: changeLine(1, l => l.replace(/"run":"[^"]+"/, '"run":7')),
  },
  {
    file: "messages.jsonl",
    what: "a bad ts",
    reason: "bad-field",
    line: 1,
    change: changeLine(1, l => l.replace(/"ts":"[^"]+"/, '"ts":"today"')),
  },
  {
    file: "events.jsonl",
    what: "no status",
    reason: "bad-field",
    line: 5,
    change: changeLine(5, l => l.replace(',"status":"ok"', "")),
  },
  {
    file: "events.jsonl",
    what: "line 3 deleted",
    reason: "seq-gap",
    line: 3,
    change: b => join1(split(b).toSpliced(2, 1)),
  },
  {
    file: "events.jsonl",
    what: "line 1 repeated",
    reason: "seq-gap",
    line: 2,
    change: b => join1([split(b)[0]!, ...split(b)]),
  },
  {
    file: "events.jsonl",
    what: "a done twice with another status",
    reason: "contradiction",
    line: 10,
    change: b => join1([...split(b), withSeq(split(b)[8]!, 10).replace('"ok"', '"error"')]),
  },
  {
    file: "events.jsonl",
    what: "a done twice",
    reason: "contradiction",
    line: 10,
    change: b => join1([...split(b), withSeq(split(b)[8]!, 10)]),
  },
  {
    file: "events.jsonl",
    what: "a usage row after done",
    reason: "contradiction",
    line: 10,
    change: b => join1([...split(b), withSeq(split(b)[2]!, 10)]),
  },
  {
    file: "events.jsonl",
    what: "a start of other facts",
    reason: "contradiction",
    line: 2,
    change: changeLine(2, l => l.replace('"/workspace"', '"/srv"')),
  },
  {
    file: "messages.jsonl",
    what: "a second user row of one id",
    reason: "contradiction",
    line: 5,
    change: b => join1([...split(b), split(b)[0]!.replace("input 1", "input 7")]),
  },
  {
    file: "messages.jsonl",
    what: "two runs of one client id",
    reason: "contradiction",
    line: 3,
    change: changeLine(3, l => l.replace('"m-2"', '"m-1"')),
  },
  {
    file: "events.jsonl",
    what: "a start without a user row",
    reason: "contradiction",
    line: 6,
    change: changeLine(6, l => l.replaceAll(runId(2), runId(3))),
  },
]

t.test(
  "session.14 (send, resume and replay at store level, verify) damage gives EIO, changes no file, and verify names file, line, offset and reason",
  async t => {
    for (const { file, what, reason, line, change } of CASES) {
      const place = makePlace()
      const sessions = new Sessions(place)
      await recordRun(sessions, "s", startOf(1))
      await recordRun(sessions, "s", startOf(2))
      const path = join(place.dir, "s", file)
      const bytes = change(readFileSync(path))
      writeFileSync(path, bytes)
      const before = takePicture(place.dir)
      const title = `${file}: ${what}`
      // The warm claims of the process that recorded, and a process that has never opened it.
      for (const opener of [sessions, new Sessions(place)]) {
        const session = opener.find("s")!
        await t.rejects(session.open(), { code: "EIO" }, title)
        t.throws(() => session.findClaim("m-1"), { code: "internal" })
      }
      const [messages, events] = await verifyNamed(place.dir, "s")
      const proof = file === "messages.jsonl" ? messages! : events!
      const offset = split(bytes.at(-1) === 10 ? bytes : Buffer.concat([bytes, Buffer.from("\n")]))
        .slice(0, line - 1)
        .reduce((size, text) => size + text.length + 1, 0)
      t.strictSame(proof.damage, { line, offset, reason }, title)
      t.equal((file === "messages.jsonl" ? events : messages)!.damage, undefined, `${title}: the other file is good`)
      t.strictSame(takePicture(place.dir), before, `${title}: unchanged`)
    }
  },
)

t.test(
  "session.4 (rows 14 and 15 at store level) a replay or a new id on a damaged history answers EIO and changes nothing",
  async t => {
    for (const change of [(b: Buffer) => b.subarray(0, -1), CASES.find(c => c.what === "a done twice")!.change]) {
      const place = makePlace()
      await recordRun(new Sessions(place), "s", startOf(1))
      await recordRun(new Sessions(place), "s", startOf(2))
      const path = join(place.dir, "s/events.jsonl")
      writeFileSync(path, change(readFileSync(path)))
      const before = takePicture(place.dir)
      for (const n of [1, 2, 3]) {
        const ended = await runChild(place, { session: "s", id: `m-${n}`, run: runId(n), content: `input ${n}` })
        t.match(ended.stdout, /^\{"type":"error","code":"EIO"[^\n]*\n$/)
      }
      t.strictSame(takePicture(place.dir), before)
    }
  },
)

t.test("unknown types and fields are ignored, whatever run they name", async t => {
  const place = makePlace()
  await recordRun(new Sessions(place), "s", startOf(1))
  const events = join(place.dir, "s/events.jsonl")
  const later = { seq: 6, ts: "2026-01-01T00:00:00.000Z", type: "later.thing", colour: "red" }
  appendFileSync(events, `${JSON.stringify(later)}\n${JSON.stringify({ ...later, seq: 7, run: runId(7) })}\n`)
  const session = new Sessions(place).find("s")!
  await session.open()
  t.match(await session.replay("m-1", payloadOf(1)), /"type":"done"/)
})

t.test("rows with import are exempt from contradictions", async t => {
  const place = makePlace()
  await recordRun(new Sessions(place), "s", startOf(1))
  const messages = join(place.dir, "s/messages.jsonl")
  const row = JSON.parse(linesOf(messages)[0]!)
  appendFileSync(messages, `${JSON.stringify({ ...row, import: { source: "x" }, content: "other" })}\n`)
  await new Sessions(place).find("s")!.open()
  t.strictSame(
    (await verifyNamed(place.dir, "s")).map(proof => proof.damage),
    [undefined, undefined],
  )
})

t.test("a missing history file gives EIO, not an empty history", async t => {
  const place = makePlace()
  await recordRun(new Sessions(place), "s", startOf(1))
  const { unlinkSync } = await import("node:fs")
  unlinkSync(join(place.dir, "s/events.jsonl"))
  await t.rejects(new Sessions(place).find("s")!.open(), { code: "EIO" })
})

t.test("a writer that appends behind our back is noticed by the next append, and nothing is cut", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const session = await sessions.create("s", { cwd: "/workspace" })
  const recorder = await session.begin(startOf(1))
  const events = join(place.dir, "s/events.jsonl")
  appendFileSync(events, "not ours\n")
  await t.rejects(recorder.event({ type: "context_reset", offset: 0 }), { code: "EIO" })
  t.ok(readFileSync(events, "utf8").endsWith("not ours\n"))
  recorder.abandon()
  await t.rejects(session.open(), { code: "EIO" })
  session.close()
})
