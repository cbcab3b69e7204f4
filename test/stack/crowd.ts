// needs: root fuse bwrap
import { readdirSync, readFileSync, readlinkSync } from "node:fs"
import t from "tap"
import { type Connection, Peer } from "../fixture/agent/peer.js"
import { call, type Stage } from "../fixture/agent/stage.js"
import { checkProven, checkRefusal, eventsOf, makeWholeStage, rowsOf, sleepMs, until } from "./fixture/kit.js"

const MIB = 1024 * 1024

t.setTimeout(240_000)

t.test("many clients of one runtime", async t => {
  const stage: Stage = await makeWholeStage(t)
  const { stack, owner, runtime } = stage
  const pid = runtime.child.pid!
  const rssBytes = () => Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))![1]) * 1024
  const sockets = () =>
    new Set(
      readdirSync(`/proc/${pid}/fd`).flatMap(fd => {
        try {
          const link = readlinkSync(`/proc/${pid}/fd/${fd}`)
          return link.startsWith("socket:") ? [link] : []
        } catch {
          return []
        }
      }),
    )
  const fdCount = () => readdirSync(`/proc/${pid}/fd`).length
  const scriptOf = (...steps: object[]) => JSON.stringify({ schema: "cortexfs.script/v1", steps })
  await stage.send([call("fs.list", { path: "." }), { say: "warm" }], { session: "warm" }).over()

  await t.test(
    "300 idle connections: those over 256 are told EAGAIN, the others end after 5 s, and a ping is answered then",
    async t => {
      const fds = fdCount()
      // In groups: the kernel refuses what the listening queue cannot hold before the runtime sees it.
      const idle: Connection[] = []
      for (let group = 0; group < 6; group++) {
        const opened = Array.from({ length: 50 }, () => owner.open(runtime.socket))
        await Promise.all(opened.map(c => c.until(() => c.openedAt > 0)))
        idle.push(...opened)
      }
      await Promise.all(idle.map(c => c.over(30_000)))
      const codes = idle.map(c => c.frames[0]?.code)
      t.equal(codes.filter(code => code === "EAGAIN").length, 300 - 256)
      t.equal(codes.filter(code => code === "ETIMEDOUT").length, 256)
      for (const c of idle) checkRefusal(t, c, String(c.frames[0]?.code))
      t.match((await owner.ask(runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
      for (const c of idle) c.destroy()
      await until("the descriptors are closed", () => fdCount() <= fds + 2)
    },
  )

  // Enough stored text that no socket buffer holds it, and a client that takes none of it, for the last test.
  const text = Array.from({ length: 24 }, () => "y".repeat(10_000))
  for (let i = 0; i < 12; i++) await stage.send([{ say: text }], { session: "long" }).over()
  // Sockets of the runs before are closed first, so that the one that stays is that client's.
  const lone = sockets()
  const client = owner.open(runtime.socket).pause().send({ op: "resume", session: "long" })
  const begunAt = Date.now()
  await client.until(() => client.openedAt > 0)
  await sleepMs(7_000)
  const links = [...sockets()].filter(link => !lone.has(link))
  t.equal(links.length, 1, "one connection stays open")
  const deaf = { client, begun: begunAt, link: links[0]! }

  t.test(
    "session.8 (ten clients, ten sessions) ten clients of ctx on ten sessions each get their own answer",
    async t => {
      const names = Array.from({ length: 10 }, (_, i) => `s-${i}`)
      const sends = names.map(name => {
        const text = scriptOf({ say: `one of ${name}\n` }, call("fs.list", { path: "." }), { say: `two of ${name}` })
        return stack.runCtx(["agent", "send", "coder", "--session", name, text], { timeoutMs: 90_000 })
      })
      for (const [i, ended] of (await Promise.all(sends)).entries())
        t.same([ended.code, ended.stdout], [0, `one of ${names[i]}\ntwo of ${names[i]}\n`], ended.stderr)
      for (const name of names) {
        await checkProven(t, stage, name)
        t.same(
          rowsOf(stage, name).map(r => r.role),
          ["user", "tool", "assistant"],
        )
      }
    },
  )

  t.test(
    "session.8 (ten clients of ctx, one session) with --wait ten clients of one session are ten whole runs",
    async t => {
      const sends = Array.from({ length: 10 }, (_, i) =>
        stack.runCtx(
          [
            "agent",
            "send",
            "coder",
            "--session",
            "one",
            "--wait",
            "--id",
            `w-${i}`,
            scriptOf(call("fs.list", { path: "." }), { say: `end ${i}` }),
          ],
          { timeoutMs: 90_000 },
        ),
      )
      for (const [i, ended] of (await Promise.all(sends)).entries())
        t.same([ended.code, ended.stdout], [0, `end ${i}\n`], ended.stderr)
      await checkProven(t, stage, "one")
      const runs = eventsOf(stage, "one")
        .map(e => e.run)
        .filter(run => run !== undefined)
      t.equal(runs.filter((run, i) => run !== runs[i - 1]).length, 10, "no two are interleaved")
      t.equal(new Set(rowsOf(stage, "one").map(r => r.client_id)).size - 1, 10)
    },
  )

  t.test("256 idle connections of another uid keep no place from the owner", async t => {
    const other = await Peer.start(12_002, stack.prefix)
    t.teardown(() => other.stop())
    const idle = Array.from({ length: 256 }, () => other.open(runtime.socket))
    const begun = Date.now()
    await until("a pong", () => idle.some(c => c.lines.length > 0))
    t.match((await owner.ask(runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
    t.ok(Date.now() - begun < 4_000)
    await Promise.all(idle.map(c => c.over(30_000)))
  })

  t.test("a client that does not read costs no memory, is let go, and its run is stored", async t => {
    const texts = Array.from({ length: 20 }, (_, i) => `${i}${"x".repeat(10_000)}\n`)
    // 20 runs of 200 KB deltas for a client that takes nothing, then a resume of all, 200 times.
    const run = await stage.send([{ say: texts }], { session: "big" }).over()
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
    const sizeBytes = readFileSync(`${stage.sessionDir}/big/events.jsonl`).length
    t.ok(sizeBytes > 200_000)
    const before = rssBytes()
    const unread = Array.from({ length: 200 }, () =>
      owner.open(runtime.socket).pause().send({ op: "resume", session: "big" }),
    )
    const sending = Array.from({ length: 10 }, (_, i) => stage.send([{ say: texts }], { session: `deaf-${i}` }).pause())
    const begun = Date.now()
    let peak = 0
    while (Date.now() - begun < 3_000) {
      peak = Math.max(peak, rssBytes())
      await sleepMs(50)
    }
    t.ok(peak - before < 160 * MIB, `grew by ${((peak - before) / MIB).toFixed(0)} MiB`)
    t.match((await owner.ask(runtime.socket, { op: "ping" })).frames, [{ type: "pong" }], "others are served")
    for (const c of [...unread, ...sending]) c.destroy()
    for (let i = 0; i < 10; i++) {
      await until(`deaf-${i}`, () => eventsOf(stage, `deaf-${i}`).at(-1)?.type === "done")
      await checkProven(t, stage, `deaf-${i}`)
      t.match(eventsOf(stage, `deaf-${i}`).at(-1), { status: "ok" })
    }
  })

  t.test(
    "session-abi 3.6: a client that takes no byte for 30 s is disconnected, and its place is free again",
    async t => {
      await until("the end of the deaf connection", () => !sockets().has(deaf.link), 70_000)
      const tookMs = Date.now() - deaf.begun
      t.ok(tookMs > 29_000 && tookMs < 75_000, `after ${tookMs} ms`)
      deaf.client.destroy()
      t.match((await owner.ask(runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
    },
  )
})
