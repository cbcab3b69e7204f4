// needs: root
import { existsSync, readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import t, { type Test } from "tap"
import type { Place } from "../../src/session/place.js"
import { verifyNamed } from "../../src/session/reader.js"
import {
  linesOf,
  makePlace,
  payloadOf,
  recordRun,
  rowsOf,
  runChild,
  runId,
  Sessions,
  startOf,
  takePicture,
} from "../fixture/session/place.js"

const REQUEST = { session: "s", id: "m-2", run: runId(2), content: "input 2", tool: true }

// Reopens after a kill and compares what the client had been told with what is stored.
async function checkRecovered(t: Test, place: Place, acknowledged: string, title: string): Promise<"absent" | "run"> {
  const dir = join(place.dir, "s")
  const sessions = new Sessions(place)
  const session = sessions.find("s")
  const told = acknowledged.split("\n").filter(line => line.startsWith('{"seq":'))
  if (session === undefined) {
    t.strictSame(told, [], `${title}: nothing acknowledged, no session`)
    return "absent"
  }
  await session.open()
  t.strictSame(
    (await verifyNamed(place.dir, "s")).map(proof => proof.damage),
    [undefined, undefined],
    `${title}: verify is clean`,
  )
  const stored = linesOf(join(dir, "events.jsonl"))
  for (const line of told) t.ok(stored.includes(line), `${title}: acknowledged line is stored: ${line.slice(0, 120)}`)
  const events = rowsOf(join(dir, "events.jsonl")).filter(row => row.run === runId(2))
  const claim = session.findClaim("m-2")
  const state = readFileSync(join(dir, "state"), "utf8")
  if (claim === undefined) {
    t.strictSame(events, [], `${title}: no user row, no event`)
    t.equal(told.length, 0)
    return "absent"
  }
  const done = events.filter(row => row.type === "done")
  t.equal(done.length, 1, `${title}: exactly one done`)
  t.equal(events.at(-1)!.type, "done")
  if (done[0]!.status === "error") {
    const { type, code } = events.at(-2)!
    t.strictSame({ type, code }, { type: "error", code: "EINTR" }, `${title}: error EINTR before done`)
    t.equal(state, "error\n", title)
  } else {
    t.equal(done[0]!.status, "ok")
    t.equal(state, "done\n", title)
    t.equal(readFileSync(join(dir, "latest.md"), "utf8"), "answer to input 2\n", title)
  }
  const start = events.find(row => row.type === "start")!
  const user = rowsOf(join(dir, "messages.jsonl")).find(row => row.run === runId(2))!
  for (const key of ["run", "client_id", "scope", "cwd"])
    t.equal(start[key], user[key], `${title}: start has the ${key} of the row`)
  t.equal(await session.replay("m-2", payloadOf(2)), `${stored.at(-1)}\n`, `${title}: replay returns its done`)
  const before = takePicture(dir)
  await new Sessions(place).find("s")!.open()
  t.strictSame(takePicture(dir), before, `${title}: a second opening changes nothing`)
  return "run"
}

t.test(
  "session.6 (recorder level, and 7) kill at every sync and rename of a send: verify is clean, nothing acknowledged is missing, recovery is exact and happens once",
  async t => {
    for (const point of ["sync", "rename"] as const) {
      const seen = { absent: 0, run: 0 }
      for (let n = 1; ; n++) {
        const place = makePlace()
        await recordRun(new Sessions(place), "s", startOf(1))
        const ended = await runChild(place, REQUEST, { fault: `session.${point}:${n}:kill` })
        if (ended.signal === null) {
          t.equal(ended.code, 0, ended.stdout)
          t.ok(n > (point === "sync" ? 8 : 3), `${n - 1} ${point} points were killed at`)
          break
        }
        t.equal(ended.signal, "SIGKILL")
        seen[await checkRecovered(t, place, ended.stdout, `${point} ${n}`)]++
      }
      t.ok(seen.run > 2, `${seen.run} kills left a run, ${seen.absent} none`)
    }
  },
)

t.test(
  "session.7 kill between user row and start: the start rebuilt has run, client id, scope and cwd of the row, the id replays its done, a second restart adds no row",
  async t => {
    const place = makePlace()
    await recordRun(new Sessions(place), "s", startOf(1))
    // The first sync of a send in an existing session is that of the user row.
    const ended = await runChild(place, REQUEST, { fault: "session.sync:1:kill" })
    t.equal(ended.signal, "SIGKILL")
    t.equal(ended.stdout, "")
    const messages = rowsOf(join(place.dir, "s/messages.jsonl"))
    t.equal(messages.at(-1)!.run, runId(2))
    t.notOk(rowsOf(join(place.dir, "s/events.jsonl")).some(row => row.run === runId(2)))
    const restart = await runChild(place, { session: "s", open: true })
    t.equal(restart.code, 0, restart.stdout)
    const events = rowsOf(join(place.dir, "s/events.jsonl")).filter(row => row.run === runId(2))
    t.strictSame(
      events.map(row => row.type),
      ["start", "error", "done"],
    )
    const { id, run, client_id, scope, cwd, model } = events[0]!
    t.strictSame(
      { id, run, client_id, scope, cwd, model },
      { id: runId(2), run: runId(2), client_id: "m-2", scope: "private", cwd: "/workspace", model: undefined },
    )
    t.equal(events[1]!.code, "EINTR")
    t.equal(events[2]!.status, "error")
    t.equal(readFileSync(join(place.dir, "s/state"), "utf8"), "error\n")
    const before = takePicture(place.dir)
    const again = await runChild(place, REQUEST)
    t.equal(again.stdout, `${linesOf(join(place.dir, "s/events.jsonl")).at(-1)}\n`)
    await runChild(place, { session: "s", open: true })
    t.strictSame(takePicture(place.dir), before)
  },
)

t.test(
  "session.29 (creation killed) kill at every sync and rename of a first send leaves no session or a whole one",
  async t => {
    for (const point of ["sync", "rename"] as const) {
      let isMade = false
      for (let n = 1; ; n++) {
        const place = makePlace()
        const ended = await runChild(place, { ...REQUEST, tool: false }, { fault: `session.${point}:${n}:kill` })
        if (ended.signal === null) {
          t.equal(ended.code, 0, ended.stdout)
          break
        }
        const outcome = await checkRecovered(t, place, ended.stdout, `${point} ${n}`)
        const isThere = existsSync(join(place.dir, "s"))
        t.ok(isThere || !isMade, "once made, the session is there at every later point")
        isMade ||= isThere
        if (isThere)
          t.equal(rowsOf(join(place.dir, "s/events.jsonl")).filter(row => row.type === "session_created").length, 1)
        else t.equal(outcome, "absent")
        const again = await runChild(place, { session: "s", id: "m-3", run: runId(3), content: "input 3" })
        t.match(again.stdout, /"type":"done","run":"ctx-0+3","status":"ok"\}\n$/, `${point} ${n}: the next send works`)
      }
      t.ok(isMade)
    }
  },
)

t.test(
  "session.29 (two creations) sends that create one session at once make one directory and one session_created",
  async t => {
    const place = makePlace()
    const first = runChild(place, { session: "s", id: "m-1", run: runId(1), content: "input 1" })
    const second = runChild(place, { session: "s", id: "m-2", run: runId(2), content: "input 2" })
    for (const ended of [await first, await second]) t.match(ended.stdout, /"type":"done"|"code":"EBUSY"/)
    const sessions = new Sessions(place)
    const made = await Promise.allSettled([1, 2, 3, 4].map(() => sessions.create("other", { cwd: "/workspace" })))
    t.equal(made.filter(({ status }) => status === "fulfilled").length, 1)
    for (const one of made) if (one.status === "rejected") t.equal(one.reason.code, "EEXIST")
    for (const name of ["s", "other"]) {
      t.equal(rowsOf(join(place.dir, name, "events.jsonl")).filter(row => row.type === "session_created").length, 1)
    }
    t.strictSame(readdirSync(place.dir).sort(), ["index", "other", "s"], "no hidden residue")
    sessions.close()
  },
)

t.test(
  "a sync or rename that fails refuses the send with nothing stored, or leaves a run that settles or recovers",
  async t => {
    for (const point of ["sync", "rename"] as const) {
      for (let n = 1; ; n++) {
        const place = makePlace()
        await recordRun(new Sessions(place), "s", startOf(1))
        const ended = await runChild(place, REQUEST, { fault: `session.${point}:${n}:EIO` })
        const isRefused = ended.code !== 0
        const isBegun = ended.stdout.includes('"type":"start"')
        const outcome = await checkRecovered(t, place, ended.stdout, `${point} ${n} EIO`)
        if (isRefused && !isBegun) t.equal(outcome, "absent", `${point} ${n}: a refused send has stored nothing`)
        else t.equal(outcome, "run")
        if (!isRefused && n > 12) break
        if (n > 40) break
      }
    }
  },
)

t.test("CORTEXFS_FAULT of another form is refused, that of another part ignored", async t => {
  const { parseFault } = await import("../../src/session/fault.js")
  t.equal(parseFault(undefined), undefined)
  t.equal(parseFault("store.rename:1:kill"), undefined)
  t.strictSame(parseFault("session.sync:12:ENOSPC"), { point: "sync", n: 12, effect: "ENOSPC" })
  for (const text of ["session.sync:0:kill", "session.sync:1:boom", "session.write:1:kill", "session.sync:1"]) {
    t.throws(() => parseFault(text), { code: "EINVAL" })
  }
})
