// needs: root
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import type { Place } from "../../src/session/place.js"
import { verifyNamed } from "../../src/session/reader.js"
import type { Reason } from "../../src/session/scan.js"
import {
  linesOf,
  makePlace,
  openLocked,
  recordRun,
  rowsOf,
  runChild,
  runId,
  Sessions,
  startOf,
  takePicture,
} from "../fixture/session/place.js"

type File = "messages.jsonl" | "events.jsonl"

interface Case {
  what: string
  /** Where the damage is found; `line` may be one behind the last. */
  file: File
  line: number
  reason?: Reason
  edit: Partial<Record<File, (lines: string[]) => string[]>>
}

const drop = (n: number) => (lines: string[]) => lines.toSpliced(n - 1, 1)
const cutTo = (n: number) => (lines: string[]) => lines.slice(0, n)
const change = (n: number, from: string | RegExp, to: string) => (lines: string[]) =>
  lines.toSpliced(n - 1, 1, lines[n - 1]!.replace(from, to))
const insert = (n: number, copyOf: number, from: string, to: string) => (lines: string[]) =>
  lines.toSpliced(n - 1, 0, lines[copyOf - 1]!.replaceAll(from, to))
const number = (lines: string[]) => lines.map((line, i) => line.replace(/^\{"seq":\d+/, `{"seq":${i + 1}`))

// Two runs, each with two tool rows. Messages: 1 user, 2 tool, 3 tool, 4 assistant; 5 user, 6 tool, 7 tool, 8 assistant.
// Events: 1 created; 2 start, 3 call, 4 tool, 5 call, 6 tool, 7 usage, 8 assistant, 9 done; 10 to 17 the same of run 2.
async function makeHistory(): Promise<Place> {
  const place = makePlace()
  const sessions = new Sessions(place)
  for (const n of [1, 2]) {
    const recorder = await (await openLocked(sessions, "s")).begin(startOf(n))
    for (const callId of ["c-1", "c-2"]) {
      await recorder.event({ type: "tool_call", id: callId, name: "fs.read", arguments: {} })
      await recorder.toolResult({ name: "fs.read", callId, content: `${callId} of ${n}`, status: "ok" })
    }
    await recorder.event({ type: "usage", step: 0, input_tokens: 1, output_tokens: 1 })
    await recorder.settle({ status: "ok", parts: [{ type: "text", text: `answer ${n}` }] })
    sessions.find("s")!.unlockRun()
  }
  return place
}

function editHistory(place: Place, edit: Case["edit"]): void {
  for (const [file, change] of Object.entries(edit)) {
    const path = join(place.dir, "s", file)
    const lines = change(linesOf(path))
    writeFileSync(path, lines.map(line => `${line}\n`).join(""))
  }
}

const CASES: Case[] = [
  { what: "events emptied", file: "events.jsonl", line: 1, edit: { "events.jsonl": cutTo(0) } },
  {
    what: "events emptied, one run",
    file: "events.jsonl",
    line: 1,
    edit: { "events.jsonl": cutTo(0), "messages.jsonl": cutTo(4) },
  },
  {
    what: "events emptied, one user row",
    file: "events.jsonl",
    line: 1,
    edit: { "events.jsonl": cutTo(0), "messages.jsonl": cutTo(1) },
  },
  { what: "events cut to the creation", file: "events.jsonl", line: 2, edit: { "events.jsonl": cutTo(1) } },
  {
    what: "events cut to the creation, one run",
    file: "events.jsonl",
    line: 2,
    edit: { "events.jsonl": cutTo(1), "messages.jsonl": cutTo(4) },
  },
  { what: "events cut in the first run", file: "events.jsonl", line: 8, edit: { "events.jsonl": cutTo(7) } },
  { what: "events cut after the first run", file: "events.jsonl", line: 10, edit: { "events.jsonl": cutTo(9) } },
  { what: "events cut before two results", file: "events.jsonl", line: 12, edit: { "events.jsonl": cutTo(11) } },
  {
    what: "events of the first run gone",
    file: "events.jsonl",
    line: 2,
    edit: { "events.jsonl": l => number(l.toSpliced(1, 8)) },
  },
  { what: "the first done gone", file: "events.jsonl", line: 9, edit: { "events.jsonl": l => number(drop(9)(l)) } },
  {
    what: "an event of a run that never was",
    file: "events.jsonl",
    line: 10,
    edit: { "events.jsonl": l => number(insert(10, 7, runId(1), runId(7))(l)) },
  },
  {
    what: "an event before its start",
    file: "events.jsonl",
    line: 10,
    edit: { "events.jsonl": l => number(insert(10, 15, "", "")(l)) },
  },
  {
    what: "a second start",
    file: "events.jsonl",
    line: 3,
    edit: { "events.jsonl": l => number(insert(3, 2, "", "")(l)) },
  },
  {
    what: "an assistant row of a run that never was",
    file: "messages.jsonl",
    line: 5,
    edit: { "messages.jsonl": insert(5, 4, runId(1), runId(7)) },
  },
  {
    what: "a tool row of a run that never was",
    file: "messages.jsonl",
    line: 9,
    edit: { "messages.jsonl": insert(9, 6, runId(2), runId(7)) },
  },
  {
    what: "a tool row before any user row",
    file: "messages.jsonl",
    line: 1,
    edit: { "messages.jsonl": insert(1, 2, "", "") },
  },
  {
    what: "a tool row of the run before",
    file: "messages.jsonl",
    line: 6,
    edit: { "messages.jsonl": insert(6, 2, "", "") },
  },
  {
    what: "a tool row after the answer",
    file: "messages.jsonl",
    line: 5,
    edit: { "messages.jsonl": insert(5, 2, "", "") },
  },
  { what: "two answers", file: "messages.jsonl", line: 5, edit: { "messages.jsonl": insert(5, 4, "", "") } },
  { what: "a user row twice", file: "messages.jsonl", line: 9, edit: { "messages.jsonl": insert(9, 1, "", "") } },
  {
    what: "the first tool row made an answer",
    file: "messages.jsonl",
    line: 3,
    edit: { "messages.jsonl": change(2, '"tool"', '"assistant"') },
  },
  {
    what: "the last rows made one answer",
    file: "events.jsonl",
    line: 6,
    edit: { "messages.jsonl": l => drop(4)(change(3, '"role":"tool"', '"role":"assistant"')(l)) },
  },
  { what: "the answer removed", file: "events.jsonl", line: 16, edit: { "messages.jsonl": drop(8) } },
  { what: "the first answer removed", file: "events.jsonl", line: 8, edit: { "messages.jsonl": drop(4) } },
  { what: "a tool row removed", file: "events.jsonl", line: 4, edit: { "messages.jsonl": drop(2) } },
  {
    what: "one tool row more than results",
    file: "events.jsonl",
    line: 16,
    edit: { "messages.jsonl": insert(8, 7, "", "") },
  },
  {
    what: "tool rows in another order",
    file: "events.jsonl",
    line: 4,
    edit: { "messages.jsonl": l => drop(4)(insert(2, 3, "", "")(l)) },
  },
  {
    what: "another result",
    file: "events.jsonl",
    line: 6,
    edit: { "messages.jsonl": change(3, "c-2 of 1", "c-2 of 9") },
  },
  { what: "another tool", file: "events.jsonl", line: 4, edit: { "events.jsonl": change(4, "fs.read", "fs.list") } },
  {
    what: "another answer",
    file: "events.jsonl",
    line: 8,
    edit: { "events.jsonl": change(8, "answer 1", "answer 7") },
  },
  {
    what: "the message of an answer removed",
    file: "events.jsonl",
    line: 16,
    edit: { "events.jsonl": l => number(drop(16)(l)) },
  },
  {
    what: "the message of a result removed",
    file: "events.jsonl",
    line: 5,
    edit: { "events.jsonl": l => number(drop(4)(l)) },
  },
  {
    what: "CR before LF in the messages",
    file: "messages.jsonl",
    line: 3,
    reason: "bad-json",
    edit: { "messages.jsonl": change(3, /$/, "\r") },
  },
  {
    what: "CR before LF in the events",
    file: "events.jsonl",
    line: 1,
    reason: "bad-json",
    edit: { "events.jsonl": l => l.map(line => `${line}\r`) },
  },
  {
    what: "half a character in a value",
    file: "messages.jsonl",
    line: 1,
    reason: "bad-utf8",
    edit: { "messages.jsonl": change(1, "input 1", "input \\ud800") },
  },
  {
    what: "half a character in a key",
    file: "events.jsonl",
    line: 3,
    reason: "bad-utf8",
    edit: { "events.jsonl": change(3, '"arguments":{', '"arguments":{"\\uDC00":1') },
  },
]

t.test(
  "session.14 (proof at store level) a history that no recorder and no crash leaves gives EIO, changes no file, and verify names file, line, offset and reason",
  async t => {
    const untouched = await makeHistory()
    t.strictSame(rowsOf(join(untouched.dir, "s/messages.jsonl")).length, 8)
    t.strictSame(rowsOf(join(untouched.dir, "s/events.jsonl")).length, 17)
    for (const { what, file, line, reason, edit } of CASES) {
      const place = await makeHistory()
      editHistory(place, edit)
      const before = takePicture(place.dir)
      await t.rejects(new Sessions(place).find("s")!.open(), { code: "EIO" }, what)
      const [messages, events] = await verifyNamed(place.dir, "s")
      const [bad, good] = file === "messages.jsonl" ? [messages!, events!] : [events!, messages!]
      const bytes = readFileSync(join(place.dir, "s", file), "latin1")
        .split("\n")
        .slice(0, line - 1)
      const offset = bytes.reduce((size, text) => size + text.length + 1, 0)
      t.strictSame(bad.damage, { line, offset, reason: reason ?? "contradiction" }, what)
      t.equal(good.damage, undefined, `${what}: the other file is good`)
      t.strictSame(takePicture(place.dir), before, `${what}: unchanged`)
    }
  },
)

t.test(
  "session.4 (row 14 at store level) replay and send on an emptied events.jsonl answer EIO and change nothing",
  async t => {
    const place = await makeHistory()
    editHistory(place, { "events.jsonl": cutTo(0) })
    const before = takePicture(place.dir)
    for (const n of [1, 2, 3]) {
      const ended = await runChild(place, { session: "s", id: `m-${n}`, run: runId(n), content: `input ${n}` })
      t.match(ended.stdout, /^\{"type":"error","code":"EIO"[^\n]*\n$/)
    }
    t.strictSame(takePicture(place.dir), before)
  },
)

t.test(
  "what a crash leaves of the last run is accepted and recovered once, and the next run can be proven",
  async t => {
    const left: { what: string; edit: Case["edit"] }[] = [
      { what: "user row without start", edit: { "messages.jsonl": cutTo(5), "events.jsonl": cutTo(9) } },
      { what: "start", edit: { "messages.jsonl": cutTo(5), "events.jsonl": cutTo(10) } },
      { what: "tool row without event", edit: { "messages.jsonl": cutTo(6), "events.jsonl": cutTo(11) } },
      { what: "tool row with event", edit: { "messages.jsonl": cutTo(6), "events.jsonl": cutTo(12) } },
      { what: "second tool row without event", edit: { "messages.jsonl": cutTo(7), "events.jsonl": cutTo(13) } },
      { what: "answer without event", edit: { "events.jsonl": cutTo(15) } },
      { what: "answer with event, no done", edit: { "events.jsonl": cutTo(16) } },
    ]
    for (const { what, edit } of left) {
      const place = await makeHistory()
      editHistory(place, edit)
      const clean = async (when: string) => {
        const proof = await verifyNamed(place.dir, "s")
        t.strictSame(
          proof.map(({ damage }) => damage),
          [undefined, undefined],
          `${what}: ${when}`,
        )
      }
      await clean("as left")
      await new Sessions(place).find("s")!.open()
      const types = rowsOf(join(place.dir, "s/events.jsonl")).map(({ type }) => type)
      t.strictSame(types.slice(-2), ["error", "done"], what)
      await clean("recovered")
      const before = takePicture(place.dir)
      await new Sessions(place).find("s")!.open()
      t.strictSame(takePicture(place.dir), before, `${what}: a second opening changes nothing`)
      await recordRun(new Sessions(place), "s", startOf(3))
      await clean("with a run behind it")
    }
  },
)

t.test("runs that a repair left without events are no contradiction and are recovered in their order", async t => {
  const place = await makeHistory()
  const row = { seq: 3, ts: "2026-01-01T00:00:00.000Z", type: "repair", file: "events.jsonl", offset: 0, bytes: 0 }
  const line = JSON.stringify({ ...row, moved: "events.jsonl.torn-1", reason: "bad-json" })
  editHistory(place, { "events.jsonl": lines => [...lines.slice(0, 2), line] })
  await new Sessions(place).find("s")!.open()
  t.strictSame(
    rowsOf(join(place.dir, "s/events.jsonl")).map(({ type, run }) => [type, run].filter(Boolean).join(" ")),
    [
      "session_created",
      `start ${runId(1)}`,
      "repair",
      ...["error", "done"].map(type => `${type} ${runId(1)}`),
      ...["start", "error", "done"].map(type => `${type} ${runId(2)}`),
    ],
  )
  t.strictSame(
    (await verifyNamed(place.dir, "s")).map(({ damage }) => damage),
    [undefined, undefined],
  )
})

t.test("an imported run may have several answers, and tool rows and events without the import key", async t => {
  const place = await makeHistory()
  const run = runId(9)
  const ts = "2026-01-01T00:00:00.000Z"
  const answer = { role: "assistant", ts, run, import: true, content: [{ type: "text", text: "one" }] }
  const facts = { run, client_id: "import-000001", scope: "private", cwd: "/workspace" }
  editHistory(place, {
    "messages.jsonl": lines => [
      ...lines,
      ...[
        { role: "assistant", ts, import: true, content: [] },
        { role: "user", ts, ...facts, import: true, content: "old" },
        answer,
        { ...JSON.parse(lines[1]!), run },
        answer,
      ].map(row => JSON.stringify(row)),
    ],
    "events.jsonl": lines =>
      number([
        ...lines,
        ...[
          { seq: 0, ts, type: "start", id: run, ...facts },
          { seq: 0, ts, type: "done", run, status: "ok" },
        ].map(row => JSON.stringify(row)),
      ]),
  })
  await new Sessions(place).find("s")!.open()
  t.strictSame(
    (await verifyNamed(place.dir, "s")).map(({ damage }) => damage),
    [undefined, undefined],
  )
})

t.test("escapes that name a whole character, and keys in another order, are as good as any", async t => {
  const place = await makeHistory()
  const flip = (line: string): string => {
    const flipAll = (v: unknown): unknown =>
      Array.isArray(v)
        ? v.map(flipAll)
        : typeof v === "object" && v !== null
          ? Object.fromEntries(
              Object.entries(v)
                .reverse()
                .map(([key, value]) => [key, flipAll(value)]),
            )
          : v
    return JSON.stringify(flipAll(JSON.parse(line)))
  }
  editHistory(place, {
    "messages.jsonl": lines => change(1, "input 1", "\\ud83d\\ude00 \\\\ud800")(lines).map(flip),
    "events.jsonl": lines => lines.map((line, i) => (i % 2 === 0 ? flip(line) : line)),
  })
  await new Sessions(place).find("s")!.open()
  t.ok(linesOf(join(place.dir, "s/messages.jsonl"))[0]!.startsWith('{"content"'))
})
