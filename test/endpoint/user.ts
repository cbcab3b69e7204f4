// needs: root fuse bwrap
import { execFileSync } from "node:child_process"
import { existsSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { Peer } from "../fixture/agent/peer.js"
import { agentCommand, makeStage, type Stage } from "../fixture/agent/stage.js"
import { OTHER, OWNER } from "../harness/product.js"
import { asUser, runProgram } from "../harness/program.js"

t.test("a runtime started by the owner, without root", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  const { socket } = stage.runtime
  await stage.runtime.stop()
  // As in a per-user installation: storage, data and run directory are the user's.
  execFileSync("chown", ["-R", `${OWNER}:${OWNER}`, stage.stack.dataRoot, join(socket, "..")])
  const child = await stage.startBy(asUser([], { uid: OWNER }))

  t.test("it runs tools in a sandbox and settles", async t => {
    const run = await stage.send([{ call: { name: "fs.list", arguments: {} } }, { say: "listed" }]).over()
    t.match(
      run.frames.find(f => f.type === "message"),
      { role: "tool", content: [{ status: "ok" }] },
    )
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
  })

  t.test("fuse.18 (the peer check) uid 0 is nobody special for it, nor is any other uid", async t => {
    for (const uid of [0, OTHER]) {
      const peer = await Peer.start(uid, stage.stack.prefix)
      t.match((await peer.ask(socket, { op: "ping" })).frames, [{ type: "error", code: "EACCES" }], String(uid))
      peer.stop()
    }
  })

  t.test("a supplementary group that the agent's groups do not list is EPERM", async t => {
    child.kill("SIGTERM")
    await new Promise(resolve => child.once("exit", resolve))
    t.notOk(existsSync(socket), "its socket went with it")
    const grouped = await stage.startBy(asUser([], { uid: OWNER, groups: [4242] }))
    t.match((await stage.send([{ say: "x" }], { session: "group" }).over()).frames, [{ type: "error", code: "EPERM" }])
    grouped.kill("SIGTERM")
    await new Promise(resolve => grouped.once("exit", resolve))
  })

  t.test("an agent of another owner is EPERM, exit 13, and no socket is left", async t => {
    stage.set("owner", `${OTHER}\n`)
    const ended = await runProgram(agentCommand(stage.stack), { uid: OWNER })
    t.equal(ended.code, 13)
    t.match(ended.stderr, /^cortexfs-agent: EPERM: [^\n]+\n$/)
    t.notOk(existsSync(socket))
  })
})
