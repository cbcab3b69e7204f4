// needs: root fuse bwrap
import { chownSync, existsSync, mkdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import t, { type Test } from "tap"
import { python } from "../fixture/agent/python.js"
import { makeStage, readRows, type Stage } from "../fixture/agent/stage.js"
import { OWNER } from "../harness/product.js"

const SCHEMA = "cortexfs.agent-invocation/v1"

t.test("agent programs", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  stage.tool("echo", '#!/bin/sh\nprintf "%s\\n" "$@"\n')
  let sessions = 0
  /** Runs the program once in a session of its own. */
  const run = async (body: string, more: object = {}) => {
    stage.program(python(body))
    const session = `p-${++sessions}`
    const c = await stage.send("hi", { session, ...more }).over()
    const dir = join(stage.sessionDir, session)
    return {
      frames: c.frames,
      rows: () => readRows(join(dir, "messages.jsonl")),
      events: () => readRows(join(dir, "events.jsonl")),
    }
  }
  const fails = async (t: Test, body: string, code = "EIO", message?: string | RegExp) => {
    const { frames } = await run(body)
    t.match(
      frames.slice(-2),
      [
        { type: "error", code, ...(message ? { message } : {}) },
        { type: "done", status: "error" },
      ],
      body,
    )
    t.equal(frames.filter(f => f.type === "done").length, 1)
    return frames
  }

  t.test("runtime.2 a program's environment has exactly the names of section 3 and the pairs of env", async t => {
    stage.set("env", "CTX_AGENT_STEPS=9\nCTX_AGENT_LESSONS=1\nFOO=bar baz\n")
    const { frames } = await run('e = read(); say(open("/proc/self/environ").read())')
    stage.set("env", "")
    const pairs = (frames.at(-2) as unknown as { content: { text: string }[] }).content[0]!.text.split("\0").slice(
      0,
      -1,
    )
    t.strictSame(Object.fromEntries(pairs.map(pair => [pair.split("=")[0], pair.slice(pair.indexOf("=") + 1)])), {
      CTX_ROOT: "/ctx",
      CTX_HOME: `/ctx/home/${OWNER}`,
      CTX_PATH: `/ctx/tool:/ctx/home/${OWNER}/tool`,
      CTX_AGENT: "coder",
      CTX_AGENT_SUBJECT: "coder_t",
      CTX_SESSION: `p-${sessions}`,
      CTX_RUN_ID: frames[0]!.run,
      CTX_CONTROL_SOCKET: "/run/cortexfs/control.sock",
      HOME: "/home/agent",
      PATH: "/usr/bin:/bin",
      USER: "coder",
      LOGNAME: "coder",
      SHELL: "/usr/bin/bash",
      TERM: "xterm-256color",
      LANG: "C.UTF-8",
      CTX_AGENT_LAUNCH: "sdk-envelope-v1",
      CTX_AGENT_STEP: "0",
      CTX_AGENT_STEPS: "9",
      CTX_AGENT_WARM: "1",
      FOO: "bar baz",
    })
  })

  t.test(
    "runtime.5 (envelope) step 0 has the seven keys and a null observation, step 1 exactly the stored result",
    async t => {
      const { frames, rows } = await run(
        `e = read()
if e["step"] == 0:
    assert sys.argv[1:] == ["--cortexfs-sdk-envelope-v1"], sys.argv
    open("/home/agent/data/e0", "w").write(json.dumps(e)); call("c-1", "echo", args=["a", "b"])
else:
    open("/home/agent/data/e1", "w").write(json.dumps(e)); say("done")`,
      )
      t.match(frames.at(-1), { type: "done", status: "ok" })
      const data = join(stage.sessionDir, "../data")
      const [first, second] = ["e0", "e1"].map(name => JSON.parse(readFileSync(join(data, name), "utf8")))
      const common = {
        schema: SCHEMA,
        run: frames[0]!.run,
        input: "hi",
        history_messages: "(no history)",
        tool_context: "",
      }
      t.strictSame(first, { ...common, step: 0, observation: null })
      const result = (rows()[1] as { content: { content: string }[] }).content[0]!
      const observation = { tool_call_id: "c-1", name: "echo", status: "ok", content: result.content, truncated: false }
      t.strictSame(second, { ...common, step: 1, observation })
      t.equal(result.content, "a\nb\n")
    },
  )

  t.test("runtime.5 (invalid output) what a program may not print ends the run with EIO", async t => {
    const head = "e = read()\n"
    for (const body of [
      'out(type="done", status="ok")',
      'out(type="start")',
      'out(type="tool_result", content="x")',
      'out(type="approval_result", id="c", name="echo", decision="allow_once", reason="x")',
      'out(type="message", role="tool", name="echo", content=[])',
      'out(type="error", code="EIO", message="x")',
      'out(type="delta", text="x", run="ctx-" + "0" * 32)',
      'print("no json", flush=True)',
      'out(type="delta", text=1)',
      'out(type="message", role="assistant", content=[{"type": "tool_result", "tool_call_id": "c", "content": "", "status": "ok"}])',
      'call("c-1", "echo", args=["x"]); call("c-2", "echo", args=["y"]); time.sleep(5)',
      'call("c-1", "echo", args=["x"]); out(type="delta", text="behind"); time.sleep(5)',
      'call("c-1", "echo", args=["x" * 140000])',
      'call("not a name", "echo")',
      'out(type="tool_call", id="c-1", name="echo", arguments=[])',
      `base = len(json.dumps({"type": "delta", "text": "", "run": e["run"]})) + 1
out(type="delta", text="x" * (262144 + 1 - base))`,
      'for i in range(5): out(type="delta", text="x" * 250000)',
      'sys.stdout.write("{}"); sys.stdout.flush()',
    ]) {
      await fails(t, head + body)
    }
    await fails(t, `${head}call("c-1", "echo", args=["x"])`, "EIO", /c-1/)
    const limit = `base = len(json.dumps({"type": "delta", "text": "", "run": e["run"]})) + 1
out(type="delta", text="x" * (262144 - base))`
    t.match(
      (await run(head + limit)).frames.at(-1),
      { type: "done", status: "ok" },
      "a frame of exactly 256 KiB is taken",
    )
  })

  t.test("a program that fails, says nothing or dies ends the run with EIO and its first stderr line", async t => {
    await fails(t, "e = read()", "EIO", "agent program: no output")
    await fails(t, 'e = read(); out(type="reasoning_delta", text="hm")', "EIO", "agent program: no output")
    await fails(t, 'sys.stderr.write("\\n  broken here\\nmore\\n"); sys.exit(3)', "EIO", "broken here")
    await fails(t, "sys.exit(3)", "EIO", "agent program: exit 3")
    await fails(t, "os.kill(os.getpid(), 9)", "EIO", /signal SIGKILL/)
    const long = await fails(t, 'sys.stderr.write("é" * 2000); sys.exit(1)')
    t.equal([...(long.at(-2)!.message as string)].length, 512)
  })

  t.test("reasoning is passed on and not stored, a recoverable error is stored and the run goes on", async t => {
    const { frames, events, rows } = await run(
      `e = read()
out(type="reasoning_delta", text="hm"); out(type="reasoning_message", content=[{"type": "text", "text": "hm"}])
out(type="error", code="ENOENT", message="lost", recoverable=True)
say("first"); say("last")`,
    )
    t.strictSame(
      frames.map(f => f.type),
      ["start", "reasoning_delta", "reasoning_message", "error", "message", "done"],
    )
    t.match(frames[3], { code: "ENOENT", message: "lost", recoverable: true, seq: Number })
    t.notOk(events().some(row => String(row.type).startsWith("reasoning")))
    t.match(rows().at(-1), { role: "assistant", content: [{ text: "last" }] }, "the last message of the last step")
  })

  t.test("deltas of the last step are the answer when no message was printed", async t => {
    const { rows } = await run('e = read(); out(type="delta", text="a"); out(type="delta", text="b")')
    t.match(rows().at(-1), { role: "assistant", content: [{ type: "text", text: "ab" }] })
  })

  t.test(
    "runtime.8 (program's usage) a usage frame is stored when the step made no model call, else only the host's",
    async t => {
      const usage = 'out(type="usage", input_tokens=7, output_tokens=8)'
      const own = await run(`e = read(); ${usage}; say("x")`)
      t.match(
        own.events().filter(r => r.type === "usage"),
        [{ step: 0, input_tokens: 7, output_tokens: 8 }],
      )
      stage.set("model", "debug/echo\n")
      const asked = await run(
        `e = read(); ${usage}; ask(op="model", messages=[{"role": "user", "content": "abcd"}]); ${usage}; say("x")`,
      )
      stage.set("model", "debug/script\n")
      const rows = asked.events().filter(r => r.type === "usage")
      t.match(rows, [{ step: 0, model: "debug/echo", input_tokens: 1, output_tokens: 1 }])
      t.equal(rows.length, 1)
    },
  )

  t.test("runtime.6 one-shot, warm, and a worker that exits after reading nothing give the same rows", async t => {
    const step = `
def step(e):
    open("/home/agent/data/pids", "a").write("%d " % os.stat("/proc/self").st_ino)
    if e["step"] < 2: call("c-%d" % e["step"], "echo", args=[str(e["step"])])
    else: say("end " + e["observation"]["content"])
`
    const forms: Record<string, string> = {
      oneShot: `${step}step(read())`,
      warm: `${step}while True:\n    e = read(); step(e)\n    if e["step"] == 2: sys.exit(0)`,
      // Stays until the next envelope is there, then goes without reading it.
      unread: `${step}e = read(); step(e)\nif e["step"] < 2:\n    import select; select.select([sys.stdin], [], [])`,
    }
    const seen: Record<string, unknown> = {}
    const pids: Record<string, number> = {}
    const file = join(stage.sessionDir, "../data/pids")
    for (const [form, body] of Object.entries(forms)) {
      const from = existsSync(file) ? readFileSync(file, "utf8").length : 0
      const { frames, rows, events } = await run(body)
      t.match(frames.at(-1), { type: "done", status: "ok" }, form)
      pids[form] = new Set(readFileSync(file, "utf8").slice(from).trim().split(" ")).size
      const plain = (row: Record<string, unknown>) => {
        const { ts, run, id, client_id, session, ...rest } = row
        return { ...rest, ...(row.type === "tool_call" ? { id } : {}) }
      }
      seen[form] = [...rows(), ...events()].map(plain)
    }
    t.strictSame(seen.warm, seen.oneShot)
    t.strictSame(seen.unread, seen.oneShot)
    t.strictSame(pids, { oneShot: 3, warm: 1, unread: 3 })
  })

  t.test("runtime.3 session history is read-only inside, data and the default workspace are not", async t => {
    stage.program(python('e = read(); say("x")'))
    await stage.send("make it").over()
    const pending = join(stage.sessionDir, "default/pending")
    mkdirSync(pending, { mode: 0o700 })
    chownSync(pending, OWNER, OWNER)
    const { frames } = await run(
      `e = read(); got = []
for path in ["default/messages.jsonl", "default/pending/x", "default/meta.json"]:
    try: open("/home/agent/session/" + path, "a").write("x"); got.append("written")
    except OSError as x: got.append(x.strerror)
open("/home/agent/data/x", "w").write("1"); got.append(open("/workspace/x").read())
say(json.dumps(got))`,
      { workspace: undefined },
    )
    const got = JSON.parse((frames.at(-2) as unknown as { content: { text: string }[] }).content[0]!.text)
    t.strictSame(got, ["Read-only file system", "Read-only file system", "Read-only file system", "1"])
  })
})
