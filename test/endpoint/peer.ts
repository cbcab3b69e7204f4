// needs: root fuse bwrap
import t from "tap"
import { Peer } from "../fixture/agent/peer.js"
import { untilRunning } from "../fixture/agent/process.js"
import { call, fingerprint, makeStage, type Stage } from "../fixture/agent/stage.js"
import { OTHER, OWNER } from "../harness/product.js"
import { runProgram } from "../harness/program.js"

const RUN = "ctx-7f3a90c1d2e4455b8a6c0f1e2d3b4a59"
/** Connects to argv[1], sends argv[2] and prints what comes. */
const ASK = `import socket,sys
s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode()+b"\\n")
while True:
    b=s.recv(65536)
    if not b: break
    sys.stdout.write(b.decode())`

t.test("who may talk to an agent", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  const { runtime, stack } = stage
  await stage.send([{ say: "first" }]).over()

  t.test(
    "session.2 (peer uid only), security.27 another uid gets one EACCES line and end of file, nothing is written",
    async t => {
      const other = await Peer.start(OTHER, stack.prefix)
      t.teardown(() => other.stop())
      const before = fingerprint(stage.sessionDir)
      for (const request of [{ op: "ping" }, { op: "send", id: "x-1", session: "default", input: "hi" }]) {
        const c = await other.ask(runtime.socket, request)
        t.equal(c.lines.length, 1)
        t.match(c.lines[0]!.text, /^\{"type":"error","code":"EACCES",/)
        t.ok(c.isEnded)
        t.equal(c.errorCode, undefined, "end of file, no reset")
      }
      t.strictSame(fingerprint(stage.sessionDir), before)
    },
  )

  t.test(
    "security.26 (uid 0 only) uid 0 that is not the owner may ping and ask for status, not send, answer or cancel",
    async t => {
      const root = await Peer.start(0, stack.prefix)
      t.teardown(() => root.stop())
      t.match((await root.ask(runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
      t.match((await root.ask(runtime.socket, { op: "status", session: "default" })).frames, [
        { type: "status", status: "done" },
      ])
      const before = fingerprint(stage.sessionDir)
      for (const request of [
        { op: "send", id: "r-1", session: "default", input: "hi" },
        { op: "answer", id: "r-2", pending: `${RUN}.c-1`, decision: "allow_once" },
        { op: "cancel", id: RUN },
        { op: "resume", session: "default" },
      ]) {
        t.match((await root.ask(runtime.socket, request)).frames, [{ type: "error", code: "EACCES" }], request.op)
      }
      t.strictSame(fingerprint(stage.sessionDir), before)
    },
  )

  t.test(
    "session.2 (pid namespace only), security.26 a process of the owner inside a running sandbox is EACCES",
    async t => {
      stage.tool("nap", "#!/bin/sh\nsleep 5.26\n")
      const run = stage.send([call("nap", { args: ["x"] })], { session: "inside" })
      const start = await run.frame("start")
      await run.frame("tool_call")
      const pid = await untilRunning("sleep", "5.26")
      for (const request of [
        { op: "send", id: "i-1", session: "default", input: "hi" },
        { op: "answer", id: "i-2", pending: `${RUN}.c-1`, decision: "allow_once" },
      ]) {
        const inside = [
          "nsenter",
          "--target",
          String(pid),
          "--pid",
          "--",
          "setpriv",
          `--reuid=${OWNER}`,
          `--regid=${OWNER}`,
          "--clear-groups",
        ]
        const command = [...inside, "/usr/bin/python3", "-c", ASK, runtime.socket, JSON.stringify(request)]
        const { stdout } = await runProgram(command)
        t.match(stdout, /^\{"type":"error","code":"EACCES","message":"[^"]*"\}\n$/)
      }
      // The same program outside is served: it is the place that was refused.
      const outside = await runProgram(["/usr/bin/python3", "-c", ASK, runtime.socket, '{"op":"ping"}'], { uid: OWNER })
      t.equal(outside.stdout, '{"type":"pong"}\n')
      await stage.owner.ask(runtime.socket, { op: "cancel", id: start.run as string })
      await run.over()
    },
  )

  t.test("security.26 (path only) no agent socket exists inside a sandbox", async t => {
    const look = `for p in ${runtime.socket} /run/cortexfs/agent/coder.sock /ctx/agent/coder.sock; do if [ -S "$p" ]; then echo "there $p"; else echo "none"; fi; done`
    stage.tool("look", `#!/bin/sh\n${look}\n`)
    const run = await stage.send([call("look", { args: ["x"] })], { session: "look" }).over()
    const result = run.frames.find(f => f.type === "message" && f.role === "tool")
    t.match(result, { content: [{ status: "ok", content: "none\nnone\nnone\n" }] })
  })

  t.test("a refused peer is one line in the journal, with its uid and nothing of its request", async t => {
    t.match(runtime.stderr(), new RegExp(`^cortexfs-agent: refused peer uid=${OTHER} pid=[0-9]+$`, "m"))
    t.notMatch(runtime.stderr(), /x-1/)
  })
})
