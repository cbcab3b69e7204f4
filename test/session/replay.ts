// needs: root
import { readFileSync } from "node:fs"
import { join } from "node:path"
import t, { type Test } from "tap"
import type { Payload } from "../../src/session/claim.js"
import type { Place } from "../../src/session/place.js"
import {
  beginRun,
  linesOf,
  makePlace,
  openLocked,
  payloadOf,
  recordRun,
  Sessions,
  startOf,
  takePicture,
} from "../fixture/session/place.js"

// Opens with fresh and with warm claims; both give the same answer and change no file, not even a time.
async function replayTwice(
  t: Test,
  place: Place,
  id: string,
  payload: Payload,
): Promise<string | undefined | { code: string }> {
  const before = takePicture(place.dir)
  const sessions = new Sessions(place)
  const answers: unknown[] = []
  for (let i = 0; i < 2; i++) {
    try {
      const session = sessions.find("s")!
      await session.open()
      answers.push(await session.replay(id, payload))
    } catch (e) {
      answers.push({ code: (e as { code: string }).code })
    }
  }
  t.strictSame(answers[0], answers[1])
  t.strictSame(takePicture(place.dir), before, "no file changed")
  return answers[0] as string
}

t.test(
  "session.4 (rows 1, 3, 4, 5 at store level) a finished run is replayed by its stored done line, byte for byte",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    const statuses = ["ok", "error", "cancelled"] as const
    for (const [i, status] of statuses.entries()) {
      const recorder = await beginRun(sessions, "s", startOf(i + 1))
      const error = status === "error" ? { code: "EIO", message: "no output" } : undefined
      const done = (await recorder.settle({ status, error })).at(-1)
      sessions.find("s")!.unlockRun()
      t.equal(await replayTwice(t, place, `m-${i + 1}`, payloadOf(i + 1)), done)
      t.ok(readFileSync(join(place.dir, "s/events.jsonl"), "utf8").endsWith(done!))
    }
    t.equal(await replayTwice(t, place, "m-9", payloadOf(9)), undefined)
  },
)

t.test(
  "session.4 (rows 2, 12, 13 at store level) a running run is replayed by its start line; another id finds the lock taken",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    await recordRun(sessions, "s", startOf(1))
    const done = linesOf(join(place.dir, "s/events.jsonl")).at(-1)
    const recorder = await beginRun(sessions, "s", startOf(2))
    t.equal(await replayTwice(t, place, "m-2", payloadOf(2)), recorder.startLine)
    t.equal(await replayTwice(t, place, "m-1", payloadOf(1)), `${done}\n`)
    const here = sessions.find("s")!
    await here.open()
    t.equal(await here.replay("m-2", payloadOf(2)), recorder.startLine)
    const before = takePicture(place.dir)
    t.equal(here.tryLockRun(), false)
    const elsewhere = new Sessions(place).find("s")!
    await elsewhere.open()
    t.equal(elsewhere.tryLockRun(), false)
    t.strictSame(takePicture(place.dir), before)
    await recorder.settle({ status: "ok" })
    here.unlockRun()
    t.equal(elsewhere.tryLockRun(), true)
    elsewhere.close()
  },
)

t.test("session.4 (rows 6, 8, 9, 10 at store level) another payload under a known id gives EINVAL", async t => {
  const place = makePlace()
  await recordRun(new Sessions(place), "s", startOf(1))
  const others: Partial<Payload>[] = [
    { input: "input 2" },
    { input: "input 1 " },
    { cwd: "/workspace/api" },
    { cwd: null },
    { scope: "shared" },
    { scope: "temp" },
    { op: "tsh" },
    { op: "answer" },
  ]
  for (const other of others) {
    t.strictSame(await replayTwice(t, place, "m-1", payloadOf(1, other)), { code: "EINVAL" }, JSON.stringify(other))
  }
  const sessions = new Sessions(place)
  t.equal(await sessions.hasClaim("s", "m-1"), true)
  t.equal(await sessions.hasClaim("s", "m-2"), false)
  t.equal(await sessions.hasClaim("none", "m-1"), false)
})

t.test(
  "session.4 (rows 7 and 11 at store level) the same payload is the same request whatever else it carries",
  async t => {
    const place = makePlace()
    const lines = await recordRun(new Sessions(place), "s", startOf(1, { window: "a".repeat(32), workspace: "/srv" }))
    t.equal(await replayTwice(t, place, "m-1", payloadOf(1)), lines.at(-1))
  },
)

t.test("claims recorded by another process are found, and stay warm when nobody wrote", async t => {
  const place = makePlace()
  const reader = new Sessions(place)
  const writer = new Sessions(place)
  for (let n = 1; n <= 3; n++) {
    const lines = await recordRun(writer, "s", startOf(n))
    const session = reader.find("s")!
    await session.open()
    t.equal(await session.replay(`m-${n}`, payloadOf(n)), lines.at(-1))
    t.equal(session.findClaim(`m-${n}`)?.status, "ok")
  }
  t.equal(reader.find("s"), reader.find("s"))
})

t.test("an id in use or a foreign event is refused by begin and event, and nothing is stored", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  await recordRun(sessions, "s", startOf(1))
  const session = await openLocked(sessions, "s")
  const before = takePicture(place.dir)
  await t.rejects(session.begin(startOf(2, { clientId: "m-1" })), { code: "EINVAL" })
  t.strictSame(takePicture(place.dir), before)
  const recorder = await session.begin(startOf(2))
  const size = readFileSync(join(place.dir, "s/events.jsonl")).length
  for (const type of ["start", "message", "done", "session_created", "repair"]) {
    await t.rejects(recorder.event({ type }), { code: "EINVAL" })
  }
  await t.rejects(recorder.event({ type: "usage", step: 0 }), { code: "EINVAL" })
  await t.rejects(recorder.event({ type: "tool_call", id: "c", name: "x", arguments: { text: "x".repeat(9 << 20) } }), {
    code: "EMSGSIZE",
  })
  t.equal(readFileSync(join(place.dir, "s/events.jsonl")).length, size)
  await recorder.settle({ status: "ok" })
  await t.rejects(recorder.settle({ status: "ok" }), { code: "EALREADY" })
  session.close()
})
