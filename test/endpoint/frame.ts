// needs: root fuse bwrap
import { existsSync, readdirSync } from "node:fs"
import t from "tap"
import { makeStage, type Stage } from "../fixture/agent/stage.js"

const FRAME_MAX = 1_048_576

t.test("request frames", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  const { owner, runtime } = stage
  const ask = (request: object | string | Buffer) => owner.ask(runtime.socket, request)
  const padded = (sizeBytes: number) => {
    const frame = (n: number) => `${JSON.stringify({ op: "ping", pad: "x".repeat(n) })}\n`
    return frame(sizeBytes - frame(0).length)
  }

  t.test("session.1 ping is answered with exactly one pong and end of file", async t => {
    const c = await ask({ op: "ping" })
    t.strictSame(
      c.lines.map(l => l.text),
      ['{"type":"pong"}'],
    )
    t.equal(c.rest, "")
    t.ok(c.isEnded)
    t.equal(c.errorCode, undefined)
  })

  t.test("session.1 a frame of 1,048,576 bytes is parsed and one byte more is EMSGSIZE", async t => {
    t.equal(Buffer.byteLength(padded(FRAME_MAX)), FRAME_MAX)
    t.strictSame(
      (await ask(padded(FRAME_MAX))).lines.map(l => l.text),
      ['{"type":"pong"}'],
    )
    const c = await ask(padded(FRAME_MAX + 1))
    t.equal(c.lines.length, 1)
    t.match(c.frames[0], { type: "error", code: "EMSGSIZE" })
    t.ok(c.isEnded, "then end of file")
  })

  t.test("session.1 whatever is no request is one EINVAL frame", async t => {
    const bad: Record<string, string | Buffer> = {
      "unknown op": '{"op":"dance"}\n',
      array: "[]\n",
      "wrong type": '{"op":"send","id":1,"input":"x"}\n',
      "two lines at once": '{"op":"ping"}\n{"op":"ping"}\n',
      "bytes behind the line": '{"op":"ping"}\nx',
      "bad JSON": '{"op":\n',
      "duplicate key": '{"op":"ping","op":"ping"}\n',
      "empty line": "\n",
      "no op": "{}\n",
      "approve first": '{"op":"approve","run":"x","id":"y","decision":"deny"}\n',
      "bytes that are not UTF-8": Buffer.from([0x7b, 0xff, 0x7d, 0x0a]),
    }
    for (const [what, request] of Object.entries(bad)) {
      const c = await ask(request)
      t.equal(c.lines.length, 1, what)
      t.match(c.frames[0], { type: "error", code: "EINVAL" }, what)
      t.notOk("run" in c.frames[0]!, `${what}: no run`)
    }
    t.notOk(existsSync(`${stage.sessionDir}/default`), "nothing is recorded")
  })

  t.test("session.1 an unknown extra field changes nothing", async t => {
    t.strictSame(
      (await ask({ op: "ping", extra: { a: [1] } })).lines.map(l => l.text),
      ['{"type":"pong"}'],
    )
  })

  t.test("end of file without LF ends the frame, and a half-close is no disconnect", async t => {
    const c = owner.open(runtime.socket).send('{"op":"ping"}').end()
    t.strictSame(
      (await c.over()).lines.map(l => l.text),
      ['{"type":"pong"}'],
    )
    const run = stage.send([{ sleep_ms: 300 }, { say: "late" }]).end()
    await run.over()
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
  })

  t.test("a connection closed without a byte gets EINVAL, a line left open ETIMEDOUT after 5 s", async t => {
    const empty = owner.open(runtime.socket).end()
    t.match((await empty.over()).frames[0], { type: "error", code: "EINVAL" })
    const open = owner.open(runtime.socket).send('{"op":"pi')
    await open.over()
    t.match(open.frames[0], { type: "error", code: "ETIMEDOUT" })
    const waitedMs = open.lines[0]!.t - open.openedAt
    t.ok(waitedMs > 4_900 && waitedMs < 6_000, `after ${waitedMs} ms`)
  })

  t.test("op tsh, answer and reset are ENOSYS and record nothing", async t => {
    for (const request of [
      { op: "tsh", id: "a", args: ["--list"] },
      { op: "answer", id: "a", pending: "ctx-7f3a90c1d2e4455b8a6c0f1e2d3b4a59.c-1", decision: "deny" },
      { op: "reset" },
    ]) {
      t.match((await ask(request)).frames, [{ type: "error", code: "ENOSYS" }], request.op)
    }
    t.notOk(readdirSync(stage.sessionDir).includes("a"))
  })

  t.test("stop of another agent is EACCES", async t => {
    t.match((await ask({ op: "stop", agent: "worker" })).frames, [{ type: "error", code: "EACCES" }])
    t.match((await ask({ op: "ping" })).frames, [{ type: "pong" }])
  })
})
