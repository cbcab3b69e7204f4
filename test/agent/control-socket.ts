// needs: root fuse bwrap
import { readdirSync, readlinkSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import { python } from "../fixture/agent/python.js"
import { makeStage, type Stage } from "../fixture/agent/stage.js"
import { OTHER, OWNER } from "../harness/product.js"
import { runProgram } from "../harness/program.js"

const ASK = `import socket,sys
s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode()+b"\\n")
while True:
    b=s.recv(65536)
    if not b: break
    sys.stdout.write(b.decode())`

t.test("the control socket of a run", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  stage.set("model", "debug/echo\n")
  let sessions = 0
  /** What a program said that made these requests, one reply list for each. */
  const replies = async (body: string): Promise<Record<string, unknown>[][]> => {
    stage.program(python(`e = read(); got = []\n${body}\nsay(json.dumps(got))`))
    const { frames } = await stage.send("hi", { session: `c-${++sessions}` }).over()
    t.match(frames.at(-1), { type: "done", status: "ok" })
    return JSON.parse((frames.at(-2) as unknown as { content: { text: string }[] }).content[0]!.text)
  }

  t.test("ping and model are answered with their request id, one model call ends with end", async t => {
    const [ping, model] = await replies(
      `got.append(ask(op="ping", request_id="p"))
got.append(ask(op="model", request_id="m", messages=[{"role": "user", "content": "hello"}], tools=["tsh"]))`,
    )
    t.strictSame(ping, [{ type: "pong", request_id: "p" }])
    t.strictSame(
      model!.map(f => f.type),
      ["delta", "message", "usage", "end"],
    )
    t.ok(model!.every(f => f.request_id === "m"))
    t.match(model![0], { text: "hello" })
    t.match(model!.at(-1), { status: "ok" })
  })

  t.test("runtime.18 (ids and fields) an id counts once, at most 1,024 of them, and frames are checked", async t => {
    const got = await replies(
      `got.append(ask(op="ping", request_id="a"))
got.append(ask(op="ping", request_id="a"))
got.append(ask(op="nonsense", request_id="b"))
got.append(ask(op="ping", request_id="b"))
got.append(ask(op="agent.update", request_id="c", control="policy", content="x"))
got.append(ask(op="ping", request_id="d", more=1))
got.append(ask(op="ping", request_id="e", run="ctx-" + "0" * 32))
got.append(ask(op="ping", request_id="f", session="other"))
got.append(ask(op="ping", request_id="x" * 129))
got.append(ask(op="model", request_id="g", messages=[{"role": "system", "content": "obey"}]))
got.append(ask(op="model", request_id="h", messages=[{"role": "user", "content": "x"}], tools=["fs.stat"]))
got.append(ask(op="ping", request_id="i", pad="x" * 17000))
n = 10
while True:
    last = ask(op="ping", request_id="n-%d" % n)
    if last[0]["type"] == "error": break
    n += 1
got.append(last); got.append([n])`,
    )
    const codes = got.slice(0, -1).map(reply => (reply[0]!.type === "error" ? reply[0]!.code : reply[0]!.type))
    t.strictSame(codes, [
      "pong",
      "EALREADY",
      "ENOSYS",
      "EALREADY",
      "ENOSYS",
      "EINVAL",
      "EINVAL",
      "EINVAL",
      "EINVAL",
      "EINVAL",
      "EACCES",
      "EINVAL",
      "ENOSPC",
    ])
    // a, b, c, d, e, f, g, h and i were used up before, so the 1,025th id is the one that is refused.
    t.equal(Number(got.at(-1)) - 10, 1_024 - 9)
  })

  t.test("a second model call while one is under way is EBUSY", async t => {
    stage.set("model", "debug/script\n")
    const [replied] = await replies(
      `import threading
slow = json.dumps({"schema": "cortexfs.script/v1", "steps": [{"sleep_ms": 1500}, {"say": "slow"}]})
first = threading.Thread(target=lambda: ask(op="model", request_id="s", messages=[{"role": "user", "content": slow}]))
first.start(); time.sleep(0.5)
got.append(ask(op="model", request_id="t", messages=[{"role": "user", "content": slow}]))
first.join()`,
    )
    t.match(replied, [{ type: "error", request_id: "t", code: "EBUSY" }])
    stage.set("model", "debug/echo\n")
  })

  t.test("runtime.18 (peer) another process of the same uid, and another uid, are refused", async t => {
    stage.program(python('e = read(); time.sleep(2); say("x")'))
    const run = stage.send("hi", { session: "peer" })
    const start = await run.frame("start")
    await new Promise(resolve => setTimeout(resolve, 300))
    const sockets = listSockets(stage)
    t.equal(sockets.length, 1)
    const request = { op: "ping", request_id: "z", agent: "coder", session: "peer", run: start.run }
    const asks = sockets.map(path =>
      runProgram(["/usr/bin/python3", "-c", ASK, path, JSON.stringify(request)], { uid: OWNER }),
    )
    for (const { stdout } of await Promise.all(asks)) t.match(stdout, /^\{"type":"error","code":"EACCES"/)
    for (const path of sockets) {
      const other = await runProgram(["/usr/bin/python3", "-c", ASK, path, JSON.stringify(request)], { uid: OTHER })
      t.not(other.code, 0, "another uid cannot even reach it")
    }
    await run.over()
  })

  t.test("op model is refused to a tool", async t => {
    stage.tool(
      "asker",
      python(
        'got = ask(op="model", messages=[{"role": "user", "content": "x"}]); print(json.dumps(got)); print(json.dumps(ask(op="ping", request_id="q-2")))',
      ),
    )
    stage.program(
      python('e = read()\nif e["step"] == 0: call("c-1", "asker", args=["x"])\nelse: say(e["observation"]["content"])'),
    )
    const { frames } = await stage.send("hi", { session: "asker" }).over()
    const said = (frames.at(-2) as unknown as { content: { text: string }[] }).content[0]!.text.split("\n")
    t.match(JSON.parse(said[0]!), [{ type: "error", code: "EACCES" }])
    t.match(JSON.parse(said[1]!), [{ type: "pong" }], "ping is for both")
  })

  t.test("runtime.18 (over) after the run its socket is gone", async t => {
    t.strictSame(listSockets(stage), [])
  })

  t.test("runtime.11 (history only) a placeholder in the history of a run stays as it was written", async t => {
    stage.set("model", "debug/echo\n")
    stage.program(python('e = read(); say(e["history_messages"])'))
    await stage.send("a {{rules}} b", { session: "braces" }).over()
    const { frames } = await stage.send("second", { session: "braces" }).over()
    const said = (frames.at(-2) as unknown as { content: { text: string }[] }).content[0]!.text
    t.equal(said, "- user: a {{rules}} b\n- assistant: (no history)")
  })
})

/** Control sockets of the stage's runtime; their directory is the one it holds open. */
function listSockets(stage: Stage): string[] {
  const fds = `/proc/${stage.runtime.child.pid}/fd`
  const dir = readdirSync(fds)
    .map(fd => readlinkSync(join(fds, fd)))
    .find(path => path.startsWith(join(tmpdir(), "cortexfs-agent-")))!
  return readdirSync(dir).map(name => join(dir, name))
}
