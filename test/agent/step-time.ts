import { spawn } from "node:child_process"
import { once } from "node:events"
import t from "tap"
import { Program, type StepProcess } from "../../src/agent/program.js"

const RUN = "ctx-7f3a90c1d2e4455b8a6c0f1e2d3b4a59"

/** A plain process in place of a sandboxed one: what is tested here is the clock. */
function start(script: string): StepProcess {
  const child = spawn("/bin/sh", ["-c", script], { stdio: ["pipe", "pipe", "pipe"] })
  const exited = once(child, "exit").then(([code, signal]) => ({ code, signal }))
  const end = async () => {
    child.kill("SIGKILL")
    await exited
  }
  return { stdin: child.stdin, stdout: child.stdout, stderr: child.stderr, exited, end }
}

t.test("a step that takes longer than its time is ETIMEDOUT, and its process is gone at the end", async t => {
  let process: StepProcess | undefined
  const program = new Program(RUN, async () => (process = start("exec sleep 38.7")), 300)
  const line = Buffer.from("{}\n")
  const before = Date.now()
  await t.rejects(
    program.step(0, line, async () => {}),
    { code: "ETIMEDOUT" },
  )
  t.ok(Date.now() - before < 1_500)
  await program.end()
  t.match(await process!.exited, { signal: "SIGKILL" })
})

t.test("output that closes before the process ends does not outwit the clock", async t => {
  const program = new Program(RUN, async () => start("exec >&-; exec sleep 38.7"), 300)
  await t.rejects(
    program.step(0, Buffer.from("{}\n"), async () => {}),
    { code: "ETIMEDOUT" },
  )
  await program.end()
})

t.test("a program that floods stderr waits in its write, costs no core, and is ended like any other", async t => {
  let process: StepProcess | undefined
  const program = new Program(RUN, async () => (process = start("echo first >&2; exec yes >&2")), 3_000)
  const before = globalThis.process.cpuUsage()
  await t.rejects(
    program.step(0, Buffer.from("{}\n"), async () => {}),
    { code: "ETIMEDOUT", message: "step 0 took more than 3 s; nothing is read behind 65536 bytes of its stderr" },
  )
  const used = globalThis.process.cpuUsage(before)
  t.ok(used.user + used.system < 1_000_000, `${(used.user + used.system) / 1000} ms of 3 s`)
  await program.end()
  t.match(await process!.exited, { signal: /^SIG(PIPE|KILL)$/ })
  t.ok(process!.stderr.destroyed, "its descriptor is given back")
})

t.test("more stderr than is kept does not delay what is said of an exit", async t => {
  const program = new Program(RUN, async () => start("echo first >&2; head -c 100000 /dev/zero >&2; exit 3"), 5_000)
  const before = Date.now()
  await t.rejects(
    program.step(0, Buffer.from("{}\n"), async () => {}),
    { code: "EIO", message: "first" },
  )
  t.ok(Date.now() - before < 200, `${Date.now() - before} ms`)
  await program.end()
})
