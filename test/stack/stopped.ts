// needs: root fuse bwrap
import { existsSync } from "node:fs"
import t from "tap"
import { isRunning } from "../fixture/agent/process.js"
import { call } from "../fixture/agent/stage.js"
import { findMountLine } from "../harness/mount.js"
import { OWNER } from "../harness/product.js"
import { cleanEnv, startProgram, stopProgram } from "../harness/program.js"
import {
  checkEnded,
  checkProven,
  checkSends,
  checkTold,
  eventsOf,
  findProcesses,
  findSandboxed,
  makeWholeStage,
  stateOf,
  until,
  untilNoSandbox,
} from "./fixture/kit.js"

t.test("programs that are asked to end while they are busy", async t => {
  const stage = await makeWholeStage(t)
  const { stack } = stage
  const nap = "64.5"
  stage.tool("stay", `#!/bin/sh\ntrap '' TERM\n(trap '' TERM; setsid sleep ${nap} &)\nsleep ${nap}\nsleep ${nap}\n`)

  t.test("SIGTERM of the runtime settles what a deaf tool, a model and a queue are at, and exits 0 in 5 s", async t => {
    const tool = stage.send([call("stay", { args: ["x"] }), { say: "never" }], { session: "tool", id: "t-1" })
    await tool.frame("tool_call")
    await until("the tool", () => isRunning("sleep", nap))
    const model = stage.send([{ say: "so far" }, { sleep_ms: 60_000 }], { session: "model", id: "t-2" })
    await model.frame("delta")
    const waiting = stage.send([{ say: "never" }], { session: "model", wait: true, id: "t-3" })
    const { owner, runtime } = stage
    for (let waited = 0; ; waited++) {
      const { frames } = await owner.ask(runtime.socket, { op: "status", session: "model" })
      if (frames[0]?.waiting === 1) break
      if (waited > 200) throw new Error("the third send does not wait")
    }
    const half = owner.open(runtime.socket).send('{"op":"pi')
    const begun = Date.now()
    t.equal(await runtime.stop(), 0)
    const tookMs = Date.now() - begun
    t.ok(tookMs < 5_000, `${tookMs} ms`)
    t.strictSame(findSandboxed(stage), [], "no process is left when it is gone")
    t.notOk(isRunning("sleep", nap))
    t.notOk(findProcesses(stage).some(p => /cortexfs-agent/.test(p.command)))
    await Promise.all([tool, model, waiting, half].map(c => c.over()))
    for (const [session, run] of [
      ["tool", tool],
      ["model", model],
    ] as const) {
      t.match(run.frames.slice(-2), [
        { type: "error", code: "EINTR" },
        { type: "done", status: "error" },
      ])
      checkEnded(t, stage, session, run.frames[0]!.run, "EINTR")
      checkTold(t, stage, session, run)
      await checkProven(t, stage, session)
    }
    t.match(waiting.frames, [{ type: "error", code: "EHOSTDOWN" }], "a waiter is answered")
    t.notOk(eventsOf(stage, "model").some(e => e.client_id === "t-3"))

    const before = eventsOf(stage, "tool").length
    stage.runtime = await stack.startRuntime("coder")
    for (const session of ["tool", "model"]) await checkSends(t, stage, session)
    t.equal(eventsOf(stage, "tool").slice(before)[0]!.type, "start", "recovery finds nothing to do")
  })

  t.test("a second SIGTERM and a SIGINT while it ends change nothing", async t => {
    const run = stage.send([call("stay", { args: ["x"] })], { session: "twice" })
    await run.frame("tool_call")
    await until("the tool", () => isRunning("sleep", nap))
    const { child } = stage.runtime
    const ended = new Promise<number | null>(resolve => child.once("exit", resolve))
    child.kill("SIGTERM")
    await new Promise(resolve => setTimeout(resolve, 30))
    child.kill("SIGTERM")
    child.kill("SIGINT")
    const code = await ended
    t.strictSame(await untilNoSandbox(stage), [])
    stage.runtime = await stack.startRuntime("coder")
    await until("the state", () => stateOf(stage, "twice") === "error\n")
    await checkProven(t, stage, "twice")
    checkEnded(t, stage, "twice", eventsOf(stage, "twice").find(e => e.type === "start")!.run, "EINTR")
    t.equal(code, 0, "it still ends in order")
  })

  t.test("fuse.2 (busy view) SIGTERM of coder's view in the middle of a run exits 0 in 5 s and unmounts", async t => {
    const run = stage.send([call("stay", { args: ["x"] })], { session: "view" })
    const start = await run.frame("start")
    await until("the tool", () => isRunning("sleep", nap))
    const { mountPoint } = stage.view
    const loop = `while :; do ls -lR ${mountPoint} > /dev/null 2>&1; cat ${mountPoint}/status; done`
    const readers = [1, 2, 3].map(() =>
      startProgram(["/bin/sh", "-c", loop], { uid: OWNER, env: cleanEnv(), stdio: "ignore" }),
    )
    await new Promise(resolve => setTimeout(resolve, 300))
    const begun = Date.now()
    t.equal(await stage.view.stop(), 0)
    t.ok(Date.now() - begun < 5_000, `${Date.now() - begun} ms`)
    t.equal(findMountLine(mountPoint), undefined)
    for (const reader of readers) await stopProgram(reader, "SIGKILL")
    await stage.owner.ask(stage.runtime.socket, { op: "cancel", id: start.run as string })
    await run.over()
    t.match(run.frames.at(-1), { type: "done", status: "cancelled" })
    t.strictSame(findSandboxed(stage), [])
    stage.view = await stack.startView("coder")
    await checkSends(t, stage, "view")
    await checkProven(t, stage, "view")
  })

  t.test(
    "fuse.2 (busy host view) SIGTERM of the host view while clients use it exits 0 in 5 s and the run goes on",
    async t => {
      const { host } = stage
      const text = JSON.stringify({
        schema: "cortexfs.script/v1",
        steps: [{ say: "a\n" }, { sleep_ms: 1500 }, { say: "b" }],
      })
      const sending = stack.runCtx(["agent", "send", "coder", "--session", "host", text])
      await until("the run", () => existsSync(`${stage.sessionDir}/host/state`))
      const loop = `while :; do ls -lR ${stack.ctx} > /dev/null 2>&1; done`
      const readers = [1, 2, 3].map(() =>
        startProgram(["/bin/sh", "-c", loop], { uid: OWNER, env: cleanEnv(), stdio: "ignore" }),
      )
      await new Promise(resolve => setTimeout(resolve, 300))
      const begun = Date.now()
      t.equal(await host.stop(), 0)
      t.ok(Date.now() - begun < 5_000, `${Date.now() - begun} ms`)
      t.equal(findMountLine(stack.ctx), undefined)
      for (const reader of readers) await stopProgram(reader, "SIGKILL")
      const sent = await sending
      t.same([sent.code, sent.stdout], [0, "a\nb\n"])
      stage.host = await stack.startHost()
      await checkProven(t, stage, "host")
    },
  )
})
