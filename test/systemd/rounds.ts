// needs: root fuse bwrap socat systemd
// Crash loops of view, host view and runtime: nothing is left over, and every run has its end.
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, playScripts, readHistory, script, talk, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const ROUNDS = 100

t.test("a machine with two agents", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  const kill = (pid: number) => system.text(["kill", "-KILL", String(pid)])
  const restarted = (unit: string, old: number) =>
    system.until(`a new ${unit}`, async () => {
      const shown = await system.show(unit, "ActiveState", "MainPID")
      return shown.ActiveState === "active" && Number(shown.MainPID) !== old
    })
  await system.manage("start", "cortexfs@coder", "cortexfs@reviewer")
  await playScripts(system, "coder")

  t.test(
    `${ROUNDS} rounds of kills of view, host view and runtime in the middle of runs leave no mount, no waiting process, no orphan`,
    async t => {
      const targets = ["cortexfs@coder.service", "cortexfs.service", RUNTIME]
      for (let round = 0; round < ROUNDS; round++) {
        // Below what the start limits count as a crash loop.
        await system.manage("reset-failed", ...targets)
        const run = talk(system, owner, {
          op: "send",
          id: `k-${round}`,
          input: script({ sleep_ms: 800 }, { say: "x" }),
        })
        await run.frame("start")
        const unit = targets[round % targets.length]!
        const old = await system.mainPid(unit)
        await new Promise(resolve => setTimeout(resolve, (round * 37) % 400))
        await kill(old)
        if (unit !== RUNTIME) await restarted(unit, old)
        await run.end().catch(() => undefined)
        const next = await ask(system, owner, { op: "send", id: `n-${round}`, input: script({ say: "x" }) })
        if (next.at(-1)?.status !== "ok") t.match(next.at(-1), { type: "done", status: "ok" }, `round ${round}`)
        const mounts = system.mounts().sort()
        if (mounts.length !== 3) t.same(mounts, [], `round ${round}`)
      }
      const states = await system.text(["ps", "-eo", "stat=,pid=,args="])
      t.same(
        states.split("\n").filter(line => line.startsWith("D")),
        [],
      )
      await system.manage("stop", "cortexfs-storage.service")
      t.same(system.mounts(), [])
      t.same(system.processes("cortexfs-"), [])
      t.same(system.processes("bwrap"), [])
      const rows = readHistory(system, owner, "coder")
      const started = rows.filter(row => row.type === "start").map(row => row.run)
      const done = rows.filter(row => row.type === "done").map(row => row.run)
      t.same(
        started.filter(run => !done.includes(run)),
        [],
        "every run has an end",
      )
      t.equal(new Set(started).size, started.length)
    },
  )
})
