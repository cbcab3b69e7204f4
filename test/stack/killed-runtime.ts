// needs: root fuse bwrap
import { existsSync, readFileSync, rmSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import type { Connection } from "../fixture/agent/peer.js"
import { isRunning } from "../fixture/agent/process.js"
import { call, type Stage } from "../fixture/agent/stage.js"
import {
  checkEnded,
  checkProven,
  checkSends,
  checkTold,
  eventsOf,
  findSandboxed,
  makeWholeStage,
  rowsOf,
  sessionPath,
  stateOf,
  type Tap,
  until,
  untilNoSandbox,
} from "./fixture/kit.js"

const NAP = "61.5"
/** The nap of a process that leaves its session and its parent. */
const AWAY = "62.5"

t.test("a runtime killed in the middle of a send", async t => {
  const stage: Stage = await makeWholeStage(t)
  const counter = join(stage.workspace, "count")
  const counted = () => (existsSync(counter) ? readFileSync(counter, "utf8") : "")
  const away = `[ "$1" = nap ] && { (setsid sleep ${AWAY} &); sleep ${NAP}; }`
  stage.tool("count", `#!/bin/sh\nprintf x >> /workspace/count\n${away}\necho counted\n`)

  /** Kills when `comes` resolves, starts again, and checks everything; `calls` is what the tool has counted. */
  const kill = async (
    t: Tap,
    session: string,
    steps: object[],
    calls: string,
    comes: (run: Connection) => Promise<unknown>,
  ) => {
    rmSync(counter, { force: true })
    const run = stage.send(steps, { session, id: "k-1" })
    await comes(run)
    const start = await run.frame("start")
    t.equal(stateOf(stage, session), "active\n")
    stage.runtime.child.kill("SIGKILL")
    await run.over()
    t.notOk(
      run.frames.some(f => f.type === "done"),
      "the client sees an end without done",
    )
    t.strictSame(await untilNoSandbox(stage), [], "no process of its sandbox survives")
    t.notOk(isRunning("sleep", NAP) || isRunning("sleep", AWAY))
    t.equal(counted(), calls)

    stage.runtime = await stage.stack.startRuntime("coder")
    await until("recovery", () => stateOf(stage, session) === "error\n")
    checkEnded(t, stage, session, start.run, "EINTR")
    checkTold(t, stage, session, run)
    await checkProven(t, stage, session)
    t.strictSame(findSandboxed(stage), [], "nothing is started for it")

    const before = readFileSync(sessionPath(stage, session, "events.jsonl"))
    const replay = await stage.send(steps, { session, id: "k-1" }).over()
    t.strictSame(
      replay.lines.map(l => l.text),
      [before.toString().trimEnd().split("\n").at(-1)],
      "the same id gives the stored done",
    )
    t.strictSame(readFileSync(sessionPath(stage, session, "events.jsonl")), before)

    await checkSends(t, stage, session)
    await checkProven(t, stage, session)
    t.equal(counted(), calls, "the tool was not run again")
    t.equal(rowsOf(stage, session).filter(r => r.client_id === "k-1").length, 1)
    t.equal(eventsOf(stage, session).filter(e => e.run === start.run && e.type === "tool_call").length, calls.length)
    t.equal(stateOf(stage, session), "done\n")
  }

  t.test("session.6 (killed before the model answers) the next start settles the run and executes nothing", t =>
    kill(t, "before-answer", [{ sleep_ms: 60_000 }, call("count", { args: ["x"] })], "", async run => {
      await run.frame("start")
      await until("a step program that waits for the model", () => findSandboxed(stage).length > 0)
    }),
  )

  t.test("session.6 (killed after deltas) the next start settles the run without its deltas", t =>
    kill(t, "after-deltas", [{ say: "so far" }, { sleep_ms: 60_000 }], "", run => run.frame("delta")),
  )

  t.test(
    "session.6 (killed while a tool runs), security.24 (SIGKILL of the runtime), security.36 no process lives on, the call is told as interrupted, the tool does not run again",
    t =>
      kill(t, "tool-runs", [call("count", { args: ["nap"] }), { say: "never" }], "x", async run => {
        await run.frame("tool_call")
        await until("the tool", () => isRunning("sleep", NAP) && isRunning("sleep", AWAY))
      }),
  )

  t.test("session.6 (killed after a tool result) the next start keeps the result and settles the run", t =>
    kill(t, "after-result", [call("count", { args: ["x"] }), { sleep_ms: 60_000 }], "x", run =>
      run.until(() => run.frames.some(f => f.type === "message" && f.role === "tool")),
    ),
  )

  t.test("session.6 (killed with three sessions at work) each is settled for itself", async t => {
    rmSync(counter, { force: true })
    const sessions = ["left", "middle", "right"]
    const runs = sessions.map((session, i) =>
      stage.send(i === 1 ? [call("count", { args: ["nap"] })] : [{ sleep_ms: 60_000 }], { session, id: "k-3" }),
    )
    await Promise.all(runs.map(run => run.frame("start")))
    await until("the tool", () => isRunning("sleep", NAP))
    stage.runtime.child.kill("SIGKILL")
    await Promise.all(runs.map(run => run.over()))
    t.strictSame(await untilNoSandbox(stage), [], "no process of a sandbox survives")
    stage.runtime = await stage.stack.startRuntime("coder")
    for (const [i, session] of sessions.entries()) {
      await until(`recovery of ${session}`, () => stateOf(stage, session) === "error\n")
      checkEnded(t, stage, session, runs[i]!.frames[0]!.run, "EINTR")
      await checkProven(t, stage, session)
      await checkSends(t, stage, session)
    }
    t.equal(counted(), "x")
  })

  t.test("ctx tells the death of its runtime in one line, and the run's EINTR when the id is sent again", async t => {
    const steps = JSON.stringify({ schema: "cortexfs.script/v1", steps: [{ say: "begun\n" }, { sleep_ms: 60_000 }] })
    const args = ["agent", "send", "coder", "--session", "by-ctx", "--id", "k-4", steps]
    const sending = stage.stack.runCtx(args)
    await until(
      "the run",
      () => existsSync(sessionPath(stage, "by-ctx", "state")) && stateOf(stage, "by-ctx") === "active\n",
    )
    stage.runtime.child.kill("SIGKILL")
    const ended = await sending
    t.not(ended.code, 0)
    t.match(ended.stderr, /^ctx: [A-Z]+: [^\n]+\n$/)
    const dead = await stage.stack.runCtx(args)
    t.not(dead.code, 0, "no runtime listens")
    t.match(dead.stderr, /^ctx: (ECONNREFUSED|ENOENT): [^\n]+\n$/)
    stage.runtime = await stage.stack.startRuntime("coder")
    const again = await stage.stack.runCtx(args)
    t.not(again.code, 0)
    t.match(again.stderr, /^ctx: EINTR: [^\n]+\n$/)
  })
})
