// needs: root fuse strace
// A host view killed with SIGKILL before each system call that changes anything while it makes, publishes or removes:
// what is there afterwards is the old or the new state, and the next mount finishes what the owner repeats.
import { spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import type { Mount } from "../harness/mount.js"
import { cleanEnv } from "../harness/program.js"
import { act, act1, type Call } from "./fixture/actor.js"
import { type Fixture, makeBehind, makeFixture, O, OWNER, writeBehind } from "./fixture/stack.js"

/** System calls that change the backing side; strace counts each by itself, and in each thread. */
const CHANGES = [
  "renameat2",
  "renameat",
  "mkdirat",
  "unlink",
  "unlinkat",
  "rmdir",
  "fsync",
  "fchown",
  "fchownat",
  "fchmod",
]
let f: Fixture
let host: Mount
const temp = (name: string) => `.${name}.tmp-9-f0-0`

t.before(async () => {
  f = await makeFixture()
  host = f.host
})
t.after(() => f.stack.stop())

/** Makes `call` while the mount is to die before its `n`th `change`; true when it lived through the call. */
async function callAndKill(change: string, n: number, call: Call): Promise<boolean> {
  const pid = String(host.child.pid)
  const log = join(f.stack.dir, "trace")
  writeFileSync(log, "")
  const tracer = spawn("strace", ["-f", "-q", "-o", log, "-e", `inject=${change}:signal=KILL:when=${n}`, "-p", pid], {
    env: cleanEnv(),
    stdio: "ignore",
  })
  const ended = once(tracer, "exit")
  // Attached is not yet traced: each reading of `status` is an answer of the thread that does the work.
  const isTraced = () => new RegExp(`^${pid} `, "m").test(readFileSync(log, "utf8"))
  for (let i = 0; !isTraced(); i++) {
    if (i > 1000) throw new Error("strace did not attach")
    readFileSync(f.at("status"))
    await new Promise(resolve => setTimeout(resolve, 5))
  }
  const result = await act1(OWNER, ...call)
  const isAlive = host.child.exitCode === null && host.child.signalCode === null && result === "ok"
  tracer.kill("SIGTERM")
  await ended
  await host.stop()
  host = await f.stack.startHost()
  return isAlive
}

/** Kills before the first, the second, ... of each kind of change of `call`; gives how often the mount died. */
async function killEverywhere(
  call: Call,
  prepare: () => Promise<void>,
  check: (step: string, isWhole: boolean) => Promise<void>,
): Promise<number> {
  let deaths = 0
  for (const change of CHANGES)
    for (let n = 1, isWhole = false; !isWhole; n++) {
      await prepare()
      isWhole = await callAndKill(change, n, call)
      await check(`${change} ${n}`, isWhole)
      if (!isWhole) deaths++
    }
  return deaths
}

const definition = () => readdirSync(f.at("agent/rev.d")).sort()

t.test("fuse.16 a mount killed before the close leaves the old bytes", async t => {
  makeBehind(join(f.generation, "agent/rev.d"), OWNER)
  writeBehind(join(f.generation, "agent/rev.d/owner"), `${OWNER}\n`, OWNER)
  writeBehind(join(f.generation, "agent/rev.d/cwd"), "/old\n", OWNER)
  writeBehind(join(f.generation, "agent/rev"), "#!/bin/true\n", OWNER, 0o755)
  await new Promise(resolve => setTimeout(resolve, 1100))
  const held = act({ uid: OWNER, timeoutMs: 20_000 }, [
    ["handle", "h", f.at("agent/rev.d/cwd"), O.WRONLY | O.TRUNC],
    ["hwrite", "h", "/new\n"],
    ["write", join(f.stack.dir, "written"), "x"],
    ["sleep", 3],
  ])
  makeBehind(f.stack.dir, 0, 0o777)
  for (let i = 0; i < 400 && !existsSync(join(f.stack.dir, "written")); i++)
    await new Promise(resolve => setTimeout(resolve, 25))
  host.child.kill("SIGKILL")
  t.same((await held).slice(0, 3), ["ok", "ok", "ok"])
  await host.stop()
  t.equal(readFileSync(join(f.generation, "agent/rev.d/cwd"), "utf8"), "/old\n")
  host = await f.stack.startHost()
  t.equal(readFileSync(f.at("agent/rev.d/cwd"), "utf8"), "/old\n")
})

t.test(
  "a mount killed while it publishes shows the old or the new control, and its leftovers go with the directory",
  async t => {
    const names = definition()
    const path = f.at("agent/rev.d/cwd")
    const publish: Call = ["rename", f.at(`agent/rev.d/${temp("cwd")}`), path]
    const prepare = async () => {
      await act(OWNER, [
        ["write", path, "/old\n", O.WRONLY | O.TRUNC],
        ["write", f.at(`agent/rev.d/${temp("cwd")}`), "/new\n"],
      ])
    }
    const steps = await killEverywhere(publish, prepare, async (n, isWhole) => {
      const text = readFileSync(path, "utf8")
      t.ok(isWhole ? text === "/new\n" : ["/old\n", "/new\n"].includes(text), `kill ${n}: ${text}`)
      t.same(definition(), names, `kill ${n} leaves nothing to be seen`)
    })
    t.ok(steps >= 5, `${steps}: chown, chmod, fsync, rename, unlink of the temporary`)
    const inPlace: Call = ["truncate", path, 1]
    await killEverywhere(
      inPlace,
      async () => {
        await act(OWNER, [["write", path, "/old\n", O.WRONLY | O.TRUNC]])
      },
      async n => {
        t.ok(["/old\n", "/"].includes(readFileSync(path, "utf8")), `kill ${n}`)
        t.same(definition(), names)
      },
    )
  },
)

t.test("a mount killed while it makes a definition leaves none or a whole one of its maker", async t => {
  const prepare = async () => {
    await act(OWNER, [["rmdir", f.at("agent/made.d")]])
  }
  await killEverywhere(["mkdir", f.at("agent/made.d")], prepare, async n => {
    const made = readdirSync(f.at("agent")).filter(name => name.startsWith("made") || name.startsWith("."))
    t.ok(made.length === 0 || String(made) === "made.d,made.sock", `kill ${n}: ${made}`)
    if (made.length > 0) t.equal(await act1(OWNER, "rmdir", f.at("agent/made.d")), "ok")
    t.equal(await act1(OWNER, "mkdir", f.at("agent/made.d")), "ok", `kill ${n}: made again`)
  })
})

t.test("fuse.19 a mount killed while it removes an agent leaves it whole, or no agent and its history", async t => {
  const home = `home/${OWNER}/agent/rev/session`
  makeBehind(f.behind(home), OWNER, 0o700)
  writeBehind(f.behind(`${home}/messages.jsonl`), '{"seq":1}\n', OWNER, 0o600)
  const prepare = async () => {
    await act(OWNER, [
      ["mkdir", f.at("agent/rev.d")],
      ["write", f.at(`agent/rev.d/${temp("owner")}`), `${OWNER}\n`],
      ["rename", f.at(`agent/rev.d/${temp("owner")}`), f.at("agent/rev.d/owner")],
      ["write", f.at(`agent/rev.d/${temp("cwd")}`), "/x\n"],
      ["rename", f.at(`agent/rev.d/${temp("cwd")}`), f.at("agent/rev.d/cwd")],
      ["write", f.at(`agent/${temp("rev")}`), "#!/bin/true\n"],
      ["rename", f.at(`agent/${temp("rev")}`), f.at("agent/rev")],
    ])
    if (!existsSync(f.at("agent/rev"))) throw new Error("the agent cannot be made again")
  }
  const seen = new Set<string>()
  await killEverywhere(["unlink", f.at("agent/rev")], prepare, async (n, isWhole) => {
    const names = readdirSync(f.at("agent")).filter(name => /^rev(\.|$)/.test(name) || name.startsWith("."))
    seen.add(String(names))
    t.ok(["rev,rev.d,rev.sock", "rev.d,rev.sock", ""].includes(String(names)), `kill ${n}: ${names}`)
    if (isWhole) t.same(names, [])
    if (names.includes("rev")) t.ok(definition().includes("owner") && definition().includes("cwd"))
    t.equal(readFileSync(f.behind(`${home}/messages.jsonl`), "utf8"), '{"seq":1}\n')
  })
  t.ok(seen.size >= 2, [...seen].join(" | "))
})
