// needs: root fuse bwrap socat systemd
// Socket activation over time: idle exits, connections around them, agents that only refuse, names with a plus.
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, currentDir, setControl, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const DROP_IN = "/etc/systemd/system/cortexfs-agent@.service.d/idle.conf"

t.test("a machine with a running view", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  const ping = () => ask(system, owner, { op: "ping" })
  await system.manage("start", "cortexfs@coder")

  t.test(
    "units.8 after 60 s the runtime is gone, the next connection starts another, and connections around exits lose nothing",
    async t => {
      t.same(await ping(), [{ type: "pong" }])
      const first = await system.mainPid(RUNTIME)
      const idleSince = Date.now()
      await system.until("the exit", async () => (await system.state(RUNTIME)) === "inactive", 75_000)
      const lastedS = (Date.now() - idleSince) / 1000
      t.ok(lastedS > 58 && lastedS < 65, `${lastedS} s`)
      t.match(await system.show(RUNTIME, "Result", "ExecMainStatus"), { Result: "success", ExecMainStatus: "0" })
      t.match(await system.show("cortexfs-agent@coder.socket", "SubState"), { SubState: "listening" })
      t.same(await ping(), [{ type: "pong" }])
      const second = await system.mainPid(RUNTIME)
      t.ok(second > 0 && second !== first)

      // A start a second is more than the start limit lets through.
      system.write(DROP_IN, "[Unit]\nStartLimitIntervalSec=0\n[Service]\nEnvironment=CORTEXFS_IDLE_S=1\n")
      await system.manage("daemon-reload")
      await system.manage("stop", RUNTIME)
      const agents = ["coder", "reviewer", "worker"]
      await system.manage("start", "cortexfs@reviewer", "cortexfs@worker")
      // Every connection is timed a little differently around the exit that the one before it has armed.
      const lost: unknown[] = []
      const pids = new Set<number>()
      let connections = 0
      await Promise.all(
        agents.map(async agent => {
          for (let i = 0; connections++ < 200; i++) {
            const frames = await ask(system, owner, { op: "ping" }, `/ctx/agent/${agent}.sock`).catch(e => e)
            if (JSON.stringify(frames) !== '[{"type":"pong"}]') lost.push(frames)
            pids.add(await system.mainPid(`cortexfs-agent@${agent}.service`))
            await new Promise(resolve => setTimeout(resolve, 930 + ((i * 7) % 140)))
          }
        }),
      )
      t.same(lost, [])
      t.ok(pids.size > 60, `${pids.size} processes`)
      for (const agent of agents) t.equal(await system.state(`cortexfs-agent@${agent}.socket`), "active")
    },
  )

  t.test(
    "units.14 units.25 (refusing) an agent with a malformed control answers each of 100 connections with one frame and never fails",
    async t => {
      const policy = system.read(`${await currentDir(system)}/agent/coder.d/mount`)
      await setControl(system, "coder", "mount", "no tabs\n")
      await system.systemctl("stop", RUNTIME)
      for (let i = 0; i < 100; i++) {
        const frames = await ask(system, owner, { op: "send", id: `bad-${i}`, input: "x" })
        if (frames.length !== 1 || frames[0]?.code !== "EINVAL") t.same(frames, [{ type: "error", code: "EINVAL" }])
        if (i % 10 === 0) t.not(await system.state(RUNTIME), "failed")
      }
      t.match((await system.show(RUNTIME, "StatusText")).StatusText, /^refusing: EINVAL: .*agent\/coder\.d\/mount/)
      t.equal((await system.show(RUNTIME, "NRestarts")).NRestarts, "0")
      t.equal(await system.state("cortexfs-agent@coder.socket"), "active")
      await setControl(system, "coder", "mount", policy)
      t.match((await ask(system, owner, { op: "send", id: "good", input: "x" })).at(-1), { type: "done", status: "ok" })
    },
  )

  t.test("units.19 an agent named c++ starts, and the link in /ctx leads to its escaped socket", async t => {
    const dir = await currentDir(system)
    const copy = `cd ${dir}/agent && cp -a coder c++ && cp -a coder.d c++.d`
    await system.text(["bash", "-c", copy])
    await setControl(system, "c++", "label", "user_u:agent_r:c_t:s0\n")
    await system.manage("start", "cortexfs@c++")
    await system.until("the new agent in /ctx", async () => (await system.run(["ls", "/ctx/agent/c++.d"])).code === 0)
    const link = "/run/cortexfs/agent/c\\x2b\\x2b.sock"
    t.equal(await system.text(["readlink", "/ctx/agent/c++.sock"]), link)
    t.same(await ask(system, owner, { op: "ping" }, "/ctx/agent/c++.sock"), [{ type: "pong" }])
    t.equal(await system.state("cortexfs-agent@c\\x2b\\x2b.service"), "active")
    t.ok(system.mounts().some(path => path.replaceAll("\\134", "\\") === "/run/cortexfs/mount/c\\x2b\\x2b"))
    await system.manage("stop", "cortexfs@c++")
    t.equal(await system.state("cortexfs-agent@c\\x2b\\x2b.socket"), "inactive")
  })

  t.test("a connection that sends nothing keeps the runtime, and its end lets it go", async t => {
    const open = system.start(["/usr/bin/socat", "-", "UNIX-CONNECT:/ctx/agent/coder.sock"], { uid: owner })
    await system.until("start", async () => (await system.state(RUNTIME)) === "active")
    await new Promise(resolve => setTimeout(resolve, 3000))
    t.equal(await system.state(RUNTIME), "active")
    open.stdin!.end()
    await system.until("the exit", async () => (await system.state(RUNTIME)) === "inactive")
  })
})
