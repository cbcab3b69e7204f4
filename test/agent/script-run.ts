// needs: root fuse bwrap
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { call, makeStage, readRows, type Stage } from "../fixture/agent/stage.js"

t.test("a scripted run", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  writeFileSync(join(stage.workspace, "Makefile"), "all: app\n")
  const dir = join(stage.sessionDir, "default")

  t.test("model.22 (no socket count) a script that calls fs.read is answered from the real file", async t => {
    const run = stage.send([
      { say: "Reading." },
      call("fs.read", { path: "Makefile" }),
      { expect: "app" },
      { say: ["The target ", "is app."] },
    ])
    await run.over()
    const { frames } = run
    t.strictSame(
      frames.filter(f => f.type !== "delta").map(f => f.type),
      ["start", "usage", "tool_call", "message", "usage", "message", "done"],
    )
    const deltas = frames.filter(f => f.type === "delta")
    t.strictSame(
      deltas.map(f => f.text),
      ["Reading.", "The target ", "is app."],
    )
    t.match(run.frames.at(-1), { status: "ok" })
    const rows = readRows(join(dir, "messages.jsonl"))
    t.strictSame(
      rows.map(r => r.role),
      ["user", "tool", "assistant"],
    )
    t.match(rows[1], {
      name: "fs.read",
      content: [{ type: "tool_result", tool_call_id: "c-1", content: "all: app\n", status: "ok" }],
    })
    t.match(rows[2], { content: [{ type: "text", text: "The target is app." }] })
    t.equal(readFileSync(join(dir, "latest.md"), "utf8"), "The target is app.\n")
    t.equal(readFileSync(join(dir, "state"), "utf8"), "done\n")
  })

  t.test("every stored line is sent exactly as stored, deltas are sent and never stored", async t => {
    const run = await stage.send([{ say: ["a", "b"] }]).over()
    const stored = readFileSync(join(dir, "events.jsonl"), "utf8").split("\n").slice(0, -1)
    const sent = run.lines.map(l => l.text).filter(text => !text.startsWith('{"type":"delta"'))
    t.strictSame(sent, stored.slice(-sent.length))
    t.equal(run.frames.filter(f => f.type === "delta").length, 2)
    t.notOk(stored.some(line => line.includes('"delta"')))
  })

  t.test("session.3 (no session only) a send without session creates and uses default", async t => {
    const run = await stage.send([{ say: "x" }], { session: undefined }).over()
    const start = run.frames[0]!
    t.match(start, {
      type: "start",
      run: /^ctx-[0-9a-f]{32}$/,
      scope: "private",
      cwd: "/workspace",
      model: "debug/script",
    })
    t.equal(start.id, start.run)
    t.ok(readFileSync(join(dir, "events.jsonl"), "utf8").includes(start.run as string))
  })

  t.test("session.13 every event has its line number as seq, every row a TS, and old files stay a prefix", async t => {
    const files = ["messages.jsonl", "events.jsonl"].map(name => join(dir, name))
    for (let turn = 0; turn < 5; turn++) {
      const old = files.map(path => readFileSync(path))
      await stage.send([{ say: `turn ${turn}` }, call("fs.list", {}), { say: "listed" }]).over()
      for (const [i, path] of files.entries()) {
        t.ok(readFileSync(path).subarray(0, old[i]!.length).equals(old[i]!), path)
      }
    }
    const [messages, events] = files.map(readRows)
    t.strictSame(
      events!.map(row => row.seq),
      events!.map((_, i) => i + 1),
    )
    const ts = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
    t.ok([...messages!, ...events!].every(row => ts.test(row.ts as string)))
  })

  t.test("runtime.8 (echo and one usage row only) a send without tool makes one usage row, of the host", async t => {
    const run = await stage.send([{ say: "hello" }], { session: "one-usage" }).over()
    t.equal(run.frames.filter(f => f.type === "usage").length, 1)
    t.match(
      run.frames.find(f => f.type === "usage"),
      { model: "debug/script", step: 0, input_tokens: Number, output_tokens: 2 },
    )
  })

  t.test(
    "runtime.9 (error text only) a failing model ends the run with the model's code and what was said",
    async t => {
      const run = await stage
        .send([{ say: "so far" }, { error: { code: "EAGAIN", message: "busy" } }], { session: "fail" })
        .over()
      t.match(run.frames.slice(-3), [
        { type: "message", content: [{ text: "so far" }] },
        { type: "error", code: "EAGAIN", message: "busy" },
        { type: "done", status: "error" },
      ])
      t.equal(readFileSync(join(stage.sessionDir, "fail/state"), "utf8"), "error\n")
    },
  )

  t.test(
    "runtime.7 CTX_AGENT_STEPS and steps bound the calls of a run, the next call is ELOOP and not stored",
    async t => {
      const steps = Array.from({ length: 6 }, () => call("fs.list", {}))
      stage.set("env", "CTX_AGENT_STEPS=3\n")
      const three = await stage.send(steps, { session: "loop-3" }).over()
      t.equal(three.frames.filter(f => f.type === "tool_call").length, 3)
      t.match(three.frames.slice(-2), [
        { type: "error", code: "ELOOP", message: "tool loop limit" },
        { type: "done", status: "error" },
      ])
      const one = await stage.send(steps, { session: "loop-1", steps: 1 }).over()
      t.equal(one.frames.filter(f => f.type === "tool_call").length, 1)
      t.match(one.frames.slice(-2), [
        { type: "error", code: "ELOOP" },
        { type: "done", status: "error" },
      ])
      stage.set("env", "")
    },
  )

  t.test("a second run sees the rows of the first in its history, a first one none", async t => {
    // The script model plays what the last user message says; what it was given is told by the agent's own prompt file.
    stage.set("prompt.template.md", "{{history_messages}}|{{rules}}|{{unknown}}|{{agent}}")
    stage.set("model", "debug/echo\n")
    await stage.send("hello", { session: "history" }).over()
    const run = await stage.send("again", { session: "history" }).over()
    t.match(run.frames.at(-2), { type: "message", content: [{ text: "again" }] })
    stage.set("prompt.template.md", "")
    stage.set("model", "debug/script\n")
  })
})
