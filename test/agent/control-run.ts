// needs: root fuse bwrap
import { execFileSync } from "node:child_process"
import { existsSync, readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { isRunning, waitFor } from "../fixture/agent/process.js"
import { call, fingerprint, makeStage, readRows, type Stage } from "../fixture/agent/stage.js"

t.test("many runs, cancel, resume, status, stop", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  const ask = (request: object) => stage.owner.ask(stage.runtime.socket, request)
  stage.tool("nap", '#!/bin/sh\nsleep "$1"\necho slept\n')
  await stage.send([{ say: "warm" }], { session: "warm" }).over()

  t.test("session.8 (two sessions) two sessions with a 2 s tool each end in under 3 s together", async t => {
    const runs = ["left", "right"].map(session =>
      stage.send([call("nap", { args: ["2"] }), { say: "ok" }], { session }),
    )
    await Promise.all(runs.map(run => run.over()))
    for (const run of runs) t.match(run.frames.at(-1), { type: "done", status: "ok" })
    const tookMs = Math.max(...runs.map(r => r.lines.at(-1)!.t)) - Math.min(...runs.map(r => r.openedAt))
    t.ok(tookMs < 3_000, `${tookMs} ms`)
  })

  t.test("session.8 (busy) a second new id to a busy session is EBUSY in under 100 ms", async t => {
    const run = stage.send([{ sleep_ms: 1000 }, { say: "x" }], { session: "busy" })
    await run.frame("start")
    const second = await stage.send([{ say: "y" }], { session: "busy" }).over()
    t.match(second.frames, [{ type: "error", code: "EBUSY" }])
    t.ok(second.lines[0]!.t - second.openedAt < 100, `${second.lines[0]!.t - second.openedAt} ms`)
    await run.over()
  })

  t.test("session.8 (queue) ten waiting sends on one session are ten whole runs in arrival order", async t => {
    const sends = Array.from({ length: 10 }, (_, i) =>
      stage.send([{ say: `a${i}` }, call("fs.list", {}), { say: `b${i}` }], {
        session: "queue",
        wait: true,
        id: `w-${i}`,
      }),
    )
    await Promise.all(sends.map(run => run.over(60_000)))
    for (const run of sends) t.match(run.frames.at(-1), { type: "done", status: "ok" })
    const rows = readRows(join(stage.sessionDir, "queue/messages.jsonl"))
    t.strictSame(
      rows.filter(r => r.role === "user").map(r => r.client_id),
      sends.map((_, i) => `w-${i}`),
    )
    const runs = rows.map(r => r.run)
    t.strictSame(runs.filter((run, i) => run !== runs[i - 1]).length, 10, "no two runs are interleaved")
    t.match((await ask({ op: "status", session: "queue" })).frames, [
      { type: "status", status: "done", phase: "idle", waiting: 0 },
    ])
  })

  t.test("a waiting send that disconnects leaves the queue and records nothing", async t => {
    const run = stage.send([{ sleep_ms: 800 }, { say: "x" }], { session: "leave" })
    await run.frame("start")
    const waiter = stage.send([{ say: "never" }], { session: "leave", wait: true, id: "gone" })
    for (;;) {
      const status = (await ask({ op: "status", session: "leave" })).frames[0]!
      if (status.waiting === 1) break
    }
    waiter.destroy()
    await run.over()
    await stage.send([{ say: "after" }], { session: "leave", wait: true }).over()
    const rows = readRows(join(stage.sessionDir, "leave/messages.jsonl"))
    t.notOk(rows.some(r => r.client_id === "gone"))
  })

  t.test(
    "session.9 cancel without session ends a run of a session that is not current, on both connections",
    async t => {
      const dir = join(stage.sessionDir, "target")
      const run = stage.send([call("nap", { args: ["31.7"] }), { say: "no" }], { session: "target" })
      const start = await run.frame("start")
      await run.frame("tool_call")
      await stage.send([{ say: "now current" }], { session: "other" }).over()
      t.equal(readFileSync(join(stage.sessionDir, "index/current"), "utf8"), "other\n")
      await waitFor(() => isRunning("sleep", "31.7"))
      const cancel = await ask({ op: "cancel", id: start.run })
      t.notOk(isRunning("sleep", "31.7"), "no process of the run is alive when the line arrives")
      await run.over()
      t.match(cancel.frames, [{ type: "done", run: start.run, status: "cancelled" }])
      t.equal(run.lines.at(-1)!.text, cancel.lines[0]!.text)
      t.equal(readFileSync(join(dir, "state"), "utf8"), "idle\n")
      const events = readRows(join(dir, "events.jsonl"))
      t.match(events.at(-1), { type: "done", status: "cancelled" }, "no row of the run after it")
      t.strictSame(
        readRows(join(dir, "messages.jsonl")).map(r => r.role),
        ["user"],
      )

      const again = await ask({ op: "cancel", id: start.run })
      t.equal(again.lines[0]!.text, cancel.lines[0]!.text)
      t.match((await ask({ op: "cancel", id: `ctx-${"0".repeat(32)}` })).frames, [{ type: "error", code: "ENOENT" }])
    },
  )

  t.test("cancel while the model is asked ends the run at once", async t => {
    const run = stage.send([{ sleep_ms: 60000 }], { session: "asking" })
    const start = await run.frame("start")
    const before = Date.now()
    await ask({ op: "cancel", id: start.run, session: "asking" })
    await run.over()
    t.ok(Date.now() - before < 2_000)
    t.match(run.frames.at(-1), { type: "done", status: "cancelled" })
  })

  t.test(
    "session.23 cancel without session finds a run of default, not one of a session this process has not opened",
    async t => {
      const mine = await stage.send([{ say: "d" }]).over()
      const far = await stage.send([{ say: "f" }], { session: "far" }).over()
      await stage.restart()
      const line = await ask({ op: "cancel", id: mine.frames[0]!.run })
      t.equal(line.lines[0]!.text, mine.lines.at(-1)!.text)
      t.match((await ask({ op: "cancel", id: far.frames[0]!.run })).frames, [{ type: "error", code: "ENOENT" }])
      const opened = execFileSync("ls", ["-l", `/proc/${stage.runtime.child.pid}/fd`], { encoding: "utf8" })
      t.notMatch(opened, /session\/far/, "its files are not opened")
      t.match((await ask({ op: "cancel", id: far.frames[0]!.run, session: "far" })).frames, [
        { type: "done", status: "ok" },
      ])
    },
  )

  t.test("session.10 resume sends the stored lines from the place asked for", async t => {
    await stage.send([{ say: "1" }, call("fs.list", {}), { say: "2" }], { session: "resumed" }).over()
    const lines = readFileSync(join(stage.sessionDir, "resumed/events.jsonl"), "utf8").split("\n").slice(0, -1)
    const start = JSON.parse(lines[1]!)
    const before = fingerprint(join(stage.sessionDir, "resumed"))
    const resume = async (after?: unknown) =>
      (await ask({ op: "resume", session: "resumed", after })).lines.map(l => l.text)
    t.strictSame(await resume(), lines)
    t.strictSame(await resume(0), lines)
    t.strictSame(await resume(3), lines.slice(3))
    t.strictSame(await resume(start.id), lines.slice(2))
    t.strictSame(await resume(lines.length), [])
    t.strictSame(await resume(lines.length + 5), [])
    t.match((await ask({ op: "resume", session: "resumed", after: "nope" })).frames, [
      { type: "error", code: "ENOENT" },
    ])
    t.match((await ask({ op: "resume", session: "absent" })).frames, [{ type: "error", code: "ENOENT" }])
    t.strictSame(fingerprint(join(stage.sessionDir, "resumed")), before)
    const idle = await ask({ op: "resume", session: "resumed", follow: true })
    t.strictSame(
      idle.lines.map(l => l.text),
      lines,
      "follow with no active run ends at once",
    )
  })

  t.test("session.10 follow during a run gives each stored line once, no delta, and ends after done", async t => {
    const run = stage.send([{ say: "1" }, call("nap", { args: ["0.5"] }), { say: "2" }], { session: "followed" })
    await run.frame("tool_call")
    const follower = stage.owner.open(stage.runtime.socket).send({ op: "resume", session: "followed", follow: true })
    await Promise.all([run.over(), follower.over()])
    const lines = readFileSync(join(stage.sessionDir, "followed/events.jsonl"), "utf8").split("\n").slice(0, -1)
    t.strictSame(
      follower.lines.map(l => l.text),
      lines,
    )
  })

  t.test("status tells the phase of a run and nothing of its text", async t => {
    const run = stage.send([call("nap", { args: ["0.6"] }), { say: "secret words" }], { session: "phase" })
    const start = await run.frame("start")
    await run.frame("tool_call")
    const busy = await ask({ op: "status", session: "phase" })
    t.match(busy.frames, [
      { status: "active", phase: "tool", tool: "nap", run: start.run, step: 0, model: "debug/script", waiting: 0 },
    ])
    t.equal(readFileSync(join(stage.controlDir, "status"), "utf8"), "busy\n")
    t.equal(readFileSync(join(stage.controlDir, "pid"), "utf8"), `${stage.runtime.child.pid}\n`)
    await run.over()
    t.match((await ask({ op: "status", session: "absent" })).frames, [{ status: "idle", phase: "idle", waiting: 0 }])
    t.equal(readFileSync(join(stage.controlDir, "status"), "utf8"), "ready\n")
  })

  t.test(
    "SIGTERM settles active runs as EINTR within 5 s, exits 0, and takes socket, status and pid along",
    async t => {
      const run = stage.send([call("nap", { args: ["32.7"] })], { session: "term" })
      await run.frame("tool_call")
      const before = Date.now()
      t.equal(await stage.runtime.stop(), 0)
      t.ok(Date.now() - before < 5_000)
      await run.over()
      t.match(run.frames.slice(-2), [
        { type: "error", code: "EINTR" },
        { type: "done", status: "error" },
      ])
      t.notOk(isRunning("sleep", "32.7"))
      t.equal(readFileSync(join(stage.sessionDir, "term/state"), "utf8"), "error\n")
      t.equal(readFileSync(join(stage.controlDir, "status"), "utf8"), "dead\n")
      t.equal(readFileSync(join(stage.controlDir, "pid"), "utf8"), "\n")
      t.notOk(
        readdirSync(stage.controlDir).some(name => name.startsWith(".")),
        "no residue",
      )
      stage.runtime = await stage.stack.startRuntime("coder")
    },
  )

  t.test("op stop is accepted, ends runs as cancelled and then the runtime", async t => {
    const run = stage.send([call("nap", { args: ["33.7"] })], { session: "stop" })
    await run.frame("tool_call")
    const exited = new Promise(resolve => stage.runtime.child.once("exit", resolve))
    t.match((await ask({ op: "stop", agent: "coder" })).frames, [{ type: "accepted", op: "stop", agent: "coder" }])
    t.equal(await exited, 0)
    await run.over()
    t.match(run.frames.at(-1), { type: "done", status: "cancelled" })
    t.equal(readFileSync(join(stage.sessionDir, "stop/state"), "utf8"), "idle\n")
    t.match(readRows(join(stage.controlDir, "log")).at(-1), { type: "agent.stop", agent: "coder", status: "dead" })
    stage.runtime = await stage.stack.startRuntime("coder")
    t.ok(existsSync(stage.runtime.socket))
  })
})
