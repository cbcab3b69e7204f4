// needs: root fuse bwrap socat systemd
// An agent enabled at boot, and restarts of single units: what each of them touches, and what it leaves alone.
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, playScripts, script, talk, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const SOCKET = "/run/cortexfs/agent/coder.sock"
const ALL = ["cortexfs-storage.service", "cortexfs.service", "cortexfs@coder.service", RUNTIME]

t.test("a machine on which systemctl enable cortexfs@coder was called", async t => {
  const system = await bootSystem({ isEnabled: true, enable: ["cortexfs@coder.service"] })
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  const starts = async () => {
    const shown = await Promise.all(ALL.map(unit => system.show(unit, "ActiveEnterTimestampMonotonic")))
    return Object.fromEntries(ALL.map((unit, i) => [unit, shown[i]!.ActiveEnterTimestampMonotonic]))
  }
  const areActive = () =>
    system.until("all units active", async () => {
      const { stdout } = await system.run(["systemctl", "is-active", ...ALL])
      return stdout.split("\n").filter(state => state === "active").length === ALL.length
    })
  /** Units of ALL that started anew while `act` ran. */
  const restartedBy = async (act: () => Promise<unknown>) => {
    const before: Record<string, string | undefined> = await starts()
    await act()
    await areActive()
    const after: Record<string, string | undefined> = await starts()
    return ALL.filter(unit => before[unit] !== after[unit])
  }

  t.test("it is up after the boot, its socket answers, and the runtime is started by the first connection", async t => {
    t.same(system.mounts().sort(), ["/ctx", "/run/cortexfs/mount/coder"])
    t.equal(await system.state(RUNTIME), "inactive")
    t.same(await ask(system, owner, { op: "ping" }), [{ type: "pong" }])
    t.equal(await system.state(RUNTIME), "active")
    await playScripts(system, "coder")
  })

  t.test("a restart of the host view restarts it alone, in the middle of a run", async t => {
    const inode = system.inode(SOCKET)
    const run = talk(system, owner, { op: "send", id: "h1", input: script({ sleep_ms: 1500 }, { say: "x" }) })
    await run.frame("start")
    t.same(await restartedBy(() => system.manage("restart", "cortexfs.service")), ["cortexfs.service"])
    t.match((await run.end()).at(-1), { type: "done", status: "ok" })
    t.equal(system.inode(SOCKET), inode)
    t.match(await system.text(["cat", "/ctx/status"], { uid: owner }), /^state=mounted$/m)
  })

  t.test(
    "a restart of the view ends its runs as interrupted, brings the runtime back, and keeps the socket",
    async t => {
      const inode = system.inode(SOCKET)
      const run = talk(system, owner, { op: "send", id: "v1", input: script({ sleep_ms: 30_000 }, { say: "never" }) })
      await run.frame("start")
      const restarted = await restartedBy(() => system.manage("restart", "cortexfs@coder"))
      t.same(restarted, ["cortexfs@coder.service", RUNTIME])
      t.match((await run.end()).slice(-2), [
        { type: "error", code: "EINTR" },
        { type: "done", status: "error" },
      ])
      t.equal(system.inode(SOCKET), inode)
      t.match((await ask(system, owner, { op: "send", id: "v2", input: script({ say: "x" }) })).at(-1), {
        status: "ok",
      })
    },
  )

  t.test("a restart of the target is a roll, and its stop stops everything", async t => {
    const inode = system.inode(SOCKET)
    t.same(await restartedBy(() => system.manage("restart", "cortexfs.target")), ALL)
    t.equal(system.inode(SOCKET), inode)
    await system.manage("stop", "cortexfs.target")
    await system.until("nothing", async () => (await system.state("cortexfs-storage.service")) === "inactive")
    t.same(system.mounts(), [])
    t.same(system.processes("cortexfs-"), [])
  })
})
