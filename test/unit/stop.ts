// needs: root fuse bwrap socat systemd
// `ctx agent stop` on units of a real system manager: what the receipt proves is stopped, and nothing else.
import { mkdirSync, renameSync, statSync, writeFileSync } from "node:fs"
import t, { type Test } from "tap"
import { bootSystem } from "../harness/systemd.js"
import {
  ask,
  currentDir,
  makeTool,
  playScripts,
  readHistory,
  script,
  setControl,
  talk,
  uidOf,
} from "../harness/systemd-agent.js"

const PONG = [{ type: "pong" }]
const RUNTIME = "cortexfs-agent@coder.service"
const SOCKET = "cortexfs-agent@coder.socket"

interface Meta {
  runtime_receipt: { control: { dev: number; ino: number }; system: { unit: string; invocation: string } }
}

t.test("a machine with agents", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  await system.manage("start", "cortexfs@coder", "cortexfs@reviewer", "cortexfs@worker")
  const dir = await currentDir(system)
  const ping = (agent = "coder") => ask(system, owner, { op: "ping" }, `/ctx/agent/${agent}.sock`)
  // As root: a machine without polkit lets nobody else stop a unit.
  const stop = (agent = "coder", ...more: string[]) => system.run(["ctx", "agent", "stop", agent, ...more])
  const control = (name: string, agent = "coder") => system.read(`${dir}/agent/${agent}.d/${name}`)
  const readMeta = (agent = "coder"): Meta => JSON.parse(control("meta.json", agent))
  const start = (agent = "coder") => system.manage("start", `cortexfs-agent@${agent}.socket`)
  // Through the mount a change made behind it is seen within a second; until then the old size cuts the new text.
  const setSeen = async (agent: string, name: string, text: string) => {
    await setControl(system, agent, name, text)
    await system.until(name, async () => (await system.run(["cat", `/ctx/agent/${agent}.d/${name}`])).stdout === text)
  }
  const untouched = async (t: Test, act: () => Promise<unknown>, agent = "coder") => {
    const pid = await system.mainPid(`cortexfs-agent@${agent}.service`)
    await act()
    t.not(pid, 0)
    t.equal(await system.mainPid(`cortexfs-agent@${agent}.service`), pid)
    t.same(await ping(agent), PONG)
  }

  t.test(
    "the runtime's receipt names its control directory, its unit and its invocation, and keeps other keys",
    async t => {
      await setControl(system, "coder", "meta.json", '{"description":"mine","n":[1]}\n')
      t.same(await ping(), PONG)
      const { ino, dev } = statSync(system.see(`${dir}/agent/coder.d`))
      const { InvocationID: invocation } = await system.show(RUNTIME, "InvocationID")
      t.strictSame(readMeta(), {
        description: "mine",
        n: [1],
        runtime_receipt: {
          version: 1,
          control: { dev, ino },
          system: { unit: RUNTIME, invocation, owned_start: true },
        },
      })
      const { uid, mode } = statSync(system.see(`${dir}/agent/coder.d/meta.json`))
      t.strictSame([uid, mode & 0o777], [owner, 0o644])
    },
  )

  t.test("stop ends the run as cancelled, the unit and its socket, and leaves the view", async t => {
    await playScripts(system, "coder", "hang")
    await makeTool(
      system,
      "hang",
      "#!/usr/bin/bash\n(setsid bash -c 'trap \"\" TERM; exec -a hanging sleep 300' &)\nsleep 300\n",
      ["coder"],
    )
    const call = script({ call: { name: "hang", arguments: { args: ["x"] } } }, { say: "never" })
    const run = talk(system, owner, { op: "send", id: "s1", input: call })
    await system.until("the tool", () => system.processes("hanging").length > 0)
    t.match(await stop(), { code: 0, stdout: "stopped agent/coder\n", stderr: "" })
    t.equal(await system.state(RUNTIME), "inactive")
    t.equal(await system.state(SOCKET), "inactive")
    t.equal(await system.state("cortexfs@coder.service"), "active")
    t.same(system.processes("hanging"), [])
    await run.end().catch(() => {})
    t.match(readHistory(system, owner, "coder").at(-1), { type: "done", status: "cancelled" })
    t.strictSame([control("status"), control("pid")], ["dead\n", "\n"])
    t.match(control("log"), /"type":"agent.stop"[^\n]*"status":"dead"[^\n]*\n$/)
    t.match(await stop(), { code: 0, stdout: "dead agent/coder\n", stderr: "" })
    t.strictSame(JSON.parse((await stop("coder", "--json")).stdout), [{ action: "dead", agent: "coder" }])
    await start()
    t.same(await ping(), PONG)
  })

  t.test("runtime.22 (the edited invocation only) a stale receipt is EBUSY and nothing is killed", async t => {
    const before = control("meta.json")
    await untouched(t, async () => {
      const meta = readMeta()
      meta.runtime_receipt.system.invocation = "0".repeat(32)
      await setControl(system, "coder", "meta.json", `${JSON.stringify(meta)}\n`)
      t.match(await stop(), {
        code: 69,
        stdout: "",
        stderr: /^ctx: EBUSY: agent\/coder: [^\n]+another invocation[^\n]*\n$/,
      })
    })
    await setControl(system, "coder", "meta.json", before)
  })

  t.test(
    "a receipt of another control directory, of another unit, malformed or missing is EBUSY and nothing is killed",
    async t => {
      const before = control("meta.json")
      const bad: [string, (receipt: Meta["runtime_receipt"]) => object][] = [
        ["another inode", ({ control, ...rest }) => ({ ...rest, control: { ...control, ino: control.ino + 1 } })],
        ["another device", ({ control, ...rest }) => ({ ...rest, control: { ...control, dev: control.dev + 1 } })],
        [
          "another unit",
          ({ system, ...rest }) => ({ ...rest, system: { ...system, unit: "cortexfs-agent@worker.service" } }),
        ],
        ["one more key", receipt => ({ ...receipt, pid: 1 })],
        ["one key less", ({ control, system }) => ({ control, system })],
        [
          "a unit that was up before",
          ({ system, ...rest }) => ({ ...rest, system: { ...system, owned_start: false } }),
        ],
      ]
      for (const [what, change] of bad) {
        await untouched(t, async () => {
          const receipt = change(readMeta().runtime_receipt)
          await setControl(system, "coder", "meta.json", `${JSON.stringify({ runtime_receipt: receipt })}\n`)
          t.match(await stop(), { code: 69, stdout: "", stderr: /^ctx: EBUSY: agent\/coder: [^\n]+\n$/ }, what)
          await setControl(system, "coder", "meta.json", before)
        })
      }
    },
  )

  t.test("a replaced control directory is EBUSY and nothing is killed", async t => {
    const path = system.see(`${dir}/agent/coder.d`)
    await untouched(t, async () => {
      await system.text(["cp", "-a", `${dir}/agent/coder.d`, `${dir}/agent/coder.new`])
      renameSync(path, `${path}.old`)
      renameSync(system.see(`${dir}/agent/coder.new`), path)
      await system.until("the view of the new directory", async () => (await stop()).code === 69)
      t.match(await stop(), { code: 69, stdout: "", stderr: /another control directory/ })
      renameSync(path, system.see(`${dir}/agent/coder.new`))
      renameSync(`${path}.old`, path)
    })
  })

  t.test("a pid that became another process's is EBUSY once the unit is down, and that process lives on", async t => {
    t.same(await ping(), PONG)
    const stranger = system.start(["/usr/bin/sleep", "300"], { uid: owner })
    const pid = await system.until("the stranger", () => Number(system.processes("sleep 300")[0]?.split(" ")[0]))
    await system.manage("stop", RUNTIME)
    await setControl(system, "coder", "status", "ready\n")
    await setControl(system, "coder", "pid", `${pid}\n`)
    t.match(await stop(), { code: 69, stdout: "", stderr: /^ctx: EBUSY: agent\/coder: / })
    t.equal(stranger.exitCode, null)
    t.equal(system.processes("sleep 300").length, 1)
    stranger.kill("SIGKILL")
    await setControl(system, "coder", "status", "idle\n")
    await setControl(system, "coder", "pid", "\n")
  })

  t.test("the socket of an agent at rest is closed, so that nothing wakes it", async t => {
    await system.manage("stop", RUNTIME)
    t.equal(await system.state(SOCKET), "active")
    t.match(await stop(), { code: 0, stdout: "stopped agent/coder\n" })
    t.equal(await system.state(SOCKET), "inactive")
    t.equal(control("status"), "dead\n")
    await start()
  })

  t.test("a runtime that was killed first, or hangs, leaves nothing after a stop", async t => {
    t.same(await ping(), PONG)
    const pid = await system.mainPid(RUNTIME)
    await system.text(["kill", "-KILL", String(pid)])
    t.match(await stop(), { code: 0, stdout: "stopped agent/coder\n", stderr: "" })
    t.same(await system.pids(RUNTIME), [])
    t.equal(await system.state(SOCKET), "inactive")
    await start()
    t.same(await ping(), PONG)
    await system.text(["kill", "-STOP", String(await system.mainPid(RUNTIME))])
    const began = Date.now()
    t.match(await system.run(["ctx", "agent", "stop", "coder"], { timeoutMs: 60_000 }), {
      code: 0,
      stdout: "stopped agent/coder\n",
    })
    t.ok(Date.now() - began < 30_000, `${Date.now() - began} ms`)
    t.same(await system.pids(RUNTIME), [])
    t.match(control("log"), /"type":"agent.stop"[^\n]*\n$/)
    await start()
  })

  t.test(
    "ctx.25 runtime.22 (by a stop of the parent) children are stopped before their parents, with their channels and both event lines; a conflict of one stops none",
    async t => {
      await setSeen("reviewer", "parent", "agent:coder session:main run:r1\n")
      await setSeen("worker", "parent", "agent:reviewer\n")
      for (const agent of ["coder", "reviewer", "worker"]) t.same(await ping(agent), PONG)
      await playScripts(system, "reviewer", "hang")
      await makeTool(system, "hang", "#!/usr/bin/bash\n(setsid sleep 301 &)\nsleep 302\n", ["coder", "reviewer"])
      const made = await ask(system, owner, { op: "send", id: "m1", session: "main", input: script({ say: "hi" }) })
      t.match(made.at(-1), { type: "done", status: "ok" })
      const work = script({ call: { name: "hang", arguments: { args: ["x"] } } }, { say: "never" })
      const run = talk(
        system,
        owner,
        { op: "send", id: "w1", session: "lint", input: work },
        "/ctx/agent/reviewer.sock",
      )
      await system.until("the tool", () => system.processes("sleep 301").length > 0)
      const channel = `/var/lib/cortexfs/home/${owner}/agent/coder/session/main/context/child/reviewer`
      mkdirSync(system.see(channel), { recursive: true })
      for (const [file, text] of Object.entries({
        agent: "reviewer\n",
        session: "lint\n",
        status: "active\n",
        "result.md": "",
      }))
        writeFileSync(system.see(`${channel}/${file}`), text, { mode: 0o600 })
      await system.text([
        "chown",
        "-R",
        `${owner}:${owner}`,
        `/var/lib/cortexfs/home/${owner}/agent/coder/session/main/context`,
      ])
      t.equal(
        (await system.text(["ctx", "agent", "ps"], { uid: owner })).replace(/\t.*/gm, ""),
        "coder\n  reviewer\n    worker",
      )
      const before = control("meta.json", "worker")
      const meta = readMeta("worker")
      meta.runtime_receipt.system.invocation = "1".repeat(32)
      await setControl(system, "worker", "meta.json", `${JSON.stringify(meta)}\n`)
      await untouched(t, () =>
        untouched(
          t,
          async () => {
            t.match(await stop(), { code: 69, stdout: "", stderr: /^ctx: EBUSY: agent\/worker: / })
            t.equal(system.read(`${channel}/status`), "active\n")
          },
          "worker",
        ),
      )
      await setControl(system, "worker", "meta.json", before)
      t.match(await stop(), {
        code: 0,
        stderr: "",
        stdout:
          "stopped agent/worker\nstopped agent/reviewer\ncancelled agent/coder session=main child=reviewer\nstopped agent/coder\n",
      })
      for (const agent of ["coder", "reviewer", "worker"]) {
        t.same(await system.pids(`cortexfs-agent@${agent}.service`), [], agent)
        t.equal(await system.state(`cortexfs-agent@${agent}.socket`), "inactive", agent)
      }
      t.strictSame(
        [system.read(`${channel}/status`), system.read(`${channel}/result.md`)],
        ["cancelled\n", "cancelled: reviewer"],
      )
      t.equal(statSync(system.see(`${channel}/status`)).uid, owner)
      t.same([...system.processes("sleep 301"), ...system.processes("sleep 302")], [], "no process of the tool is left")
      t.match((await run.end()).at(-1), { type: "done", status: "cancelled" })
      const child = readHistory(system, owner, "reviewer", "lint")
      t.match(child.slice(-2), [
        { type: "done", status: "cancelled" },
        { type: "agent.stop", agent: "reviewer", status: "cancelled" },
      ])
      const parent = readHistory(system, owner, "coder", "main")
      const cancel = { type: "agent.child.cancel", parent: "coder", child: "reviewer", reason: "parent_dead" }
      t.match(parent.at(-1), { ...cancel, seq: parent.length })
      t.same(Object.keys(parent.at(-1)!), ["seq", "ts", "type", "parent", "child", "reason"])
      for (const [agent, session] of [
        ["coder", "main"],
        ["reviewer", "lint"],
      ] as const) {
        const at = `/var/lib/cortexfs/home/${owner}/agent/${agent}/session/${session}`
        t.equal(system.read(`${at}/state`), agent === "coder" ? "done\n" : "idle\n", `${agent} ${session}`)
        t.equal(await system.text(["find", at, "!", "-uid", String(owner)]), "", "all of it is the owner's")
        t.match(await system.run(["ctx", "agent", "session", "verify", agent, session], { uid: owner }), { code: 0 })
        t.match(await system.run(["ctx", "agent", "history", agent, "--session", session], { uid: owner }), { code: 0 })
      }
      const again = await stop()
      t.match(again, { code: 0, stderr: "" })
      t.equal(readHistory(system, owner, "coder", "main").length, parent.length, "a second stop tells nothing again")
      const children = await system.text(["ctx", "agent", "children", "coder"], { uid: owner })
      t.equal(children, "reviewer\tcancelled\treviewer\tlint\tmain\tr1\tdebug/script\towned\t-\tdead\t-\t-")
      t.equal(await system.text(["ctx", "agent", "children", "worker"], { uid: owner }), "")
    },
  )

  t.test("runtime.22 (the cycle only) a tree that leads back to itself is EINVAL and nothing is stopped", async t => {
    await start("reviewer")
    await setSeen("coder", "parent", "agent:worker\n")
    t.same(await ping("reviewer"), PONG)
    await untouched(
      t,
      async () => {
        t.match(await stop("reviewer"), {
          code: 2,
          stdout: "",
          stderr: /^ctx: EINVAL: agent\/\S+ is its own ancestor: /,
        })
      },
      "reviewer",
    )
    await setSeen("coder", "parent", "\n")
    await setSeen("worker", "life", "detached\n")
    t.match(await stop("coder"), { code: 2, stdout: "", stderr: /life/ })
    await setSeen("worker", "life", "owned\n")
  })

  t.test("nobody but the owner and root stops an agent", async t => {
    await untouched(
      t,
      async () => {
        const ended = await system.run(["ctx", "agent", "stop", "reviewer"], { uid: 1234 })
        t.match(ended, { code: 13, stdout: "", stderr: /^ctx: EACCES: agent\/reviewer belongs to uid / })
      },
      "reviewer",
    )
  })
})
