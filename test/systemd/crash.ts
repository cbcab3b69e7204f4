// needs: root fuse bwrap socat systemd
// Servers and runtimes that are killed or hang: what comes back, what stays, and that nothing is left over.
import { rmSync } from "node:fs"
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, makeTool, playScripts, readHistory, script, talk, uidOf } from "../harness/systemd-agent.js"

const VIEW = "/run/cortexfs/mount/coder"
const SOCKET = "/run/cortexfs/agent/coder.sock"
const RUNTIME = "cortexfs-agent@coder.service"
const WATCHDOG = "/etc/systemd/system/cortexfs-agent@coder.service.d/watchdog.conf"

t.test("a machine with two agents", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  const ping = (agent = "coder") => ask(system, owner, { op: "ping" }, `/ctx/agent/${agent}.sock`)
  const pong = [{ type: "pong" }]
  const kill = (pid: number, signal = "KILL") => system.text(["kill", `-${signal}`, String(pid)])
  const units = [
    "cortexfs.service",
    "cortexfs@coder.service",
    "cortexfs@reviewer.service",
    "cortexfs-agent@reviewer.service",
  ]
  const pids = async () =>
    Object.fromEntries(await Promise.all(units.map(async unit => [unit, await system.mainPid(unit)])))
  const restarted = (unit: string, old: number, timeoutMs: number) =>
    system.until(
      `a new ${unit}`,
      async () => {
        const shown = await system.show(unit, "ActiveState", "MainPID")
        return shown.ActiveState === "active" && Number(shown.MainPID) !== old && Number(shown.MainPID)
      },
      timeoutMs,
    )
  await system.manage("start", "cortexfs@coder", "cortexfs@reviewer")
  await playScripts(system, "coder", "fork.twice")
  // The child of a child, in a session of its own, that ignores what can be ignored.
  const double = "#!/usr/bin/bash\n(setsid bash -c 'trap \"\" TERM HUP; exec -a forked sleep 300' &) \nsleep 300\n"
  await makeTool(system, "fork.twice", double, ["coder"])

  t.test("units.10 a killed view is back within 2 s with the same socket, and only its runtime is stopped", async t => {
    t.same(await ping(), pong)
    t.same(await ping("reviewer"), pong)
    const before: Record<string, number> = await pids()
    const runtime = await system.mainPid(RUNTIME)
    const inode = system.inode(SOCKET)
    await kill(before["cortexfs@coder.service"]!)
    await restarted("cortexfs@coder.service", before["cortexfs@coder.service"]!, 2_000)
    t.match(await system.text(["cat", `${VIEW}/status`], { uid: owner }), /^agent=coder$/m)
    t.equal(system.inode(SOCKET), inode)
    t.not(await system.mainPid(RUNTIME), runtime)
    t.same(
      system.processes("--agent coder").filter(line => line.startsWith(`${runtime} `)),
      [],
    )
    t.same(await ping(), pong)
    const after: Record<string, number> = await pids()
    for (const unit of units.filter(unit => unit !== "cortexfs@coder.service")) t.equal(after[unit], before[unit], unit)
    t.same(system.mounts().sort(), ["/ctx", VIEW, "/run/cortexfs/mount/reviewer"])
  })

  t.test(
    "units.11 a killed host view is back and no agent notices; a hung one is restarted, and who waited in it gets an errno",
    async t => {
      t.same(await ping(), pong)
      const before: Record<string, number> = await pids()
      const runtime = await system.mainPid(RUNTIME)
      await kill(before["cortexfs.service"]!)
      const second = await restarted("cortexfs.service", before["cortexfs.service"]!, 5_000)
      await kill(second, "STOP")
      const stoppedMs = Date.now()
      const waiting = system.run(["/usr/bin/stat", "/ctx/status"], { timeoutMs: 60_000, uid: owner })
      await restarted("cortexfs.service", second, 41_000)
      t.ok(Date.now() - stoppedMs < 40_000, `${Date.now() - stoppedMs} ms`)
      const ended = await waiting
      t.not(ended.code, 0)
      t.match(ended.stderr, /Transport endpoint|connection abort|No such/i)
      t.match(await system.text(["cat", "/ctx/status"]), /^state=mounted$/m)
      t.equal((await system.show("cortexfs.service", "Result")).Result, "success")
      const after: Record<string, number> = await pids()
      for (const unit of units.filter(unit => unit !== "cortexfs.service")) t.equal(after[unit], before[unit], unit)
      t.equal(await system.mainPid(RUNTIME), runtime)
    },
  )

  t.test("units.12 a killed runtime leaves no process of a tool, comes back, and the run is settled", async t => {
    const call = script({ call: { name: "fork.twice", arguments: { args: ["x"] } } }, { say: "never" })
    const run = talk(system, owner, { op: "send", id: "f1", input: call })
    await system.until("the forked process", () => system.processes("forked").length > 0)
    const reviewer = await system.mainPid("cortexfs-agent@reviewer.service")
    const old = await system.mainPid(RUNTIME)
    const members = await system.pids(RUNTIME)
    t.ok(members.length >= 4, `${members.length} processes in the unit`)
    await kill(old)
    await restarted(RUNTIME, old, 5_000)
    t.same(system.processes("forked"), [])
    const left = await system.pids(RUNTIME)
    t.same(
      members.filter(pid => left.includes(pid)),
      [],
    )
    t.equal((await system.show(RUNTIME, "NRestarts")).NRestarts, "1")
    await run.end()
    const rows = readHistory(system, owner, "coder").filter(
      row => row.client_id === "f1" || row.run === run.frames[0]?.run,
    )
    t.match(rows.slice(-2), [
      { type: "error", code: "EINTR" },
      { type: "done", status: "error" },
    ])
    t.equal(await system.mainPid("cortexfs-agent@reviewer.service"), reviewer)
    t.match((await ask(system, owner, { op: "send", id: "f2", input: script({ say: "on" }) })).at(-1), { status: "ok" })
  })

  t.test(
    "a runtime whose event loop is stuck in a run is restarted by the watchdog, and one at work or at rest is not",
    async t => {
      system.write(WATCHDOG, "[Service]\nWatchdogSec=3s\n")
      await system.manage("daemon-reload")
      await system.manage("stop", RUNTIME)
      const works = script({ sleep_ms: 8_000 }, { say: "done" })
      t.match((await ask(system, owner, { op: "send", id: "w1", input: works })).at(-1), { type: "done", status: "ok" })
      await new Promise(resolve => setTimeout(resolve, 8_000))
      const pid = await system.mainPid(RUNTIME)
      t.match(await system.show(RUNTIME, "ActiveState", "NRestarts"), { ActiveState: "active", NRestarts: "0" })
      const run = talk(system, owner, { op: "send", id: "w2", input: script({ sleep_ms: 60_000 }, { say: "never" }) })
      const { run: id } = await run.frame("start")
      await kill(pid, "STOP")
      const next = await restarted(RUNTIME, pid, 20_000)
      t.not(next, pid)
      t.equal((await system.show(RUNTIME, "NRestarts")).NRestarts, "1")
      const said = await system.entries("-u", RUNTIME, "_PID=1")
      t.ok(said.some(({ MESSAGE }) => /Watchdog timeout/.test(MESSAGE!)))
      await run.end()
      t.match(
        readHistory(system, owner, "coder")
          .filter(row => row.run === id)
          .slice(-2),
        [
          { type: "error", code: "EINTR" },
          { type: "done", status: "error" },
        ],
      )
      rmSync(system.see(WATCHDOG))
      await system.manage("daemon-reload")
    },
  )
})
