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
