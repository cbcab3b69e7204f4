// needs: root fuse bwrap strace
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { verifyNamed } from "../../src/session/reader.js"
import { call, makeStage, readRows, type Stage } from "../fixture/agent/stage.js"
import { makeDir } from "../harness/product.js"
import { cleanEnv } from "../harness/program.js"

const CALLS = "fsync,fdatasync,write,writev,pwrite64,sendto,sendmsg,rename,renameat,renameat2,openat,execve"

/** System calls of a process and its children, one a line, in the order in which they ended. */
async function trace(pid: number, use: () => Promise<unknown>): Promise<string[]> {
  const file = join(makeDir("cortexfs-trace"), "trace")
  const strace: ChildProcess = spawn(
    "strace",
    ["-f", "-y", "-qq", "-s", "400", "-e", `trace=${CALLS}`, "-o", file, "-p", String(pid)],
    {
      env: cleanEnv(),
      stdio: ["ignore", "inherit", "pipe"],
    },
  )
  // It says nothing when it has attached; every thread has then a tracer.
  for (let waitedMs = 0; ; waitedMs += 20) {
    const tids = readdirSync(`/proc/${pid}/task`)
    if (tids.every(tid => !/^TracerPid:\t0$/m.test(readFileSync(`/proc/${pid}/task/${tid}/status`, "utf8")))) break
    if (waitedMs > 5_000) throw new Error("strace did not attach")
    await new Promise(resolve => setTimeout(resolve, 20))
  }
  await use()
  strace.kill("SIGINT")
  await once(strace, "exit")
  const open = new Map<string, string>()
  const lines: string[] = []
  for (const line of readFileSync(file, "utf8").split("\n")) {
    const [, tid, text] = /^([0-9]+)\s+(.*)$/.exec(line) ?? []
    if (tid === undefined || text === undefined) continue
    if (text.endsWith("<unfinished ...>")) open.set(tid, text.slice(0, -"<unfinished ...>".length))
    else if (text.startsWith("<... ")) lines.push((open.get(tid) ?? "") + text.replace(/^<\.\.\. \w+ resumed>/, ""))
    else lines.push(text)
  }
  return lines
}

t.test("what is durable before what is told", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  const pid = stage.runtime.child.pid!
  stage.tool("mark", "#!/bin/sh\necho marked\n")
  await stage.send([{ say: "first" }], { session: "old" }).over()

  t.test(
    "session.5 user row, start and state are durable in this order before start is sent, a call before its exec, done before done",
    async t => {
      const lines = await trace(pid, () =>
        stage.send([call("mark", { args: ["x"] }), { say: "end" }], { session: "old" }).over(),
      )
      const at = (what: RegExp, from = 0) => {
        const i = lines.findIndex((line, k) => k >= from && what.test(line))
        t.not(i, -1, `${what} is in the trace`)
        return i
      }
      const written = at(/^p?write.*messages\.jsonl.*\\"role\\":\\"user\\"/)
      const userRow = at(/^fdatasync\(\d+<[^>]*messages\.jsonl>/, written)
      const startWritten = at(/^p?write.*events\.jsonl.*\\"type\\":\\"start\\"/, userRow)
      const startRow = at(/^fdatasync\(\d+<[^>]*events\.jsonl>/, startWritten)
      const state = at(/^rename.*"state"/, startRow)
      const startSent = at(/^(write|writev|sendto|sendmsg)\(\d+<(socket|UNIX)[^>]*>.*\\"type\\":\\"start\\"/, state)
      t.ok(userRow < startRow && startRow < state && state < startSent)
      t.notOk(lines.slice(0, state).some(line => /<(socket|UNIX)[^>]*>.*\\"type\\":\\"start\\"/.test(line)))

      const callWritten = at(/^p?write.*events\.jsonl.*\\"type\\":\\"tool_call\\"/)
      const callRow = at(/^fdatasync\(\d+<[^>]*events\.jsonl>/, callWritten)
      const execs = lines.flatMap((line, i) => (/^execve\("\/usr\/bin\/bwrap"/.test(line) ? [i] : []))
      t.equal(execs.length, 2, "one sandbox for the program, one for the tool")
      t.ok(execs[0]! < callWritten && callRow < execs[1]!, "the call is durable before the tool's sandbox is made")

      const doneWritten = at(/^p?write.*events\.jsonl.*\\"type\\":\\"done\\"/)
      const doneRow = at(/^fdatasync\(\d+<[^>]*events\.jsonl>/, doneWritten)
      const doneSent = at(/^(write|writev|sendto|sendmsg)\(\d+<(socket|UNIX)[^>]*>.*\\"type\\":\\"done\\"/)
      t.ok(doneRow < doneSent)
    },
  )

  t.test(
    "session.24 a send in an indexed session makes at most 8 syncs before done, none below index, 10,000 deltas no more",
    async t => {
      stage.set("model", "debug/echo\n")
      await stage.send("warm", { session: "old" }).over()
      const count = async (use: () => Promise<unknown>) => {
        const lines = await trace(pid, use)
        const end = lines.findIndex(line => /<(socket|UNIX)[^>]*>.*\\"type\\":\\"done\\"/.test(line))
        t.not(end, -1)
        const before = lines.slice(0, end)
        t.notOk(
          before.some(line => /^(openat|rename|p?write).*\/index\/.*(O_CREAT|O_WRONLY|O_RDWR)/.test(line)),
          "no file below index/",
        )
        return before.filter(line => /^f(data)?sync\(/.test(line)).length
      }
      const one = await count(() => stage.send("again", { session: "old" }).over())
      t.ok(one > 0 && one <= 8, `${one} syncs`)
      stage.set("model", "debug/script\n")
      await stage.send([{ say: "x" }], { session: "old" }).over()
      const many = await count(async () => {
        const run = await stage
          .send([{ say: Array.from({ length: 10_000 }, () => "word ") }], { session: "old" })
          .over(60_000)
        t.equal(run.frames.filter(f => f.type === "delta").length, 10_000)
      })
      t.ok(many <= one, `${many} syncs`)
    },
  )

  t.test(
    "session.29 (one runtime) two sends that create one session make one directory and one session_created",
    async t => {
      const runs = [0, 1].map(i => stage.send([{ say: `r${i}` }], { session: "made", wait: true }))
      await Promise.all(runs.map(run => run.over()))
      for (const run of runs) t.match(run.frames.at(-1), { type: "done", status: "ok" })
      const events = readRows(join(stage.sessionDir, "made/events.jsonl"))
      t.equal(events.filter(row => row.type === "session_created").length, 1)
      t.notOk(readdirSync(stage.sessionDir).some(name => name.startsWith(".made")))
    },
  )

  t.test("session.3 1,000 sends give 1,000 distinct run ids of the right form", async t => {
    stage.program('#!/bin/sh\nread -r line\nprintf \'{"type":"delta","run":"%s","text":"x"}\\n\' "$CTX_RUN_ID"\n')
    const ids = new Set<unknown>()
    const send = async (lane: number) => {
      for (let i = 0; i < 125; i++) {
        const run = await stage.send("x", { session: `lane-${lane}`, scope: lane % 2 ? "temp" : "private" }).over()
        t.match(run.frames.at(-1), { type: "done", status: "ok" })
        ids.add(run.frames[0]!.run)
      }
    }
    await Promise.all(Array.from({ length: 8 }, (_, lane) => send(lane)))
    t.equal(ids.size, 1_000)
    t.ok([...ids].every(id => /^ctx-[0-9a-f]{32}$/.test(id as string)))
  })
})

t.test(
  "session.6 (sync points), session.7 killed at every sync of a send, the next start leaves a proven history",
  async t => {
    const stage: Stage = await makeStage()
    t.teardown(() => stage.stop())
    stage.tool("count", "#!/bin/sh\nprintf x >> /workspace/count\n")
    const steps = [call("count", { args: ["x"] }), { say: "end" }]
    let kills = 0
    for (let n = 1; n < 60; n++) {
      const session = `k-${n}`
      await stage.restart({ CORTEXFS_FAULT: `session.sync:${n}:kill` })
      rmSync(join(stage.workspace, "count"), { force: true })
      const run = await stage.send(steps, { session, id: `id-${n}` }).over()
      const told = run.lines.map(l => l.text).filter(text => text.startsWith('{"seq"'))
      const counted = existsSync(join(stage.workspace, "count"))
        ? readFileSync(join(stage.workspace, "count"), "utf8")
        : ""
      if (run.frames.at(-1)?.type === "done") break
      kills++
      await stage.restart()
      const dir = join(stage.sessionDir, session)
      if (!existsSync(dir)) {
        t.strictSame(told, [], `sync ${n}: nothing was told of a session that is not there`)
        continue
      }
      // A session whose state is not active yet is recovered when it is opened first.
      await stage.owner.ask(stage.runtime.socket, { op: "resume", session })
      for (const proof of await verifyNamed(stage.sessionDir, session))
        t.notOk(proof.damage, `sync ${n}: ${proof.file}`)
      const stored = readFileSync(join(dir, "events.jsonl"), "utf8").split("\n")
      for (const line of told) t.ok(stored.includes(line), `sync ${n}: what was told is there`)
      const rows = readRows(join(dir, "messages.jsonl"))
      if (rows.length === 0) continue
      const events = readRows(join(dir, "events.jsonl"))
      const start = events.find(e => e.type === "start")!
      for (const key of ["run", "client_id", "scope", "cwd"])
        t.equal(start[key], rows[0]![key], `sync ${n}: start has the row's ${key}`)
      const done = events.filter(e => e.type === "done")
      t.equal(done.length, 1, `sync ${n}: one done`)
      if (done[0]!.status === "error") {
        t.match(events.at(-2), { type: "error", code: "EINTR" })
        t.equal(readFileSync(join(dir, "state"), "utf8"), "error\n")
      }
      const now = existsSync(join(stage.workspace, "count")) ? readFileSync(join(stage.workspace, "count"), "utf8") : ""
      t.equal(now, counted, `sync ${n}: the tool was not run again`)
      const replayed = await stage.send(steps, { session, id: `id-${n}` }).over()
      t.strictSame(
        replayed.lines.map(l => l.text),
        [stored.find(line => line.includes('"type":"done"'))],
        `sync ${n}: replay gives its done`,
      )
      await stage.restart()
      t.strictSame(
        readFileSync(join(dir, "events.jsonl"), "utf8").split("\n"),
        stored,
        `sync ${n}: a second start adds nothing`,
      )
    }
    t.ok(kills >= 5, `${kills} sync points`)
  },
)
