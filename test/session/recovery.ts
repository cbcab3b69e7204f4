// needs: root
import { appendFileSync, readFileSync, truncateSync, unlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { listSessions } from "../../src/session/listing.js"
import {
  beginRun,
  CWD,
  linesOf,
  makePlace,
  openLocked,
  payloadOf,
  recordRun,
  rowsOf,
  runChild,
  runId,
  Sessions,
  startOf,
  takePicture,
} from "../fixture/session/place.js"
import { OWNER } from "../harness/product.js"
import { cleanEnv, startProgram, stopProgram } from "../harness/program.js"

const SMALL = ["s/state", "s/updated_at", "s/latest.md", "s/cwd", "index/list", "index/current"]

t.test(
  "session.25 state, updated_at, latest.md, cwd, index/list and index/current cut to 0 bytes: the next send works and all six read as if they had not been cut",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    await recordRun(sessions, "older", startOf(1))
    await recordRun(sessions, "s", startOf(2))
    writeFileSync(join(place.dir, "older/updated_at"), "1000000000\n")
    for (const path of SMALL) truncateSync(join(place.dir, path))
    const ended = await runChild(place, { session: "s", id: "m-3", run: runId(3), content: "input 3" })
    t.match(ended.stdout, /"type":"done","run":"ctx-0+3","status":"ok"\}\n$/)
    const read = (path: string) => readFileSync(join(place.dir, path), "utf8")
    t.equal(read("s/state"), "done\n")
    t.match(read("s/updated_at"), /^\d{10}\n$/)
    t.equal(read("s/latest.md"), "answer to input 3\n")
    t.equal(read("s/cwd"), `${CWD}\n`)
    t.equal(read("index/list"), "s\nolder\n")
    t.equal(read("index/current"), "s\n")
  },
)

t.test(
  "small files that a power cut emptied or removed are rewritten from the rows when the session is opened",
  async t => {
    for (const lose of [truncateSync, unlinkSync]) {
      const place = makePlace()
      await recordRun(new Sessions(place), "s", startOf(1))
      const names = ["state", "updated_at", "latest.md", "cwd"]
      const read = () => names.map(name => readFileSync(join(place.dir, "s", name), "utf8"))
      const before = read()
      for (const name of names) lose(join(place.dir, "s", name))
      const rows = [linesOf(join(place.dir, "s/messages.jsonl")), linesOf(join(place.dir, "s/events.jsonl"))]
      await new Sessions(place).find("s")!.open()
      t.strictSame(read(), before)
      t.strictSame([linesOf(join(place.dir, "s/messages.jsonl")), linesOf(join(place.dir, "s/events.jsonl"))], rows)
    }
  },
)

t.test("state active without an unfinished run is set from the last done, and nothing is appended", async t => {
  for (const [status, word] of [
    ["ok", "done"],
    ["error", "error"],
    ["cancelled", "idle"],
  ] as const) {
    const place = makePlace()
    const sessions = new Sessions(place)
    const recorder = await beginRun(sessions, "s", startOf(1))
    await recorder.settle({ status, parts: [{ type: "text", text: "partial" }] })
    sessions.close()
    writeFileSync(join(place.dir, "s/state"), "active\n")
    writeFileSync(join(place.dir, "s/latest.md"), "")
    const events = readFileSync(join(place.dir, "s/events.jsonl"))
    await new Sessions(place).find("s")!.open()
    t.equal(readFileSync(join(place.dir, "s/state"), "utf8"), `${word}\n`)
    t.equal(readFileSync(join(place.dir, "s/latest.md"), "utf8"), "partial\n")
    t.strictSame(readFileSync(join(place.dir, "s/events.jsonl")), events)
  }
})

t.test("an error EINTR that is already the last event of the run is not repeated", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const recorder = await beginRun(sessions, "s", startOf(1))
  await recorder.event({ type: "error", code: "EINTR", message: "run was interrupted" }, { durable: true })
  sessions.close()
  await new Sessions(place).find("s")!.open()
  t.strictSame(
    rowsOf(join(place.dir, "s/events.jsonl")).map(row => row.type),
    ["session_created", "start", "error", "done"],
  )
})

t.test("a malformed state gives EIO and is left as it is", async t => {
  for (const text of ["paused\n", "active", "idle\n\n", "x".repeat(65)]) {
    const place = makePlace()
    await recordRun(new Sessions(place), "s", startOf(1))
    writeFileSync(join(place.dir, "s/state"), text)
    const before = takePicture(place.dir)
    const session = new Sessions(place).find("s")!
    await t.rejects(session.open(), { code: "EIO" })
    t.throws(() => session.readState(), { code: "EIO" })
    t.strictSame(takePicture(place.dir), before)
  }
})

t.test(
  "a run whose lock is held elsewhere is not recovered; recoverActive takes the newest 64 whose lock is free",
  async t => {
    const place = makePlace()
    const here = new Sessions(place)
    for (let i = 1; i <= 66; i++) {
      await beginRun(here, `s-${i}`, startOf(i))
      if (i !== 66) here.find(`s-${i}`)!.close()
    }
    const there = new Sessions(place)
    const opened = await there.recoverActive()
    t.strictSame(
      opened.map(({ session }) => session),
      Array.from({ length: 64 }, (_, i) => `s-${66 - i}`),
    )
    t.strictSame([...new Set(opened.map(({ code }) => code))], [undefined])
    const state = (i: number) => readFileSync(join(place.dir, `s-${i}/state`), "utf8")
    t.equal(state(66), "active\n")
    for (let i = 3; i <= 65; i++) t.equal(state(i), "error\n")
    for (const i of [1, 2]) t.equal(state(i), "active\n")
    t.equal(linesOf(join(place.dir, "s-66/events.jsonl")).length, 2)
    // The two that were too old for the first look are among the newest active ones now; nobody else has changed.
    const later = await new Sessions(place).recoverActive()
    t.strictSame(
      later.map(({ session }) => session),
      ["s-66"],
    )
    here.close()
  },
)

t.test("recoverActive names a damaged session with EIO and goes on", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  for (const i of [1, 2]) {
    await beginRun(sessions, `s-${i}`, startOf(i))
    sessions.find(`s-${i}`)!.close()
  }
  appendFileSync(join(place.dir, "s-2/events.jsonl"), "{")
  t.strictSame(await new Sessions(place).recoverActive(), [{ session: "s-2", code: "EIO" }, { session: "s-1" }])
})

t.test(
  "session.21 (display and inheritance) active without a lock holder is listed as interrupted; a child left behind does not keep the run lock",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    await beginRun(sessions, "s", startOf(1))
    const show = () => listSessions(place.dir).map(({ session, state }) => `${session} ${state}`)
    t.strictSame(show(), ["s active"])
    // Started while the lock is held, without any wish about descriptors: what would be inherited is.
    const child = startProgram(["/bin/sleep", "60"], { uid: OWNER, env: cleanEnv(), stdio: "ignore" })
    t.teardown(() => stopProgram(child))
    sessions.close()
    t.strictSame(show(), ["s interrupted"])
    const again = await openLocked(new Sessions(place), "s")
    t.equal(again.isLocked, true)
    t.strictSame(show(), ["s error"])
    again.close()
  },
)

t.test("a warm open reads nothing of the history, whatever its length", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const recorder = await beginRun(sessions, "s", startOf(1))
  for (let i = 0; i < 40; i++) {
    await recorder.toolResult({ name: "fs.read", callId: `c-${i}`, content: "x".repeat(1 << 19), status: "ok" })
  }
  await recorder.settle({ status: "ok" })
  sessions.find("s")!.unlockRun()
  const session = new Sessions(place).find("s")!
  const readBytes = () => Number(/rchar: (\d+)/.exec(readFileSync("/proc/self/io", "utf8"))![1])
  const start = readBytes()
  await session.open()
  const cold = readBytes() - start
  t.ok(cold > 40 << 20, `the first open read ${cold} bytes`)
  const again = readBytes()
  await session.open()
  await session.replay("m-1", payloadOf(1))
  const warm = readBytes() - again
  t.ok(warm < 8192, `the second open and a replay read ${warm} bytes`)
})

t.test("the first open of 64 MiB needs less than 48 MiB more than that of an empty session", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  await recordRun(sessions, "empty", startOf(1))
  const recorder = await beginRun(sessions, "s", startOf(1))
  for (let i = 0; i < 64; i++) {
    await recorder.toolResult({ name: "fs.read", callId: `c-${i}`, content: "x".repeat(1 << 19), status: "ok" })
  }
  await recorder.settle({ status: "ok" })
  sessions.close()
  const peak = async (session: string): Promise<number> => {
    const ended = await runChild(place, { session, open: true })
    t.equal(ended.code, 0, ended.stdout)
    return Number(/^peak_kib=(\d+)$/m.exec(ended.stderr)![1])
  }
  const empty = await peak("empty")
  const full = await peak("s")
  t.ok(full - empty < 48 * 1024, `${full - empty} KiB more`)
})
