// needs: root fuse bwrap socat systemd
// The sandbox inside the hardened unit, and what happens when a unit is hardened too far.
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, makeTool, playScripts, script, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const DROP_IN = "/etc/systemd/system/cortexfs-agent@.service.d/hard.conf"

t.test("a machine with a running view", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  await system.manage("start", "cortexfs@coder")
  await playScripts(system, "coder", "look")
  const look =
    "#!/usr/bin/bash\ngrep -E '^(Seccomp|NoNewPrivs|CapEff):' /proc/self/status; echo pid $$; ls /; ls /proc/1/cwd\n"
  await makeTool(system, "look", look, ["coder"])
  let calls = 0
  const call = () => {
    const steps = script({ call: { name: "look", arguments: { args: ["x"] } } }, { say: "end" })
    return ask(system, owner, { op: "send", id: `h-${++calls}`, input: steps })
  }

  t.test("units.16 (without Landlock) a run with a tool call works inside the unit", async t => {
    const frames = await call()
    t.match(frames.at(-1), { type: "done", status: "ok" })
    const result = JSON.stringify(frames.find(frame => frame.type === "message" && frame.role === "tool"))
    for (const part of ["Seccomp:\\t2", "NoNewPrivs:\\t1", "CapEff:\\t0000000000000000"]) t.match(result, part)
    t.match(result, "\\nworkspace\\n")
    t.notMatch(result, "\\nvar\\n")
  })

  for (const line of ["ProtectKernelTunables=yes", "ProtectHostname=yes", "ProcSubset=pid", "RestrictNamespaces=yes"]) {
    t.test(`units.16 (one line more) with ${line} a run is EHOSTDOWN and nothing runs unsandboxed`, async t => {
      system.write(DROP_IN, `[Service]\n${line}\n`)
      await system.manage("daemon-reload")
      await system.manage("stop", RUNTIME)
      const frames = await call()
      t.match(
        frames.filter(frame => frame.type === "error"),
        [{ code: "EHOSTDOWN" }],
      )
      t.same(
        frames.filter(frame => frame.type === "tool_call"),
        [],
      )
      t.match(await system.show(RUNTIME, "ActiveState", "NRestarts"), { ActiveState: "active", NRestarts: "0" })
    })
  }

  t.test("with the lines taken away the next run works again", async t => {
    await system.text(["rm", DROP_IN])
    await system.manage("daemon-reload")
    await system.manage("stop", RUNTIME)
    t.match((await call()).at(-1), { type: "done", status: "ok" })
  })
})
