// needs: root fuse
// Locks through the mounts: they are locks of the backing files, whoever asks and by whatever path.
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { statSync } from "node:fs"
import { join } from "node:path"
import { createInterface } from "node:readline"
import t from "tap"
import { asUser, runProgram, stopProgram } from "../harness/program.js"
import { buildClient } from "./fixture/client.js"
import { type Fixture, makeFixture, makeSession, OWNER, writeBehind } from "./fixture/stack.js"

t.setTimeout(200_000)

const client = buildClient("lock")
const KINDS = ["flock", "posix", "ofd"] as const
const rel = `home/${OWNER}/agent/coder/data/locked`

/** Runs the client to its end and gives its last line. */
async function run(...args: string[]): Promise<string> {
  const { stdout, stderr } = await runProgram([client, ...args], { uid: OWNER, timeoutMs: 20_000 })
  return stdout.trimEnd().split("\n").at(-1) || stderr
}

/** Starts a client that stays; `next` gives its lines one by one. */
function start(...args: string[]): { child: ChildProcess; next(): Promise<string> } {
  const [file, ...rest] = asUser([client, ...args], { uid: OWNER })
  const child = spawn(file!, rest, { stdio: ["pipe", "pipe", "inherit"] })
  const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]()
  return { child, next: async () => (await lines.next()).value ?? "ended" }
}

/** A client that holds the lock, once it has it. */
async function hold(...args: string[]) {
  const holder = start("hold", ...args)
  const seen = [await holder.next(), await holder.next()]
  if (seen[1] !== "ok") throw new Error(`${args.join(" ")}: ${seen}`)
  return holder
}

async function end(child: ChildProcess): Promise<void> {
  child.stdin!.end()
  if (child.exitCode === null && child.signalCode === null) await once(child, "exit")
}

async function withPlaces(use: (places: Record<string, string>, f: Fixture) => Promise<void>): Promise<void> {
  const f = await makeFixture()
  try {
    writeBehind(f.behind(rel), "x".repeat(100), OWNER)
    const view = await f.stack.startView("coder")
    await use({ host: f.at(rel), view: join(view.mountPoint, rel), backing: f.behind(rel) }, f)
  } finally {
    await f.stack.stop()
  }
}

t.test(
  "fuse.32 (exclusion) a lock excludes holders in the host view, in an agent view and on the backing path",
  async t => {
    await withPlaces(async places => {
      for (const kind of KINDS)
        for (const [at, path] of Object.entries(places)) {
          const holder = await hold(kind, "ex", path)
          for (const [from, other] of Object.entries(places)) {
            t.equal(await run("try", kind, "ex", other), "EAGAIN", `${kind} held in ${at}, exclusive from ${from}`)
            t.equal(await run("try", kind, "sh", other), "EAGAIN", `${kind} held in ${at}, shared from ${from}`)
          }
          await end(holder.child)
          const reader = await hold(kind, "sh", path)
          for (const [from, other] of Object.entries(places)) {
            t.equal(await run("try", kind, "sh", other), "ok", `${kind} shared in ${at} and ${from}`)
            t.equal(await run("try", kind, "ex", other), "EAGAIN", `${kind} shared in ${at}, exclusive from ${from}`)
          }
          await end(reader.child)
        }
      // POSIX and OFD locks are of one kind, flock of another.
      const holder = await hold("ofd", "ex", places.host!)
      t.equal(await run("try", "posix", "ex", places.view!), "EAGAIN")
      t.equal(await run("try", "flock", "ex", places.view!), "ok")
      await end(holder.child)
    })
  },
)

t.test("F_GETLK names a holder of the same mount, and 0 for one it does not know", async t => {
  await withPlaces(async places => {
    const holder = await hold("posix", "ex", places.host!)
    t.equal(await run("ask", "posix", "ex", places.host!), `write ${holder.child.pid}`)
    t.equal(await run("ask", "posix", "ex", places.view!), "write 0")
    await end(holder.child)
    t.equal(await run("ask", "posix", "ex", places.view!), "free")
    const behind = await hold("posix", "sh", places.backing!)
    t.equal(await run("ask", "posix", "ex", places.host!), `read ${behind.child.pid}`)
    await end(behind.child)
  })
})

t.test("fuse.32 (death, signals) a killed holder frees its lock at once, a signal ends a wait", async t => {
  await withPlaces(async ({ host, view }) => {
    for (const kind of KINDS) {
      const took: number[] = []
      // The machine may be busy with other work: the best of some rounds counts.
      for (let i = 0; i < 5; i++) {
        const holder = await hold(kind, "ex", host!)
        const waiter = start("hold", kind, "ex", view!)
        t.equal(await waiter.next(), "waiting")
        await new Promise(resolve => setTimeout(resolve, 50))
        const killed = Date.now()
        holder.child.kill("SIGKILL")
        t.equal(await waiter.next(), "ok")
        took.push(Date.now() - killed)
        await end(waiter.child)
      }
      t.ok(Math.min(...took) < 100, `${kind}: ${took} ms`)
      const holder = await hold(kind, "ex", view!)
      for (const place of [host!, view!]) {
        const waiter = start("hold", kind, "ex", place)
        t.equal(await waiter.next(), "waiting")
        await new Promise(resolve => setTimeout(resolve, 50))
        waiter.child.kill("SIGINT")
        t.equal(await waiter.next(), "EINTR")
        await end(waiter.child)
        const doomed = start("hold", kind, "ex", place)
        t.equal(await doomed.next(), "waiting")
        await stopProgram(doomed.child, "SIGKILL")
        t.equal(doomed.child.signalCode, "SIGKILL")
      }
      await end(holder.child)
      t.equal(await run("try", kind, "ex", host!), "ok", "no waiter has left a lock behind")
    }
  })
})

t.test("fuse.32 (ENOLCK) generated files and files of the session zone cannot be locked", async t => {
  await withPlaces(async (_, f) => {
    const session = `home/${OWNER}/agent/coder/session/live`
    makeSession(f.behind(session), OWNER)
    for (const path of ["status", `${session}/messages.jsonl`])
      for (const kind of KINDS) t.equal(await run("try", kind, "sh", f.at(path)), "ENOLCK", `${kind} ${path}`)
  })
})

t.test("fuse.32 (waits), fuse.7 the 65th wait is ENOLCK; 64 waits and 4 fsync loops delay no stat", async t => {
  await withPlaces(async ({ host, view }, f) => {
    const holder = await hold("flock", "ex", host!)
    const crowd = start("crowd", "64", host!)
    t.equal(await crowd.next(), "ready")
    t.equal(await run("try", "flock", "ex", host!), "EAGAIN", "who does not wait is not counted")
    const other = start("hold", "flock", "ex", view!)
    t.equal(await other.next(), "waiting", "another mount has waits of its own")
    const script = `
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    os.pwrite(fd, b"x" * 4096, 0)
    os.fsync(fd)
`
    const loops = [0, 1, 2, 3].map(i =>
      spawn("/usr/bin/python3", ["-c", script, f.at(`home/${OWNER}/agent/coder/data/sync${i}`)], { stdio: "ignore" }),
    )
    try {
      await new Promise(resolve => setTimeout(resolve, 300))
      const took: number[] = []
      for (let round = 0; round < 5; round++) {
        const started = Date.now()
        for (let i = 0; i < 1000; i++) statSync(f.at("status"))
        took.push(Date.now() - started)
      }
      t.ok(Math.min(...took) < 1000, `1,000 stat in ${took} ms`)
    } finally {
      for (const loop of loops) loop.kill("SIGKILL")
      await Promise.all(loops.map(loop => loop.exitCode ?? loop.signalCode ?? once(loop, "exit")))
    }
    await end(holder.child)
    await end(crowd.child)
    t.equal(await crowd.next(), "0 of 64 failed")
    t.equal(await other.next(), "ok")
    await end(other.child)
  })
})

t.test("a mount ends while clients wait for a lock", async t => {
  await withPlaces(async ({ host, backing }, f) => {
    const holder = await hold("ofd", "ex", backing!)
    const waiters = [start("hold", "flock", "ex", host!), start("hold", "ofd", "ex", host!)]
    t.same(await Promise.all(waiters.map(waiter => waiter.next())), ["waiting", "waiting"])
    t.equal(await waiters[0]!.next(), "ok")
    t.equal(await f.host.stop(), 0)
    t.match(await waiters[1]!.next(), /^(ENOTCONN|ECONNABORTED)$/)
    for (const one of [...waiters, holder]) await end(one.child)
  })
})
