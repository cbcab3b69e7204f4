// needs: root fuse bwrap
import { existsSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { isRunning } from "../fixture/agent/process.js"
import { python } from "../fixture/agent/python.js"
import { call, fingerprint } from "../fixture/agent/stage.js"
import { findMountLine } from "../harness/mount.js"
import { currentGeneration, OWNER } from "../harness/product.js"
import { cleanEnv, runProgram, startProgram } from "../harness/program.js"
import {
  checkEnded,
  checkProven,
  checkRefusal,
  checkSends,
  checkTold,
  eventsOf,
  makeWholeStage,
  rowsOf,
  stateOf,
  type Tap,
  until,
  untilNoSandbox,
} from "./fixture/kit.js"

/** Reads the tree at argv[1] in every way for ever; prints the errno of the first failure and ends. */
const READER = `import os,sys
root = sys.argv[1]
print("begun", flush=True)
try:
    held = open(root + "/status")
    while True:
        os.listdir(root); os.stat(root + "/status"); open(root + "/status").read(); os.listdir(root + "/tool")
        for d, _, names in os.walk(root + "/agent"):
            for n in names: os.lstat(os.path.join(d, n))
except OSError as e:
    import errno; print(errno.errorcode[e.errno], flush=True)`

/** Starts readers of a mount; gives what each said when all have ended. */
function startReaders(root: string, count: number): { begun: Promise<unknown>; said: Promise<string[]> } {
  const readers = Array.from({ length: count }, () => {
    const child = startProgram(["/usr/bin/python3", "-c", READER, root], { uid: OWNER, env: cleanEnv() })
    let text = ""
    const said = new Promise<string>((resolve, reject) => {
      const clock = setTimeout(() => {
        child.kill("SIGKILL")
        reject(new Error(`a reader of ${root} hangs`))
      }, 30_000)
      child.once("close", () => {
        clearTimeout(clock)
        resolve(text.replace("begun\n", "").trim())
      })
    })
    const begun = new Promise(resolve => child.stdout!.once("data", resolve))
    child.stdout!.setEncoding("utf8").on("data", part => (text += part))
    return { begun, said }
  })
  return { begun: Promise.all(readers.map(r => r.begun)), said: Promise.all(readers.map(r => r.said)) }
}

t.test("mounts killed in the middle of a send", async t => {
  const stage = await makeWholeStage(t)
  const { stack } = stage
  const viewPoint = stage.view.mountPoint
  stage.tool("nap", '#!/bin/sh\nsleep "$1"\ncat /ctx/status /home/agent/data/x\n')
  const killView = async (t: Tap) => {
    stage.view.child.kill("SIGKILL")
    await until("the death of the view", () => stage.view.child.signalCode !== null)
    t.equal(findMountLine(viewPoint)?.type, "fuse.cortexfs", "a dead mount stays")
  }
  const reviveView = async (t: Tap) => {
    stage.view = await stack.startView("coder")
    t.match(readFileSync(join(viewPoint, "status"), "utf8"), "agent=coder\n")
  }

  t.test(
    "a view killed while a tool runs of a program that is started anew for each step: the run ends in error",
    async t => {
      const program = readFileSync(join(currentGeneration(stack), "agent/coder"), "utf8")
      const lines = 'e = read()\nif e["step"] == 0: call("c-1", "nap", args=["1.71"])\nelse: say("never")'
      stage.program(python(lines))
      const run = stage.send("hi", { session: "tool" })
      await run.frame("tool_call")
      await until("the tool", () => isRunning("sleep", "1.71"))
      const readers = startReaders(viewPoint, 4)
      await readers.begun
      await killView(t)
      for (const code of await readers.said) t.match(code, /^(ECONNABORTED|ENOTCONN)$/)
      await run.over(30_000)
      checkEnded(t, stage, "tool", run.frames[0]!.run, "EHOSTDOWN")
      t.match(run.frames.at(-1), { type: "done", status: "error" })
      checkTold(t, stage, "tool", run)
      const result = rowsOf(stage, "tool").find(r => r.role === "tool")
      t.match(result, { content: [{ tool_call_id: "c-1", status: "error" }] }, "the dead view is an error inside")
      t.strictSame(await untilNoSandbox(stage), [])
      await checkProven(t, stage, "tool")
      stage.program(program)
    },
  )

  t.test(
    "while the view is dead a send is EHOSTDOWN and nothing is recorded; status, replay and history serve on",
    async t => {
      const before = fingerprint(stage.sessionDir)
      for (const session of ["tool", "new"]) {
        const opened = Date.now()
        checkRefusal(t, await stage.send([{ say: "x" }], { session }).over(), "EHOSTDOWN")
        t.ok(Date.now() - opened < 5_000)
      }
      checkRefusal(t, await stage.send([{ say: "x" }], { scope: "temp" }).over(), "EHOSTDOWN")
      const sent = await stack.runCtx(["agent", "send", "coder", "hello"])
      t.equal(sent.code, 69)
      t.match(sent.stderr, /^ctx: EHOSTDOWN: [^\n]+\n$/)
      const { runtime, owner } = stage
      t.match((await owner.ask(runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
      t.match((await owner.ask(runtime.socket, { op: "status", session: "tool" })).frames, [{ status: "error" }])
      t.equal(
        (await owner.ask(runtime.socket, { op: "resume", session: "tool" })).lines.length,
        eventsOf(stage, "tool").length,
      )
      t.strictSame(fingerprint(stage.sessionDir), before)
    },
  )

  t.test("fuse.38 (dead view) a new start detaches the dead mount, and sends go on in the same runtime", async t => {
    await reviveView(t)
    await checkSends(t, stage, "tool")
    const run = await stage.send([call("fs.list", { path: "." }), { say: "end" }], { session: "new" }).over()
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
    for (const session of ["tool", "new"]) await checkProven(t, stage, session)
  })

  t.test(
    "a view killed while a tool of a warm program runs: the next step is EHOSTDOWN, and all is told and stored",
    async t => {
      const steps = [call("nap", { args: ["1.72"] }), call("fs.list", { path: "." }), { say: "told" }]
      const run = stage.send(steps, { session: "warm" })
      await run.frame("tool_call")
      await until("the tool", () => isRunning("sleep", "1.72"))
      await killView(t)
      await run.over(30_000)
      t.match(
        run.frames.filter(f => f.type === "error").map(f => f.code),
        ["EHOSTDOWN"],
      )
      t.match(run.frames.at(-1), { type: "done", status: "error" })
      t.equal(eventsOf(stage, "warm").filter(e => e.type === "done").length, 1)
      checkTold(t, stage, "warm", run)
      t.strictSame(await untilNoSandbox(stage), [])
      await checkProven(t, stage, "warm")
      await reviveView(t)
      await checkSends(t, stage, "warm")
    },
  )

  t.test("a view killed before the model answers with a call: the run ends in error and is settled", async t => {
    const run = stage.send([{ sleep_ms: 1_500 }, call("fs.list", { path: "." }), { say: "never" }], {
      session: "model",
    })
    await run.frame("start")
    await killView(t)
    await run.over(30_000)
    t.match(run.frames.at(-1), { type: "done", status: "error" })
    checkEnded(t, stage, "model", run.frames[0]!.run, "EHOSTDOWN")
    checkTold(t, stage, "model", run)
    await checkProven(t, stage, "model")
    t.strictSame(await untilNoSandbox(stage), [])
    await reviveView(t)
    await checkSends(t, stage, "model")
  })

  t.test("a view replaced while a tool runs: the tool keeps the dead one, the next step has the new one", async t => {
    const run = stage.send([call("nap", { args: ["1.73"] }), { say: "on" }], { session: "replaced" })
    await run.frame("tool_call")
    await until("the tool", () => isRunning("sleep", "1.73"))
    await killView(t)
    await reviveView(t)
    await run.over(30_000)
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
    const result = rowsOf(stage, "replaced").find(r => r.role === "tool")
    t.match(result, { content: [{ status: "error" }] }, "the dead view is an error inside")
    await checkProven(t, stage, "replaced")
  })

  t.test(
    "session files written on the backing side while the host view dies are whole, and coder's runs go on",
    async t => {
      const run = stage.send([call("nap", { args: ["1.75"] }), { say: "through" }], { session: "host" })
      await run.frame("tool_call")
      const text = JSON.stringify({
        schema: "cortexfs.script/v1",
        steps: [{ say: "a\n" }, { sleep_ms: 2000 }, { say: "b" }],
      })
      const sending = stack.runCtx(["agent", "send", "coder", "--session", "by-ctx", text])
      await until("the run of ctx", () => existsSync(join(stage.sessionDir, "by-ctx/state")))
      const readers = startReaders(stack.ctx, 4)
      await readers.begun
      stage.host.child.kill("SIGKILL")
      for (const code of await readers.said) t.match(code, /^(ECONNABORTED|ENOTCONN)$/)
      await run.over(30_000)
      t.match(run.frames.at(-1), { type: "done", status: "ok" }, "the agent's own view is another")
      const sent = await sending
      t.same([sent.code, sent.stdout], [0, "a\nb\n"], "an open connection needs no mount")

      for (const args of [
        ["status"],
        ["ls"],
        ["cat", "tool/fs.read"],
        ["agent", "send", "coder", "hi"],
        ["agent", "session", "list", "coder"],
        ["agent", "history", "coder"],
      ]) {
        const begun = Date.now()
        const ended = await stack.runCtx(args)
        t.match([69, 13, 1].includes(ended.code ?? -1), true, `${args.join(" ")}: ${ended.code}`)
        t.match(ended.stderr, /^ctx: (EHOSTDOWN|ENOTCONN|ECONNREFUSED|EIO|ECONNABORTED): [^\n]+\n$/, args.join(" "))
        t.ok(Date.now() - begun < 10_000)
      }
      const dead = await runProgram(["/usr/bin/stat", `${stack.ctx}/status`])
      t.match(dead.stderr, "Transport endpoint is not connected")

      stage.host = await stack.startHost()
      for (const session of ["host", "by-ctx"]) await checkProven(t, stage, session)
      t.equal((await stack.runCtx(["status"])).code, 0)
      const again = await stack.runCtx(["agent", "send", "coder", "--session", "by-ctx", text])
      t.same([again.code, again.stdout], [0, "a\nb\n"])
      t.equal(stateOf(stage, "by-ctx"), "done\n")
    },
  )

  t.test("view, host view and runtime killed together in a send start again in any order", async t => {
    writeFileSync(join(stage.workspace, "count"), "")
    const run = stage.send([call("nap", { args: ["63.7"] })], { session: "all" })
    await run.frame("tool_call")
    await until("the tool", () => isRunning("sleep", "63.7"))
    stage.host.child.kill("SIGKILL")
    stage.view.child.kill("SIGKILL")
    stage.runtime.child.kill("SIGKILL")
    await run.over()
    t.strictSame(await untilNoSandbox(stage), [])
    stage.runtime = await stack.startRuntime("coder")
    await until("recovery", () => stateOf(stage, "all") === "error\n")
    checkEnded(t, stage, "all", run.frames[0]!.run, "EINTR")
    checkRefusal(t, await stage.send([{ say: "x" }], { session: "all" }).over(), "EHOSTDOWN")
    stage.host = await stack.startHost()
    await reviveView(t)
    await checkProven(t, stage, "all")
    await checkSends(t, stage, "all")
  })
})
