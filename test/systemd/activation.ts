// needs: root fuse bwrap socat systemd
// What a runtime takes as its listener, from a service manager and by hand.
import { existsSync, rmSync, statSync } from "node:fs"
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const SOCKET_UNIT = "cortexfs-agent@coder.socket"
const SOCKET = "/run/cortexfs/agent/coder.sock"
const COMMAND = "/usr/bin/cortexfs-agent --source /var/lib/cortexfs/storage/current --agent coder"

t.test("a machine with a running view", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  await system.manage("start", "cortexfs@coder")
  const dropIn = (unit: string) => `/etc/systemd/system/${unit}.d/other.conf`

  const deviations: [what: string, unit: string, text: string][] = [
    ["another name", SOCKET_UNIT, "[Socket]\nFileDescriptorName=other\n"],
    ["two sockets", SOCKET_UNIT, "[Socket]\nListenStream=/run/cortexfs/agent/second.sock\n"],
    ["a datagram socket", SOCKET_UNIT, `[Socket]\nListenStream=\nListenDatagram=${SOCKET}\n`],
    ["a socket of another family", SOCKET_UNIT, "[Socket]\nListenStream=\nListenStream=127.0.0.1:7321\n"],
    ["a FIFO", SOCKET_UNIT, `[Socket]\nListenStream=\nListenFIFO=${SOCKET}\n`],
    ["another process's", RUNTIME, `[Service]\nExecStart=\nExecStart=/usr/bin/env LISTEN_PID=1 ${COMMAND}\n`],
    ["no count", RUNTIME, `[Service]\nExecStart=\nExecStart=/usr/bin/env -u LISTEN_FDS ${COMMAND}\n`],
    ["a path besides", RUNTIME, `[Service]\nExecStart=\nExecStart=${COMMAND} --listen /run/cortexfs/x.sock\n`],
  ]

  t.test(
    "units.6 (the deviations of 5.1) each exits 2 with one line, and the socket of the manager is left alone",
    async t => {
      for (const [what, unit, text] of deviations) {
        await system.manage("stop", RUNTIME, SOCKET_UNIT)
        system.write(dropIn(unit), text)
        await system.manage("daemon-reload")
        await system.manage("start", SOCKET_UNIT)
        await system.systemctl("start", RUNTIME)
        const shown = await system.show(RUNTIME, "ActiveState", "ExecMainStatus", "NRestarts", "InvocationID")
        t.match(shown, { ActiveState: "failed", ExecMainStatus: "2", NRestarts: "0" }, what)
        const said = await system.entries(`_SYSTEMD_INVOCATION_ID=${shown.InvocationID}`)
        t.equal(said.length, 1, what)
        t.match(said[0]?.MESSAGE, /^cortexfs-agent: usage: /, what)
        t.equal(await system.state(SOCKET_UNIT), "active", what)
        rmSync(system.see(dropIn(unit)))
        await system.manage("stop", SOCKET_UNIT)
        await system.manage("daemon-reload")
        await system.manage("reset-failed", RUNTIME)
      }
      await system.manage("start", SOCKET_UNIT)
      t.same(await ask(system, owner, { op: "ping" }), [{ type: "pong" }])
    },
  )

  t.test(
    "units.26 (the runtime only) started by hand it serves the path it is given, 0600, and takes it away again",
    async t => {
      const path = "/tmp/hand/agent.sock"
      const child = system.start([...COMMAND.split(" "), "--listen", path])
      await system.until("the socket", () => existsSync(system.see(path)))
      t.equal(statSync(system.see(path)).mode & 0o7777, 0o600)
      t.same(await ask(system, 0, { op: "ping" }, path), [{ type: "pong" }])
      const pid = system.processes(path)[0]!.split(" ")[0]!
      t.match(system.read(`/proc/${pid}/status`), new RegExp(`^Uid:\\t${owner}\\t${owner}\\t`, "m"))
      await system.text(["kill", pid])
      const code = await new Promise(resolve => child.once("exit", resolve))
      t.equal(code, 0)
    },
  )
})
