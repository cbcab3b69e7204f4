// needs: root fuse bwrap
import { appendFileSync, readFileSync, truncateSync } from "node:fs"
import { join } from "node:path"
import t, { type Test } from "tap"
import type { Connection } from "../fixture/agent/peer.js"
import { fingerprint, makeStage, type Stage } from "../fixture/agent/stage.js"

t.test("idempotent replay", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  const send = (id: string, more: object = {}): Connection => stage.send([{ say: "said" }], { id, ...more })
  const dir = join(stage.sessionDir, "default")
  const events = () => readFileSync(join(dir, "events.jsonl"), "utf8").split("\n").slice(0, -1)

  /** Sends and proves that no file below session/ changed; gives the lines. */
  const unchanged = async (t: Test, connection: () => Connection) => {
    const before = fingerprint(stage.sessionDir)
    const c = await connection().over()
    t.strictSame(fingerprint(stage.sessionDir), before)
    return c
  }

  t.test("session.4 (rows 1, 3, 6-8, 11) rows of the replay matrix over a finished run", async t => {
    const first = await send("k-1").over()
    t.match(first.frames.at(-1), { type: "done", status: "ok" }, "row 1 executes")
    const done = first.lines.at(-1)!.text
    t.equal(done, events().at(-1))

    t.strictSame(
      (await unchanged(t, () => send("k-1"))).lines.map(l => l.text),
      [done],
      "row 3: the stored line",
    )
    const other = await unchanged(t, () => stage.send([{ say: "sais" }], { id: "k-1" }))
    t.match(other.frames, [{ type: "error", code: "EINVAL" }], "row 6: one byte differs")
    t.strictSame(
      (await unchanged(t, () => send("k-1", { cwd: undefined }))).lines.map(l => l.text),
      [done],
      "row 7",
    )
    stage.set("cwd", "/home/agent\n")
    t.match(
      (await unchanged(t, () => send("k-1", { cwd: undefined }))).frames,
      [{ type: "error", code: "EINVAL" }],
      "row 8",
    )
    stage.set("cwd", "/workspace\n")
    const more = { wait: true, window: "0".repeat(32), steps: 3, workspace: undefined, title: "t", hash: "h" }
    t.strictSame(
      (await unchanged(t, () => send("k-1", more))).lines.map(l => l.text),
      [done],
      "row 11",
    )
    t.match(
      (await unchanged(t, () => send("k-1", { cwd: "/workspace/gone" }))).frames,
      [{ code: "EINVAL" }],
      "another cwd",
    )
  })

  t.test("session.4 (row 9) the id of a private run cannot be used for a temp one of that session name", async t => {
    const temp = await unchanged(t, () => send("k-1", { scope: "temp" }))
    t.match(temp.frames, [{ type: "error", code: "EINVAL" }])
  })

  t.test("session.4 (rows 2, 12, 13) rows of the replay matrix while a run is active", async t => {
    const active = stage.send([{ sleep_ms: 1500 }, { say: "slow" }], { id: "k-slow" })
    const start = await active.frame("start")
    const startLine = active.lines[0]!.text
    t.ok(events().includes(startLine))
    const again = await unchanged(t, () => stage.send([{ sleep_ms: 1500 }, { say: "slow" }], { id: "k-slow" }))
    t.strictSame(
      again.lines.map(l => l.text),
      [startLine],
      "row 2: the stored start line",
    )
    const known = await unchanged(t, () => send("k-1"))
    t.match(known.frames, [{ type: "done", status: "ok" }], "row 12: not EBUSY")
    const fresh = await unchanged(t, () => send("k-2"))
    t.match(fresh.frames, [{ type: "error", code: "EBUSY" }], "row 13")
    t.ok(fresh.lines[0]!.t - fresh.openedAt < 100, "at once")
    await active.over()
    t.equal(active.frames.at(-1)!.run, start.run)
  })

  t.test("session.4 (rows 4, 5) failed and cancelled runs are replayed too", async t => {
    const failed = await stage.send([{ error: { code: "EAGAIN", message: "no" } }], { id: "k-err" }).over()
    const replayed = await unchanged(t, () =>
      stage.send([{ error: { code: "EAGAIN", message: "no" } }], { id: "k-err" }),
    )
    t.strictSame(
      replayed.lines.map(l => l.text),
      [failed.lines.at(-1)!.text],
    )
    t.match(replayed.frames, [{ type: "done", status: "error" }])
    const long = stage.send([{ sleep_ms: 30000 }], { id: "k-can" })
    const { run } = await long.frame("start")
    await stage.owner.ask(stage.runtime.socket, { op: "cancel", id: run as string })
    await long.over()
    const cancelled = await unchanged(t, () => stage.send([{ sleep_ms: 30000 }], { id: "k-can" }))
    t.match(cancelled.frames, [{ type: "done", status: "cancelled", run }])
  })

  t.test("session.4 (row 3) a restarted runtime replays the same line", async t => {
    const done = events().find(line => line.includes('"type":"done"'))!
    await stage.restart()
    t.strictSame(
      (await unchanged(t, () => send("k-1"))).lines.map(l => l.text),
      [done],
    )
  })

  t.test(
    "session.4 (rows 14, 15) torn and contradictory history refuses any id with EIO and changes nothing",
    async t => {
      await send("d-1", { session: "torn" }).over()
      await send("d-2", { session: "twice" }).over()
      await stage.runtime.stop()
      const torn = join(stage.sessionDir, "torn/messages.jsonl")
      truncateSync(torn, readFileSync(torn).length - 1)
      const twice = join(stage.sessionDir, "twice/events.jsonl")
      const rows = readFileSync(twice, "utf8").split("\n").slice(0, -1)
      const done = JSON.parse(rows.at(-1)!)
      appendFileSync(twice, `${JSON.stringify({ ...done, seq: rows.length + 1, status: "error" })}\n`)
      stage.runtime = await stage.stack.startRuntime("coder")
      for (const session of ["torn", "twice"]) {
        for (const id of ["d-1", "d-2", "d-new"]) {
          t.match(
            (await unchanged(t, () => send(id, { session }))).frames,
            [{ type: "error", code: "EIO" }],
            `${session} ${id}`,
          )
        }
        const resumed = await unchanged(t, () => stage.owner.open(stage.runtime.socket).send({ op: "resume", session }))
        t.match(resumed.frames, [{ type: "error", code: "EIO" }], "resume too")
      }
    },
  )
})
