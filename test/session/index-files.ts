// needs: root
import { closeSync, constants, mkdirSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { flock } from "../../src/native/sys.js"
import { listSessions } from "../../src/session/listing.js"
import type { Place } from "../../src/session/place.js"
import {
  makePlace,
  openLocked,
  recordRun,
  runChild,
  runId,
  Sessions,
  startOf,
  takePicture,
} from "../fixture/session/place.js"

t.test("a recorded send moves its session to the head of list and writes current and by-cwd", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const read = (path: string) => readFileSync(join(place.dir, "index", path), "utf8")
  await recordRun(sessions, "a", startOf(1))
  await recordRun(sessions, "b", startOf(2))
  t.equal(read("list"), "b\na\n")
  await recordRun(sessions, "a", startOf(3))
  t.equal(read("list"), "a\nb\n")
  t.equal(read("current"), "a\n")
  t.equal(read("by-cwd/cwd-990e10b3394addcf"), "a\n")
  t.equal(sessions.readCurrent(), "a")
  t.strictSame(sessions.list(), ["a", "b"])
})

t.test("settling moves the session to the head again when another one was recorded meanwhile", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const slow = await (await openLocked(sessions, "slow")).begin(startOf(1))
  await recordRun(sessions, "quick", startOf(2))
  t.strictSame(sessions.list(), ["quick", "slow"])
  await slow.settle({ status: "ok" })
  t.strictSame(sessions.list(), ["slow", "quick"])
  t.equal(sessions.readCurrent(), "quick")
  sessions.close()
})

t.test("a model session has cwd null in its rows, / in its file and no by-cwd entry", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const session = await sessions.create("m", { cwd: null })
  await (await session.begin(startOf(1, { cwd: null }))).settle({ status: "ok" })
  session.close()
  t.match(readFileSync(join(place.dir, "m/messages.jsonl"), "utf8"), /"cwd":null/)
  t.equal(readFileSync(join(place.dir, "m/cwd"), "utf8"), "/\n")
  t.strictSame(Object.keys(takePicture(join(place.dir, "index/by-cwd"))), [])
})

t.test("a bad index body is EINVAL before anything is recorded, and stays", async t => {
  const bad: [string, string][] = [
    ["list", "a\na\n"],
    ["list", "a"],
    ["list", "a\n\n"],
    ["list", "../x\n"],
    ["list", "index\n"],
    ["current", "a b\n"],
    ["current", "a"],
    ["current", `${"a".repeat(300)}\n`],
    ["by-cwd/cwd-990e10b3394addcf", "é\n"],
    ["by-hash/key", ""],
  ]
  for (const [path, body] of bad) {
    const place = makePlace()
    const sessions = new Sessions(place)
    await recordRun(sessions, "a", startOf(1))
    writeFileSync(join(place.dir, "index", path), body)
    const before = takePicture(place.dir)
    const keys = { cwd: "/workspace", hash: "key" }
    t.throws(() => sessions.checkIndex("a", keys), { code: "EINVAL" }, `${path} ${JSON.stringify(body)}`)
    t.strictSame(takePicture(place.dir), before)
    const session = await openLocked(sessions, "a")
    const history = readFileSync(join(place.dir, "a/events.jsonl"))
    await t.rejects(session.begin(startOf(2, { hash: "key" })), { code: "EINVAL" })
    session.unlockRun()
    t.strictSame(readFileSync(join(place.dir, "a/events.jsonl")), history, "nothing is stored")
    t.equal(readFileSync(join(place.dir, "a/state"), "utf8"), "done\n")
  }
})

t.test("an external key bound to another session is EINVAL; bound to a session that is gone it is free", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  await recordRun(sessions, "a", startOf(1, { hash: "key" }))
  await recordRun(sessions, "b", startOf(2))
  t.throws(() => sessions.checkIndex("b", { cwd: "/workspace", hash: "key" }), { code: "EINVAL" })
  sessions.checkIndex("a", { cwd: "/workspace", hash: "key" })
  rmSync(join(place.dir, "a"), { recursive: true })
  await recordRun(sessions, "b", startOf(3, { hash: "key" }))
  t.equal(readFileSync(join(place.dir, "index/by-hash/key"), "utf8"), "b\n")
  t.equal(readFileSync(join(place.dir, "index/list"), "utf8"), "b\na\n", "an unchanged list is not written")
  t.strictSame(sessions.list(), ["b"], "a reader skips what is gone")
  await recordRun(sessions, "c", startOf(4))
  t.equal(readFileSync(join(place.dir, "index/list"), "utf8"), "c\nb\n", "the next writer drops it")
})

t.test("sixteen sessions recorded at once keep the index whole", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const names = Array.from({ length: 16 }, (_, i) => `s-${i}`)
  await Promise.all(names.map((name, i) => recordRun(sessions, name, startOf(i + 1, { hash: `key-${i}` }))))
  t.strictSame(sessions.list().sort(), [...names].sort())
  for (const [i, name] of names.entries()) {
    t.equal(readFileSync(join(place.dir, `index/by-hash/key-${i}`), "utf8"), `${name}\n`)
  }
})

function holdIndex(place: Place): () => void {
  const fd = openSync(join(place.dir, "index"), constants.O_RDONLY | constants.O_DIRECTORY)
  t.equal(flock(fd, "ex"), true)
  return () => closeSync(fd)
}

t.test(
  "an index lock that is never released delays no send for long, and the next writer repairs the index",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    const read = (path: string) => readFileSync(join(place.dir, "index", path), "utf8")
    await recordRun(sessions, "a", startOf(1))
    await recordRun(sessions, "b", startOf(2))
    const release = holdIndex(place)
    const begin = performance.now()
    const lines = await recordRun(sessions, "a", startOf(3, { cwd: "/workspace/api" }))
    t.match(lines.at(-1), /"status":"ok"/)
    await Promise.all(["c", "d", "e", "f"].map((name, i) => recordRun(sessions, name, startOf(4 + i))))
    const tookMs = performance.now() - begin
    t.ok(tookMs < 8000, `one send, and then four at once, took ${tookMs} ms`)
    t.equal(read("list"), "b\na\n", "the index is as the holder has it")
    t.equal(readFileSync(join(place.dir, "a/state"), "utf8"), "done\n")
    release()
    await recordRun(sessions, "b", startOf(9))
    const names = read("list").trimEnd().split("\n")
    t.equal(names[0], "b")
    t.equal(names.at(-1), "a")
    t.strictSame([...names].sort(), ["a", "b", "c", "d", "e", "f"])
    t.equal(read("by-cwd/cwd-b01b17a03e5d31d0"), "a\n")
    t.equal(read("current"), "b\n")
  },
)

t.test("a writer that knows nothing of a left-out update lists the session that list lacks", async t => {
  const place = makePlace()
  await recordRun(new Sessions(place), "a", startOf(1))
  await recordRun(new Sessions(place), "b", startOf(2))
  mkdirSync(join(place.dir, "by-hand"))
  const release = holdIndex(place)
  const ended = await runChild(place, { session: "new", id: "m-3", run: runId(3), content: "input 3" })
  t.match(ended.stdout, /"type":"done","run":"ctx-0+3","status":"ok"\}\n$/)
  release()
  const again = await runChild(place, { session: "a", id: "m-4", run: runId(4), content: "input 4" })
  t.match(again.stdout, /"status":"ok"\}\n$/)
  const names = readFileSync(join(place.dir, "index/list"), "utf8").trimEnd().split("\n")
  t.equal(names[0], "a")
  t.strictSame([...names].sort(), ["a", "b", "new"], "a directory without a history is no session")
})

t.test("a send with an external key is refused with EAGAIN under a held index lock, and nothing is stored", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  await recordRun(sessions, "a", startOf(1))
  const rows = () => ["messages.jsonl", "events.jsonl", "state"].map(name => readFileSync(join(place.dir, "a", name)))
  const before = rows()
  const release = holdIndex(place)
  const session = await openLocked(sessions, "a")
  await t.rejects(session.begin(startOf(2, { hash: "key" })), { code: "EAGAIN" })
  session.unlockRun()
  t.strictSame(rows(), before)
  release()
  await recordRun(sessions, "a", startOf(2, { hash: "key" }))
  t.equal(readFileSync(join(place.dir, "index/by-hash/key"), "utf8"), "a\n")
})

t.test(
  "listing: groups in their order, the current session first, idle lifetimes only on request, unknown words as error",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    const names = ["plain", "chat-a", "cli-a", "cli-b", "temp-x"]
    for (const [i, name] of names.entries()) await recordRun(sessions, name, startOf(i + 1))
    await recordRun(sessions, "cli-a", startOf(9))
    await recordRun(sessions, "cli-b", startOf(10))
    writeFileSync(join(place.dir, "index/current"), "cli-a\n")
    writeFileSync(join(place.dir, "plain/state"), "paused\n")
    writeFileSync(join(place.dir, "plain/meta.json"), '{"title":"a plain one"}')
    mkdirSync(join(place.dir, ".gone.new-00"))
    const before = takePicture(place.dir)
    const shown = listSessions(place.dir)
    t.strictSame(
      shown.map(s => [s.isCurrent, s.session, s.group, s.state, s.title]),
      [
        [true, "cli-a", "cli", "done", ""],
        [false, "cli-b", "cli", "done", ""],
        [false, "chat-a", "chat", "done", ""],
        [false, "plain", "other", "error", "a plain one"],
      ],
    )
    for (const { updated } of shown) t.match(updated, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.000Z$/)
    t.strictSame(
      listSessions(place.dir, { all: true }).map(s => s.session),
      ["cli-a", "cli-b", "chat-a", "temp-x", "plain"],
    )
    t.strictSame(
      listSessions(place.dir, { origin: "chat" }).map(s => s.session),
      ["chat-a"],
    )
    t.strictSame(listSessions(join(place.dir, "nowhere")), [])
    t.strictSame(takePicture(place.dir), before, "listing writes nothing")
  },
)

t.test("meta.json keeps unknown keys when the model changes, and is never rewritten when malformed", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  await recordRun(sessions, "s", startOf(1))
  const path = join(place.dir, "s/meta.json")
  writeFileSync(path, '{"client":"x","later":[1],"model":"debug/echo"}\n')
  await recordRun(sessions, "s", startOf(2, { model: "main" }))
  t.equal(readFileSync(path, "utf8"), '{"client":"x","later":[1],"model":"main"}\n')
  for (const text of ["", "{", "[]", '{"a":1,"a":2}']) {
    writeFileSync(path, text)
    await recordRun(sessions, "s", startOf(3 + text.length))
    t.equal(readFileSync(path, "utf8"), text)
  }
})
