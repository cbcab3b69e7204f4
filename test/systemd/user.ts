// needs: root fuse bwrap socat systemd
// The set of an ordinary user, by his own service manager: no process of it is root's, nobody else gets in.
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs"
import t, { type Test } from "tap"
import { bootSystem } from "../harness/systemd.js"
import { script } from "../harness/systemd-agent.js"
import { addPerson, startLinger } from "../harness/systemd-user.js"

const UID = 12_101
const RUNTIME = "cortexfs-agent@coder.service"
const VIEW_UNIT = "cortexfs@coder.service"
const STORAGE_UNIT = "cortexfs-storage.service"
/** No wait may be longer; a busy machine needs seconds for what takes milliseconds. */
const BOUND_MS = 45_000
const PONG = [{ type: "pong" }]
const SLEEP = script({ say: ["a", "b"] }, { sleep_ms: 60_000 }, { say: "never" })

t.test(
  "units.23 a user's set starts, rolls, recovers and stops by his own manager, closed to everybody else",
  async t => {
    const system = await bootSystem()
    t.teardown(() => system.stop())
    const ann = await addPerson(system, "ann", UID, [12_150])
    const bob = await addPerson(system, "bob", UID + 1)
    const run = `${ann.runtimeDir}/cortexfs`
    const [view, socket] = [`${run}/mount/coder`, `${run}/agent/coder.sock`]
    await startLinger(ann)

    /** What the user's manager did with units of the set since `cursor`, in order. */
    const deeds = async (cursor?: string) => {
      const pid = await system.mainPid(`user@${UID}.service`)
      const from = cursor === undefined ? [] : [`--after-cursor=${cursor}`]
      await system.run(["journalctl", "--sync"])
      const text = await system.text(["journalctl", "--no-pager", "-o", "cat", `_PID=${pid}`, ...from])
      return text.split("\n").flatMap(line => {
        const deed = /^(Starting|Started|Finished|Stopping|Stopped|Listening on|Closed) (cortexfs\S*)/.exec(line)
        return deed ? [`${deed[1]} ${deed[2]}`] : []
      })
    }
    const cursorNow = async () => {
      await system.run(["journalctl", "--sync"])
      return /cursor: (\S+)/.exec(await system.text(["journalctl", "--no-pager", "-n", "0", "--show-cursor"]))![1]!
    }
    const inOrder = (t: Test, done: string[], ...wanted: string[]) => {
      const places = wanted.map(deed => done.indexOf(deed))
      t.notOk(places.includes(-1), `all of ${wanted.join(", ")} in ${done.join(", ")}`)
      t.same(
        places,
        [...places].sort((a, b) => a - b),
        wanted.join(", then "),
      )
    }
    const owners = () =>
      system.processes("cortexfs").map(line => {
        const pid = line.slice(0, line.indexOf(" "))
        return [Number(/^Uid:\s+(\d+)\s/m.exec(system.read(`/proc/${pid}/status`))![1]), line]
      })

    t.test(
      "units.23 (start) one start brings up storage, host view, agent view and a private socket, in this order, without root",
      async t => {
        t.same(system.mounts(), [])
        await ann.manage("start", "cortexfs@coder")
        t.same(system.mounts().sort(), [ann.root, view])
        t.match(await ann.text(["cat", `${ann.root}/status`, `${view}/status`]), /^state=mounted\n(.*\n)+agent=coder\n/)
        inOrder(
          t,
          await deeds(),
          `Starting ${STORAGE_UNIT}`,
          `Finished ${STORAGE_UNIT}`,
          "Starting cortexfs.service",
          "Started cortexfs.service",
          `Starting ${VIEW_UNIT}`,
          `Started ${VIEW_UNIT}`,
        )
        inOrder(t, await deeds(), "Listening on cortexfs-agent@coder.socket", `Started ${VIEW_UNIT}`)
        const at = (path: string) => {
          const { mode, uid, gid } = statSync(system.see(path))
          return [mode & 0o7777, uid, gid]
        }
        t.same(at(socket), [0o600, UID, UID])
        for (const dir of [run, `${run}/agent`, `${run}/mount`, ann.storage, `${ann.storage}/..`]) {
          t.same(at(dir), [0o700, UID, UID], dir)
        }
        t.match(await ann.currentDir(), new RegExp(`^${ann.storage}/generations/v1-`))
        t.same(readdirSync(system.see(`${ann.storage}/..`)).sort(), ["home", "shared", "storage"])
        t.same(readdirSync(system.see("/var/lib/cortexfs/storage")), [], "nothing of it lies in the system's storage")
        t.equal(await ann.text(["readlink", `${ann.root}/agent/coder.sock`]), socket)
        t.same(
          owners().filter(([uid]) => uid !== UID),
          [],
        )
        t.equal(owners().length, 2)
      },
    )

    t.test(
      "aliases of the host view begin with its mount point, those of the agent's view with /ctx, where its sandbox has it",
      async t => {
        for (const [at, root] of [
          [ann.root, ann.root],
          [view, "/ctx"],
        ] as const) {
          t.match(await ann.text(["readlink", `${at}/model/main`]), new RegExp(`^${root}/model/[a-z]+/[a-z]+$`))
          t.equal(await ann.text(["readlink", `${at}/agent/coder.sock`]), socket)
        }
      },
    )

    t.test("ctx finds the user's own root, and a named one goes first", async t => {
      t.equal(await ann.text(["ctx", "root"]), ann.root)
      t.equal(await ann.text(["ctx", "root"], { CTX_ROOT: "/ctx" }), "/ctx")
      t.equal(await bob.text(["ctx", "root"]), "/ctx")
      t.equal(await system.text(["ctx", "root"]), "/ctx")
      t.match(await ann.text(["ctx", "storage", "list"]), /^v1-\S+\t1\tcurrent\t/)
      t.match(await ann.text(["ctx", "ls", "agent"]), /^coder$/m)
    })

    t.test(
      "units.23 (tool call) a run with a sandboxed tool ends well, and its history is below the state directory",
      async t => {
        await ann.text(["mkdir", `${ann.home}/fields`])
        await ann.text(["sh", "-c", "echo '# Fields' >~/fields/rye.md"])
        const question = ["ctx", "agent", "send", "coder", "--workspace", `${ann.home}/fields`, "what is in rye.md?"]
        t.match(await ann.text(question), /^> # Fields$/m)
        const controls = `${ann.storage}/current/agent/coder.d`
        await ann.text(["sh", "-c", `echo debug/script >${controls}/model`])
        await ann.text(["sh", "-c", `echo 'allow coder_t model:debug/script use' >>${controls}/policy`])
        const steps = script({ call: { name: "fs.list", arguments: {} } }, { say: "listed" })
        const send = (workspace: string) => ["ctx", "agent", "send", "coder", "--workspace", workspace, steps]
        // The home holds the storage, which no tool may see.
        t.match((await ann.run(send(ann.home))).stderr, /^ctx: EACCES: workspace \/home\/ann: it holds /)
        t.match(await ann.text(send(`${ann.home}/fields`)), /listed/)
        const rows = (await ann.text(["ctx", "agent", "history", "coder", "--raw"]))
          .split("\n")
          .map(line => JSON.parse(line))
        t.match(rows.findLast(row => row.role === "tool")?.content, [{ status: "ok", content: /rye\.md/ }])
        const history = `${ann.storage}/../home/${UID}/agent/coder/session/default/events.jsonl`
        t.match(readFileSync(system.see(history), "utf8"), /"type":"done".*"status":"ok"/)
        t.match(await ann.text(["ctx", "agent", "status", "coder"]), /^ready\n/)
        t.match(await ann.text(["ctx", "agent", "ps"]), /^coder\t/m)
        const pid = await ann.mainPid(RUNTIME)
        const status = system.read(`/proc/${pid}/status`)
        t.match(status, /^Uid:\t12101\t12101\t12101\t12101$/m)
        t.match(status, /^CapEff:\t0+$/m)
        t.match(status, /^NoNewPrivs:\t1$/m)
        t.match(status, /^Seccomp:\t2$/m)
      },
    )

    t.test("units.23 (others) another user and root get neither into the mounts nor to the socket", async t => {
      for (const [who, options] of [
        ["bob", { uid: bob.uid }],
        ["root", {}],
      ] as const) {
        for (const path of [`${ann.root}/status`, `${view}/status`]) {
          const ended = await system.run(["cat", path], options)
          t.match(ended.stderr, /Permission denied/, `${who}: ${path}`)
        }
      }
      const bobs = await system.run(["/usr/bin/socat", "-", `UNIX-CONNECT:${socket}`], { uid: bob.uid })
      t.match(bobs.stderr, /Permission denied/)
      // The kernel lets root connect to any socket; the runtime does not listen to it.
      const roots = await system.run(["/usr/bin/socat", "-", `UNIX-CONNECT:${socket}`], { input: '{"op":"ping"}\n' })
      t.match(JSON.parse(roots.stdout), { type: "error", code: "EACCES" })
    })

    t.test(
      "units.23 (crash) a killed view is back with the same socket, its runtime is stopped, the next request works",
      async t => {
        t.same(await ann.ask({ op: "ping" }), PONG)
        const [old, runtime, host] = [
          await ann.mainPid(VIEW_UNIT),
          await ann.mainPid(RUNTIME),
          await ann.mainPid("cortexfs.service"),
        ]
        const inode = system.inode(socket)
        await ann.text(["kill", "-KILL", String(old)])
        await system.until(
          "a new view",
          async () => {
            const pid = await ann.mainPid(VIEW_UNIT)
            return pid !== 0 && pid !== old && (await ann.show(VIEW_UNIT, "ActiveState")) === "active"
          },
          BOUND_MS,
        )
        t.match(await ann.text(["cat", `${view}/status`]), /^agent=coder$/m)
        t.same(await ann.ask({ op: "ping" }), PONG)
        t.not(await ann.mainPid(RUNTIME), runtime)
        t.equal(system.inode(socket), inode)
        t.equal(await ann.mainPid("cortexfs.service"), host)
        t.same(system.mounts().sort(), [ann.root, view])
      },
    )

    t.test("units.23 (crash) a killed host view is back, and the agent does not notice", async t => {
      const [old, runtime] = [await ann.mainPid("cortexfs.service"), await ann.mainPid(RUNTIME)]
      await ann.text(["kill", "-KILL", String(old)])
      await system.until(
        "a new host view",
        async () => {
          const pid = await ann.mainPid("cortexfs.service")
          return pid !== 0 && pid !== old && (await ann.show("cortexfs.service", "ActiveState")) === "active"
        },
        BOUND_MS,
      )
      t.match(await ann.text(["ctx", "status"]), /^state=mounted$/m)
      t.equal(await ann.mainPid(RUNTIME), runtime)
    })

    t.test(
      "units.23 (roll) a restart of the user's storage unit rolls in the order of the system's, ends the run with EINTR, and keeps the socket",
      async t => {
        const sent = ann.talk({ op: "send", id: "r1", input: SLEEP })
        await sent.frame("start", BOUND_MS)
        const inode = system.inode(socket)
        const old = await ann.currentDir()
        // A file of the release was changed: the next update needs a new generation.
        writeFileSync(system.see(`${old}/tool/fs.read.d/description`), "changed\n")
        const cursor = await cursorNow()
        await ann.manage("restart", STORAGE_UNIT)
        await system.until(
          "all units active",
          async () => {
            const states = await ann.run(["systemctl", "--user", "is-active", "cortexfs.service", VIEW_UNIT, RUNTIME])
            return states.stdout === "active\nactive\nactive\n"
          },
          BOUND_MS,
        )
        const done = await deeds(cursor)
        inOrder(
          t,
          done,
          `Stopped ${RUNTIME}`,
          `Stopping ${VIEW_UNIT}`,
          `Stopped ${VIEW_UNIT}`,
          "Stopping cortexfs.service",
          "Stopped cortexfs.service",
          `Starting ${STORAGE_UNIT}`,
          `Finished ${STORAGE_UNIT}`,
          "Starting cortexfs.service",
          "Started cortexfs.service",
          `Starting ${VIEW_UNIT}`,
          `Started ${VIEW_UNIT}`,
        )
        t.notOk(
          done.some(deed => /socket/.test(deed)),
          "the socket was neither stopped nor started",
        )
        t.equal(system.inode(socket), inode)
        t.match((await sent.end()).slice(-2), [
          { type: "error", code: "EINTR" },
          { type: "done", status: "error" },
        ])
        const generation = (await ann.currentDir()).split("/").pop()!
        t.not(await ann.currentDir(), old)
        t.same(readdirSync(system.see(`${ann.storage}/generations`)), [generation], "the old generation is pruned")
        for (const path of [ann.root, view])
          t.match(await ann.text(["cat", `${path}/status`]), `generation=${generation}\n`)
        t.equal((await ann.run(["ctx", "agent", "session", "verify", "coder"])).code, 0)
        t.match((await ann.ask({ op: "send", id: "r2", input: script({ say: "on" }) })).at(-1), { status: "ok" })
      },
    )

    t.test("ctx agent stop ends the user's units by his own manager", async t => {
      const sent = ann.talk({ op: "send", id: "s1", input: SLEEP })
      await sent.frame("start", BOUND_MS)
      // As by su or cron: without the variable that leads to the manager.
      t.equal(await ann.text(["env", "-u", "XDG_RUNTIME_DIR", "ctx", "agent", "stop", "coder"]), "stopped agent/coder")
      t.match((await sent.end()).at(-1), { type: "done", status: "cancelled" })
      t.equal(await ann.show(RUNTIME, "ActiveState"), "inactive")
      const refused = await ann.run(["ctx", "agent", "send", "coder", "x"])
      t.equal(
        refused.stderr,
        "ctx: ENOENT: agent/coder is not started: systemctl --user start cortexfs-agent@coder.socket\n",
      )
      await ann.manage("start", "cortexfs-agent@coder.socket")
      t.same(await ann.ask({ op: "ping" }), PONG)
    })

    t.test("the runtime's configuration is the user's own", async t => {
      const rules = `${ann.home}/.config/cortexfs/policy.json`
      await ann.text(["sh", "-c", `mkdir -p ~/.config/cortexfs && echo '{' >${rules}`])
      await ann.manage("restart", RUNTIME)
      const call = script({ call: { name: "fs.list", arguments: {} } }, { say: "x" })
      const frames = await ann.ask({ op: "send", id: "c1", input: call })
      t.match(
        frames.find(frame => frame.type === "error"),
        { code: "EACCES" },
      )
      t.match(await system.journal([], 200), /policy interpreter denies everything: EINVAL/)
      await ann.text(["rm", rules])
      await ann.manage("restart", RUNTIME)
      t.match(
        (await ann.ask({ op: "send", id: "c2", input: call })).find(frame => frame.type === "message"),
        {
          role: "tool",
          content: [{ status: "ok" }],
        },
      )
    })

    t.test("units.23 (stop) a stop of the storage unit leaves no mount, no process, no socket", async t => {
      const sent = ann.talk({ op: "send", id: "e1", input: SLEEP })
      await sent.frame("start", BOUND_MS)
      await ann.manage("stop", STORAGE_UNIT)
      t.match((await sent.end()).at(-1), { type: "done", status: "error" })
      t.same(system.mounts(), [])
      t.same(owners(), [])
      t.same(system.processes("bwrap"), [])
      await system.until("no socket", () => readdirSync(system.see(`${run}/agent`)).length === 0, BOUND_MS)
      t.same(readdirSync(system.see(`${run}/mount`)), [])
      const ended = await ann.run(["ctx", "status"])
      t.equal(ended.code, 69)
      t.equal(ended.stderr, `ctx: EHOSTDOWN: ${ann.root} is not mounted: systemctl --user start cortexfs.service\n`)
    })

    t.test("enabled, an agent comes up with the user's manager", async t => {
      await ann.manage("enable", "cortexfs@coder")
      await system.manage("restart", `user@${UID}.service`)
      await system.until("the view", async () => (await ann.show(VIEW_UNIT, "ActiveState")) === "active", BOUND_MS)
      t.same(await ann.ask({ op: "ping" }), PONG)
    })

    t.test("beside the set of the system, ctx means that of the system, and a named root the user's own", async t => {
      await system.manage("start", "cortexfs@coder")
      t.same(system.mounts().sort(), ["/ctx", "/run/cortexfs/mount/coder", ann.root, view].sort())
      t.equal(await ann.text(["ctx", "root"]), "/ctx")
      t.match((await ann.run(["ctx", "ping", "agent/coder"])).stderr, /^ctx: EACCES: /)
      const own = { CTX_ROOT: ann.root }
      t.equal(await ann.text(["ctx", "ping", "agent/coder"], own), "pong")
      t.equal(await ann.text(["ctx", "agent", "stop", "coder"], own), "stopped agent/coder")
      t.equal(await system.state("cortexfs-agent@coder.socket"), "active")
      // Also while the system's is away for a moment, as in a roll.
      await system.manage("stop", STORAGE_UNIT)
      t.equal(await ann.text(["ctx", "root"]), "/ctx")
    })

    t.test("the user's manager of root starts no second set in place of the system's", async t => {
      await system.manage("start", "user@0.service")
      const env = ["/usr/bin/env", "XDG_RUNTIME_DIR=/run/user/0", "HOME=/root"]
      const ended = await system.run([...env, "systemctl", "--user", "start", "cortexfs@coder"], { timeoutMs: 60_000 })
      t.equal(ended.code, 1)
      const shown = [...env, "systemctl", "--user", "show", "-p", "AssertResult", "--value", STORAGE_UNIT]
      t.equal(await system.text(shown), "no")
      t.same(system.mounts().sort(), [ann.root, view])
    })

    t.test("the end of the user's manager is the end of his set", async t => {
      await system.manage("stop", `user@${UID}.service`)
      t.same(system.mounts(), [])
      t.same(owners(), [])
    })
  },
)
