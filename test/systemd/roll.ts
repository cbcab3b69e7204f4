// needs: root fuse bwrap socat systemd
// A roll is a restart of cortexfs-storage.service: its order, its clients, and one that fails.
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import t from "tap"
import { bootSystem, type System } from "../harness/systemd.js"
import { ask, currentDir, playScripts, readHistory, script, talk, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const STORAGE_UNIT = "cortexfs-storage.service"
const SOCKET = "/run/cortexfs/agent/coder.sock"
const VIEW = "/run/cortexfs/mount/coder"
const generations = (system: System) => readdirSync(system.see("/var/lib/cortexfs/storage/generations"))

/** Changes a file that belongs to the release, so that the next update needs a new generation (roll.6). */
async function spoil(system: System): Promise<void> {
  writeFileSync(system.see(`${await currentDir(system)}/tool/fs.read.d/description`), "changed\n")
}

/** What the manager did with units of the set since `cursor`, in order. */
async function deeds(system: System, cursor: string): Promise<string[]> {
  const text = await system.text(["journalctl", "--no-pager", "-o", "cat", "_PID=1", `--after-cursor=${cursor}`])
  return text.split("\n").flatMap(line => {
    const deed = /^(Starting|Started|Finished|Stopping|Stopped) (cortexfs\S*)/.exec(line)
    return deed ? [`${deed[1]} ${deed[2]}`] : []
  })
}

/** The list of a release with a migration to version 2 that fails. */
function addFailing(text: string): string {
  const fault = `{ throw new CtxError("EINVAL", "agent/coder.d/path has an element") }`
  const fails = `{ version: 2, id: "fails", plan() ${fault}, apply() ${fault} }`
  return `import { CtxError } from "../abi/error.js"\n${text.replace("[initialTree]", `[initialTree, ${fails}]`)}`
}

async function cursorOf(system: System): Promise<string> {
  await system.run(["journalctl", "--sync"])
  const text = await system.text(["journalctl", "--no-pager", "-n", "0", "--show-cursor"])
  return /cursor: (\S+)/.exec(text)![1]!
}

t.test("a machine with two agents and the host view", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  await system.manage("start", "cortexfs@coder", "cortexfs@reviewer")
  await playScripts(system, "coder")
  const runningTalk = async (id: string) => {
    const run = talk(system, owner, {
      op: "send",
      id,
      input: script({ say: ["a", "b"] }, { sleep_ms: 30_000 }, { say: "never" }),
    })
    await run.frame("start")
    return run
  }

  const set = ["cortexfs.service", "cortexfs@coder.service", "cortexfs@reviewer.service"]
  const runtimes = [RUNTIME, "cortexfs-agent@reviewer.service"]
  /** The restart of a unit is over before those that it brings along are. */
  const isBack = (units = [...set, ...runtimes]) =>
    system.until("all units active", async () => {
      const states = await system.run(["systemctl", "is-active", ...units])
      return states.stdout.split("\n").filter(state => state === "active").length === units.length
    })

  t.test(
    "units.9 roll.23 a restart of the storage unit stops runtime, views, host view, updates, starts; the socket stays and its queue is served",
    async t => {
      t.same(await ask(system, owner, { op: "ping" }, "/ctx/agent/reviewer.sock"), [{ type: "pong" }])
      const run = await runningTalk("r1")
      const inodes = ["coder", "reviewer"].map(agent => system.inode(`/run/cortexfs/agent/${agent}.sock`))
      const runtime = await system.mainPid(RUNTIME)
      const old = generations(system)
      await spoil(system)
      const cursor = await cursorOf(system)
      const rolled = system.manage("restart", STORAGE_UNIT)
      // By the listener's own path, since /ctx is away for a while; the whole time until the roll is over.
      let isOver = false
      const during: Promise<unknown>[] = []
      const clients = (async () => {
        while (!isOver) {
          during.push(ask(system, owner, { op: "ping" }, SOCKET))
          await new Promise(resolve => setTimeout(resolve, 40))
        }
      })()
      await rolled
      isOver = true
      await clients
      t.ok(during.length >= 5, `${during.length} connections during the roll`)
      // Those that the old runtime had accepted got their answer from it, the others wait for the new one.
      for (const frames of await Promise.all(during)) t.same(frames, [{ type: "pong" }])

      await isBack()
      const done = await deeds(system, cursor)
      const at = (deed: string, last = false) => {
        const i = last ? done.lastIndexOf(deed) : done.indexOf(deed)
        t.ok(i >= 0, `${deed} happened`)
        return i
      }
      const views = ["cortexfs@coder.service", "cortexfs@reviewer.service"]
      for (const [i, view] of views.entries()) {
        t.ok(at(`Stopped ${runtimes[i]}`) < at(`Stopping ${view}`), "runtime before its view")
        t.ok(at(`Stopped ${view}`) < at("Stopping cortexfs.service"), "views before the host view")
        t.ok(at("Started cortexfs.service") < at(`Starting ${view}`), "host view before views")
        t.ok(at(`Started ${view}`) < at(`Started ${runtimes[i]}`, true), "view before its runtime")
      }
      t.ok(at("Stopped cortexfs.service") < at(`Starting ${STORAGE_UNIT}`), "all are stopped before the update")
      t.ok(
        at(`Finished ${STORAGE_UNIT}`) < at("Starting cortexfs.service"),
        "the update is over before anything starts",
      )
      t.notOk(
        done.some(deed => /socket/.test(deed)),
        "no socket was stopped or started",
      )
      t.same(
        ["coder", "reviewer"].map(agent => system.inode(`/run/cortexfs/agent/${agent}.sock`)),
        inodes,
      )

      const generation = (await currentDir(system)).split("/").pop()!
      t.same(generations(system), [generation], "the old generation is pruned")
      t.notOk(old.includes(generation))
      t.notMatch(await system.journal([STORAGE_UNIT]), /EBUSY|pinned/)
      for (const path of ["/ctx", VIEW]) t.match(system.read(`${path}/status`), `generation=${generation}\n`)
      t.not(await system.mainPid(RUNTIME), runtime)

      const frames = await run.end()
      t.match(frames.slice(-2), [
        { type: "error", code: "EINTR" },
        { type: "done", status: "error" },
      ])
      t.match(readHistory(system, owner, "coder").slice(-2), [
        { type: "error", code: "EINTR" },
        { type: "done", status: "error" },
      ])
      t.match((await system.run(["ctx", "agent", "session", "verify", "coder"], { uid: owner })).code, 0)
      t.match((await ask(system, owner, { op: "send", id: "r2", input: script({ say: "on" }) })).at(-1), {
        status: "ok",
      })
    },
  )

  t.test("a second restart that needs no roll changes no byte of the generation", async t => {
    const before = await currentDir(system)
    const look = async () => await system.text(["find", before, "-printf", "%P %i %C@ %s\n"])
    await system.manage("stop", RUNTIME, "cortexfs-agent@reviewer.service")
    const old = await look()
    await system.manage("restart", STORAGE_UNIT)
    await isBack(set)
    t.equal(await currentDir(system), before)
    t.equal(await look(), old)
    t.same(generations(system), [before.split("/").pop()])
  })

  t.test(
    "roll.24 a migration that fails leaves consumers down and current as it is; with the old program all starts without a roll",
    async t => {
      const before = await currentDir(system)
      // The program of the next release: one more migration, which finds something that it cannot transform.
      const restore = ["abi/product.js", "store/release.js"].map(name => {
        const path = system.see(`/usr/lib/cortexfs/dist/${name}`)
        const text = readFileSync(path, "utf8")
        const next = name === "abi/product.js" ? text.replace("TREE_VERSION = 1", "TREE_VERSION = 2") : addFailing(text)
        t.not(next, text, name)
        writeFileSync(path, next)
        return () => writeFileSync(path, text)
      })
      const failed = await system.systemctl("restart", STORAGE_UNIT)
      t.not(failed.code, 0)
      t.equal(await system.state(STORAGE_UNIT), "failed")
      const shown = await system.run(["systemctl", "status", "--no-pager", "-l", STORAGE_UNIT])
      t.match(shown.stdout, /ctx: EINVAL: agent\/coder\.d\/path/)
      for (const unit of ["cortexfs.service", "cortexfs@coder.service", RUNTIME]) {
        t.equal(await system.state(unit), "inactive", unit)
      }
      t.same(system.mounts(), [])
      t.equal(await currentDir(system), before)
      t.same(generations(system), [before.split("/").pop()])

      for (const one of restore) one()
      await system.manage("start", "cortexfs@coder")
      t.equal(await currentDir(system), before)
      t.match((await ask(system, owner, { op: "send", id: "r3", input: script({ say: "on" }) })).at(-1), {
        status: "ok",
      })
    },
  )
})
