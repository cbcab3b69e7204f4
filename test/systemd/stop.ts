// needs: root fuse bwrap socat systemd
// Stops and faults: what a stop leaves, which exits are not followed by a restart, the start limit, a power-off.
import { existsSync } from "node:fs"
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, playScripts, script, setControl, talk, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const SOCKET_UNIT = "cortexfs-agent@coder.socket"
const SOCKET = "/run/cortexfs/agent/coder.sock"
const VIEW = "/run/cortexfs/mount/coder"
const pong = [{ type: "pong" }]

t.test("a machine with the enabled units", async t => {
  const system = await bootSystem({ isEnabled: true })
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  const ping = () => ask(system, owner, { op: "ping" }, SOCKET)

  t.test("the package's preset brings up storage and host view at boot, and no agent", async t => {
    t.same(system.mounts(), ["/ctx"])
    for (const unit of ["cortexfs.target", "cortexfs-storage.service", "cortexfs.service"]) {
      t.equal(await system.state(unit), "active", unit)
    }
    t.equal(await system.state("cortexfs@coder.service"), "inactive")
    const enabled = await system.run(["systemctl", "is-enabled", "cortexfs@coder.service"])
    t.equal(enabled.stdout, "disabled\n")
  })

  t.test(
    "units.13 a stopped agent leaves no socket, mount, directory or process, and a stopped storage nothing at all",
    async t => {
      await system.manage("start", "cortexfs@coder")
      await playScripts(system, "coder")
      const run = talk(system, owner, { op: "send", id: "s1", input: script({ sleep_ms: 30_000 }, { say: "never" }) })
      await run.frame("start")
      await system.until("the step program", async () => (await system.pids(RUNTIME)).length >= 2)
      await system.manage("stop", "cortexfs@coder")
      t.match((await run.end()).slice(-2), [
        { type: "error", code: "EINTR" },
        { type: "done", status: "error" },
      ])
      await system.until("no socket", () => !existsSync(system.see(SOCKET)))
      t.same(system.mounts(), ["/ctx"])
      t.notOk(existsSync(system.see(VIEW)))
      t.same(system.processes("--agent coder"), [])
      t.same(system.processes("bwrap"), [])
      t.same(await system.pids(RUNTIME), [])
      for (const path of [SOCKET, "/ctx/agent/coder.sock"]) {
        await t.rejects(ask(system, owner, { op: "ping" }, path), { message: /No such file or directory/ })
      }
      for (const unit of [RUNTIME, SOCKET_UNIT, "cortexfs@coder.service"])
        t.equal(await system.state(unit), "inactive", unit)

      await system.manage("start", "cortexfs@coder", "cortexfs@reviewer")
      t.same(await ping(), pong)
      await system.manage("stop", "cortexfs-storage.service")
      t.same(system.mounts(), [])
      t.same(system.processes("cortexfs-"), [])
      t.same(system.processes("bwrap"), [])
      await system.until("no socket", () => !existsSync(system.see(SOCKET)))
      const units = await system.text([
        "systemctl",
        "list-units",
        "--plain",
        "--no-legend",
        "--state=active",
        "cortexfs*",
      ])
      t.same(
        units.split("\n").filter(line => /\.(service|socket)\b/.test(line)),
        [],
      )
    },
  )

  t.test(
    "units.15 units.25 (cannot mount) a view of an unknown agent exits 69 and is tried once; a runtime that fails twenty times fails its socket until reset",
    async t => {
      const started = await system.systemctl("start", "cortexfs@nobody")
      t.equal(started.code, 1)
      const shown = await system.show(
        "cortexfs@nobody.service",
        "ActiveState",
        "ExecMainStatus",
        "NRestarts",
        "StatusErrno",
        "StatusText",
      )
      t.match(shown, { ActiveState: "failed", ExecMainStatus: "69", NRestarts: "0", StatusErrno: "2" })
      t.match(shown.StatusText, /^cannot mount: ENOENT: agent\/nobody does not exist/)
      const attempts = await system.entries("-u", "cortexfs@nobody.service", "_PID=1")
      t.equal(attempts.filter(entry => /^Starting /.test(entry.MESSAGE!)).length, 1)

      await system.manage("start", "cortexfs@coder")
      // A fault of the host that a restart may cure: exit 70.
      const fault = "[Service]\nExecStart=\nExecStart=/usr/bin/bash -c 'exit 70'\nRestartSec=20ms\n"
      system.write("/etc/systemd/system/cortexfs-agent@coder.service.d/fault.conf", fault)
      await system.manage("daemon-reload")
      const waiting = ping().catch(() => undefined)
      await system.until("the start limit", async () => (await system.state(SOCKET_UNIT)) === "failed", 30_000)
      t.match(await system.show(SOCKET_UNIT, "Result"), { Result: "service-start-limit-hit" })
      await waiting
      const failed = await system.entries("-u", RUNTIME, "_PID=1")
      t.equal(failed.filter(entry => /status=70/.test(entry.MESSAGE!)).length, 20)
      await system.text(["rm", "-r", "/etc/systemd/system/cortexfs-agent@coder.service.d"])
      await system.manage("daemon-reload")
      await system.manage("reset-failed", RUNTIME, SOCKET_UNIT)
      await system.manage("start", SOCKET_UNIT)
      t.same(await ping(), pong)
    },
  )

  t.test("exits 2, 13 and 69 of a runtime are followed by no restart", async t => {
    const path = "/etc/systemd/system/cortexfs-agent@coder.service.d/exit.conf"
    for (const code of [2, 13, 69]) {
      system.write(path, `[Service]\nExecStart=\nExecStart=/usr/bin/bash -c 'exit ${code}'\nRestartSec=20ms\n`)
      await system.manage("daemon-reload")
      await system.systemctl("stop", RUNTIME)
      await system.systemctl("start", RUNTIME)
      await new Promise(resolve => setTimeout(resolve, 300))
      const shown = await system.show(RUNTIME, "ActiveState", "ExecMainStatus", "NRestarts")
      t.match(shown, { ActiveState: "failed", ExecMainStatus: String(code), NRestarts: "0" })
      await system.manage("reset-failed", RUNTIME)
    }
    await system.text(["rm", path])
    await system.manage("daemon-reload")
    await setControl(system, "coder", "owner", "0\n")
    await system.systemctl("start", RUNTIME)
    t.match(await system.show(RUNTIME, "ActiveState", "ExecMainStatus"), {
      ActiveState: "failed",
      ExecMainStatus: "13",
    })
    await setControl(system, "coder", "owner", `${owner}\n`)
    await system.manage("reset-failed", RUNTIME)
    t.same(await ping(), pong)
  })

  t.test("units.18 (a missing store only) without secrets/provider the runtime does not start, status 243", async t => {
    await system.manage("stop", RUNTIME)
    await system.text(["rmdir", "/var/lib/cortexfs/secrets/provider"])
    await system.systemctl("start", RUNTIME)
    t.equal((await system.show(RUNTIME, "ExecMainStatus")).ExecMainStatus, "243")
    await system.text(["systemd-tmpfiles", "--create", "cortexfs.conf"])
    await system.systemctl("reset-failed", RUNTIME, SOCKET_UNIT)
    await system.manage("stop", RUNTIME)
    await system.manage("restart", SOCKET_UNIT)
    t.same(await ping(), pong)
  })

  t.test("a power-off in the middle of a run ends the run well and the machine in time", async t => {
    const run = talk(system, owner, { op: "send", id: "p1", input: script({ sleep_ms: 30_000 }, { say: "never" }) })
    await run.frame("start")
    const began = Date.now()
    await system.stop()
    t.ok(Date.now() - began < 15_000, `${Date.now() - began} ms`)
    t.match(run.frames.slice(-2), [
      { type: "error", code: "EINTR" },
      { type: "done", status: "error" },
    ])
  })
})
