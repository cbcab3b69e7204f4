// needs: root fuse bwrap
import { readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { python } from "../fixture/agent/python.js"
import { makeStage, type Stage } from "../fixture/agent/stage.js"

const KIB = 1024
/** Prints deltas of 200 KiB in step after step, 4 MiB in all, then answers. */
const FLOOD = python(`e = read()
for i in range(4): out(type="delta", text="x" * 200000)
if e["step"] < 5: call("c-%d" % e["step"], "true", args=["x"])
else: say("end")`)

t.test("output to slow and absent peers", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  stage.tool("true", "#!/bin/sh\n:\n")
  stage.program(FLOOD)
  const rssKib = () =>
    Number(/^VmRSS:\s+([0-9]+)/m.exec(readFileSync(`/proc/${stage.runtime.child.pid}/status`, "utf8"))![1])
  const state = (session: string) => readFileSync(join(stage.sessionDir, session, "state"), "utf8")

  t.test(
    "a peer that stops reading holds its own run up, not another, and gets every byte when it reads again",
    async t => {
      await stage.send("hi", { session: "warm" }).over()
      const before = rssKib()
      const slow = stage.send("hi", { session: "slow" })
      await slow.frame("start")
      slow.pause()
      await new Promise(resolve => setTimeout(resolve, 1_500))
      t.equal(state("slow"), "active\n", "the run waits")
      t.ok(rssKib() - before < 40 * KIB, `${rssKib() - before} KiB more`)
      const other = await stage.send("hi", { session: "other" }).over()
      t.match(other.frames.at(-1), { type: "done", status: "ok" })
      slow.resume()
      await slow.over()
      t.match(slow.frames.at(-1), { type: "done", status: "ok" })
      const size = slow.frames.filter(f => f.type === "delta").reduce((sum, f) => sum + (f.text as string).length, 0)
      t.equal(size, 6 * 4 * 200_000)
    },
  )

  t.test("cancel and SIGTERM do not wait for a peer that does not read", async t => {
    const first = stage.send("hi", { session: "jam-1" })
    const start = await first.frame("start")
    first.pause()
    await new Promise(resolve => setTimeout(resolve, 800))
    const before = Date.now()
    const cancel = await stage.owner.ask(stage.runtime.socket, { op: "cancel", id: start.run })
    t.match(cancel.frames, [{ type: "done", status: "cancelled" }])
    t.ok(Date.now() - before < 2_000, `${Date.now() - before} ms`)
    first.destroy()
    const second = stage.send("hi", { session: "jam-2" })
    await second.frame("start")
    second.pause()
    await new Promise(resolve => setTimeout(resolve, 800))
    const then = Date.now()
    t.equal(await stage.runtime.stop(), 0)
    t.ok(Date.now() - then < 5_000, `${Date.now() - then} ms`)
    t.equal(state("jam-2"), "error\n")
    second.destroy()
    stage.runtime = await stage.stack.startRuntime("coder")
  })

  t.test("a peer that takes no byte for 30 s is disconnected and its private run goes on to the end", async t => {
    const stalled = stage.send("hi", { session: "stalled" })
    await stalled.frame("start")
    stalled.pause()
    const before = Date.now()
    while (state("stalled") === "active\n" && Date.now() - before < 45_000)
      await new Promise(resolve => setTimeout(resolve, 100))
    const tookMs = Date.now() - before
    t.ok(tookMs > 28_000 && tookMs < 40_000, `${tookMs} ms`)
    t.equal(state("stalled"), "done\n")
    stalled.destroy()
  })

  t.test("a client that goes away does not stop a private run", async t => {
    const gone = stage.send("hi", { session: "gone" })
    await gone.frame("start")
    gone.destroy()
    const before = Date.now()
    while (state("gone") === "active\n" && Date.now() - before < 15_000)
      await new Promise(resolve => setTimeout(resolve, 50))
    t.equal(state("gone"), "done\n")
  })

  t.test("the 257th connection is EAGAIN, and a place is free again when one goes", async t => {
    const { owner, runtime } = stage
    const open = Array.from({ length: 256 }, () => owner.open(runtime.socket).send('{"op":'))
    await open.at(-1)!.until(() => open.every(c => c.openedAt > 0))
    const c = await owner.ask(runtime.socket, { op: "ping" })
    t.match(c.frames, [{ type: "error", code: "EAGAIN" }])
    open[0]!.send('"ping"}\n')
    await open[0]!.over()
    t.match(open[0]!.frames, [{ type: "pong" }])
    await new Promise(resolve => setTimeout(resolve, 50))
    t.match((await owner.ask(runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
    for (const one of open) one.destroy()
  })

  t.test("16 runs are active at most: one more is EAGAIN, or waits when it says so", async t => {
    stage.program(python('e = read()\nwhile not os.path.exists("/workspace/go"): time.sleep(0.05)\nsay("x")'))
    const runs = Array.from({ length: 16 }, (_, i) => stage.send("hi", { session: `many-${i}` }))
    await Promise.all(runs.map(run => run.frame("start")))
    t.match((await stage.send("hi", { session: "many-16" }).over()).frames, [{ type: "error", code: "EAGAIN" }])
    const waiting = stage.send("hi", { session: "many-17", wait: true })
    await new Promise(resolve => setTimeout(resolve, 200))
    t.equal(waiting.lines.length, 0)
    const first = runs[0]!.frames[0]!.run
    await stage.owner.ask(stage.runtime.socket, { op: "cancel", id: first })
    await waiting.frame("start")
    await stage.runtime.stop()
    for (const run of [...runs.slice(1), waiting]) {
      await run.over()
      t.match(run.frames.at(-1), { type: "done", status: "error" })
    }
    stage.runtime = await stage.stack.startRuntime("coder")
  })
})
