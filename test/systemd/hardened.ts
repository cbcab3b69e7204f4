// needs: root fuse bwrap socat systemd
// The sandbox inside the hardened unit, and what happens when a unit is hardened too far.
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, makeTool, playScripts, script, talk, uidOf } from "../harness/systemd-agent.js"

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

  t.test("units.16 (arguments only) step program and tool have exactly the arguments of security 7.2", async t => {
    await makeTool(system, "wait", "#!/usr/bin/bash\nexec sleep 300\n", ["coder"])
    await playScripts(system, "coder", "wait")
    const steps = script({ call: { name: "wait", arguments: { args: ["x"] } } }, { say: "never" })
    const run = talk(system, owner, { op: "send", id: "h-wait", session: "wait", input: steps })
    const lines = await system.until("both sandboxes", async () => {
      const found = new Set<string>()
      for (const pid of await system.pids(RUNTIME)) {
        const line = system.read(`/proc/${pid}/cmdline`).replaceAll("\0", " ")
        if (line.startsWith("/usr/bin/bwrap ")) found.add(line)
      }
      return found.size === 2 && [...found]
    })
    const head =
      "/usr/bin/bwrap --unshare-user --disable-userns --unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup --unshare-net --hostname cortexfs --die-with-parent --new-session --cap-drop ALL --clearenv --setenv "
    const tail =
      / --remount-ro \/dev --remount-ro \/run --remount-ro \/ --chdir \S+ --block-fd \d+ --seccomp \d+ -- \/run\/cortexfs\/enter (--cortexfs-sdk-envelope-v1|x) $/
    for (const line of lines) {
      t.equal(line.slice(0, head.length), head)
      t.match(line, tail)
      t.notMatch(line, / --(share-net|unshare-all|\S+-try|as-pid-1|bind|dev-bind) /)
    }
    await system.manage("stop", RUNTIME)
    await run.end()
  })

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
