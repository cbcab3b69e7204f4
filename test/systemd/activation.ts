// needs: root fuse bwrap socat systemd
// What a runtime takes as its listener, from a service manager and by hand.
import { existsSync, rmSync, statSync } from "node:fs"
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, makeTool, playScripts, script, talk, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const SOCKET_UNIT = "cortexfs-agent@coder.socket"
const SOCKET = "/run/cortexfs/agent/coder.sock"
const COMMAND = "/usr/bin/cortexfs-agent --source /var/lib/cortexfs/storage/current --agent coder"

t.test("a machine with a running view", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  await system.manage("start", "cortexfs@coder")
  await playScripts(system, "coder", "show.env")
  await makeTool(system, "show.env", "#!/usr/bin/bash\nexec /usr/bin/env\n", ["coder"])
  const dropIn = (unit: string) => `/etc/systemd/system/${unit}.d/other.conf`

  const deviations: [what: string, unit: string, text: string][] = [
    ["another name", SOCKET_UNIT, "[Socket]\nFileDescriptorName=other\n"],
    ["two sockets", SOCKET_UNIT, "[Socket]\nListenStream=/run/cortexfs/agent/second.sock\n"],
    ["a datagram socket", SOCKET_UNIT, `[Socket]\nListenStream=\nListenDatagram=${SOCKET}\n`],
    ["a socket of another family", SOCKET_UNIT, "[Socket]\nListenStream=\nListenStream=127.0.0.1:7321\n"],
    ["a FIFO", SOCKET_UNIT, `[Socket]\nListenStream=\nListenFIFO=${SOCKET}\n`],
    ["another process's", RUNTIME, `[Service]\nExecStart=\nExecStart=/usr/bin/env LISTEN_PID=1 ${COMMAND}\n`],
    ["a count of none", RUNTIME, `[Service]\nExecStart=\nExecStart=/usr/bin/env LISTEN_FDS=0 ${COMMAND}\n`],
    ["no count", RUNTIME, `[Service]\nExecStart=\nExecStart=/usr/bin/env -u LISTEN_FDS ${COMMAND}\n`],
    ["a path besides", RUNTIME, `[Service]\nExecStart=\nExecStart=${COMMAND} --listen /run/cortexfs/x.sock\n`],
  ]

  t.test(
    "units.6 the first connection starts the runtime with the variables of section 5; no payload has them; each deviation exits 2",
    async t => {
      const bad = /LISTEN_|NOTIFY_SOCKET|WATCHDOG_|CREDENTIALS_DIRECTORY|INVOCATION_ID|JOURNAL_STREAM/

      await t.test("the runtime is started by the first connection, and its tool has none of it", async t => {
        const inode = system.inode(SOCKET)
        t.equal(await system.state(SOCKET_UNIT), "active")
        t.equal(await system.state(RUNTIME), "inactive")
        const steps = script({ call: { name: "show.env", arguments: { args: ["x"] } } }, { say: "done" })
        const frames = await ask(system, owner, { op: "send", id: "e1", input: steps })
        t.match(frames.at(-1), { type: "done", status: "ok" })
        t.equal(system.inode(SOCKET), inode)
        const pid = await system.mainPid(RUNTIME)
        const environment = (await system.text(["cat", `/proc/${pid}/environ`])).split("\0")
        for (const pair of ["LISTEN_FDS=1", `LISTEN_PID=${pid}`, "LISTEN_FDNAMES=agent"])
          t.ok(environment.includes(pair), pair)
        t.ok(environment.some(pair => pair.startsWith("NOTIFY_SOCKET=")))
        const text = JSON.stringify(frames.find(frame => frame.type === "message" && frame.role === "tool"))
        t.match(text, "CTX_AUTHORIZED_OBJECT=tool/show.env")
        t.notMatch(text, bad)
      })

      await t.test("the step program and what builds its sandbox have none of it, nor the listener", async t => {
        const run = talk(system, owner, { op: "send", id: "e2", input: script({ sleep_ms: 3000 }, { say: "x" }) })
        await run.frame("start")
        const runtime = await system.mainPid(RUNTIME)
        const listener = await system.text(["readlink", `/proc/${runtime}/fd/3`])
        t.match(listener, /^socket:/)
        const step = await system.until("step program", async () =>
          (await system.pids(RUNTIME)).find(pid => system.read(`/proc/${pid}/cmdline`).includes("cortexfs-step")),
        )
        const others = (await system.pids(RUNTIME)).filter(pid => pid !== runtime)
        t.ok(others.includes(step) && others.length >= 2, `${others.length} processes`)
        for (const pid of others) {
          const seen = (await system.text(["cat", `/proc/${pid}/environ`])).replaceAll("\0", "\n")
          if (pid === step) t.match(seen, /^CTX_AGENT_LAUNCH=/m)
          t.notMatch(seen, bad)
          const open = await system.text(["find", `/proc/${pid}/fd`, "-type", "l", "-printf", "%l\n"])
          t.notOk(open.split("\n").includes(listener), `${pid} does not hold the listener`)
        }
        t.match((await run.end()).at(-1), { type: "done", status: "ok" })
      })

      for (const [what, unit, text] of deviations) {
        await system.manage("stop", RUNTIME, SOCKET_UNIT)
        system.write(dropIn(unit), text)
        await system.manage("daemon-reload")
        await system.manage("start", SOCKET_UNIT)
        await system.systemctl("start", RUNTIME)
        const shown = await system.show(RUNTIME, "ActiveState", "ExecMainStatus", "NRestarts", "ExecMainPID")
        t.match(shown, { ActiveState: "failed", ExecMainStatus: "2", NRestarts: "0" }, what)
        // The journal does not always learn the invocation of a process that ends at once.
        const said = await system.entries(`_PID=${shown.ExecMainPID}`)
        t.equal(said.length, 1, what)
        t.match(said[0]?.MESSAGE, /^cortexfs-agent: usage: /, what)
        t.equal(said[0]?.PRIORITY, "3", what)
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
    "units.26 (mount and runtime) started by hand, outside of any unit, they do the same and tell nobody",
    async t => {
      const mount = "/tmp/hand/ctx"
      await system.text(["mkdir", "-p", mount])
      const unit = (pid: string) => system.read(`/proc/${pid}/cgroup`)
      const start = (...command: string[]) => {
        const child = system.start(command)
        let said = ""
        child.stderr!.setEncoding("utf8").on("data", text => (said += text))
        const ended = new Promise<number | null>(resolve => child.once("exit", resolve))
        return { ended, said: () => said }
      }
      const server = start("/usr/bin/cortexfs-mount", "--source", "/var/lib/cortexfs/storage/current", mount)
      await system.until("the mount", () => system.mounts().includes(mount))
      const status = (path: string) =>
        system.text(["grep", "-E", "^(state|version|tree_version|generation)=", `${path}/status`])
      t.equal(await status(mount), await status("/ctx"))

      const path = "/tmp/hand/agent.sock"
      const runtime = start(...COMMAND.split(" "), "--listen", path)
      await system.until("the socket", () => existsSync(system.see(path)))
      t.equal(statSync(system.see(path)).mode & 0o7777, 0o600)
      t.same(await ask(system, 0, { op: "ping" }, path), [{ type: "pong" }])
      const [mountPid, pid] = [mount, path].map(word => system.processes(word)[0]!.split(" ")[0]!)
      for (const one of [mountPid!, pid!]) {
        t.notMatch(unit(one), /cortexfs/, "in no unit of ours")
        t.notMatch(await system.text(["cat", `/proc/${one}/environ`]), /NOTIFY_SOCKET|LISTEN_/)
      }
      t.match(system.read(`/proc/${pid}/status`), new RegExp(`^Uid:\\t${owner}\\t${owner}\\t`, "m"))

      // The same call by the unit and by hand: the same frames, but for ids, times and sizes of text.
      const steps = script({ call: { name: "show.env", arguments: { args: ["x"] } } }, { say: "done" })
      const play = async (id: string, at?: string) => {
        await system.text(["chown", String(owner), path])
        const frames = await ask(system, owner, { op: "send", id, session: id, input: steps }, at)
        return frames.map(({ type, role, name, status }) => ({ type, role, name, status }))
      }
      const byUnit = await play("by-unit")
      t.match(byUnit.at(-1), { type: "done", status: "ok" })
      t.same(await play("by-hand", path), byUnit)

      await system.text(["kill", pid!])
      t.equal(await runtime.ended, 0)
      t.match(runtime.said(), /^cortexfs-agent: agent coder ready\n(.*\n)*cortexfs-agent: agent coder stopped\n$/)
      await system.text(["kill", mountPid!])
      t.equal(await server.ended, 0)
      t.match(
        server.said(),
        /^cortexfs-mount: mounted \S+ generation=\S+ passthrough=[01]\ncortexfs-mount: stopped \S+\n$/,
      )
      t.notOk(system.mounts().includes(mount))
    },
  )
})
