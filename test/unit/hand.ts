// needs: root fuse bwrap
// `ctx agent stop`, `ps` and `children` where a person starts the programs himself, without a service manager.
import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import t, { type Test } from "tap"
import { currentGeneration, makeStack, OTHER, OWNER, type Stack } from "../harness/product.js"
import { cleanEnv, startProgram, stopProgram } from "../harness/program.js"

const FRESH_MS = 1_100

async function makeAgents(t: Test): Promise<{ stack: Stack; dir: (agent?: string) => string }> {
  const stack = await makeStack()
  t.teardown(() => stack.stop())
  await stack.startHost()
  const generation = currentGeneration(stack)
  return { stack, dir: (agent = "coder") => join(generation, `agent/${agent}.d`) }
}

/** Starts the runtime of an agent; resolves when it serves, which is after it listens. */
async function startAgent(stack: Stack, env: Record<string, string> = {}) {
  await stack.startView("coder")
  const runtime = await stack.startRuntime("coder", { env })
  while ((await stack.runCtx(["ping", "agent/coder"])).code !== 0) await sleep(10)
  return runtime
}

t.test(
  "a runtime started by hand has a receipt without a unit, also when the caller's unit handed its invocation on",
  async t => {
    const { stack, dir } = await makeAgents(t)
    const runtime = await startAgent(stack, { INVOCATION_ID: "0".repeat(32) })
    const { runtime_receipt: receipt } = JSON.parse(readFileSync(join(dir(), "meta.json"), "utf8"))
    t.strictSame(Object.keys(receipt), ["version", "control"])
    t.match(await stack.runCtx(["agent", "status", "coder"]), { code: 0, stdout: /^ready\n/ })

    const stopped = await stack.runCtx(["agent", "stop", "coder"])
    t.match(stopped, { code: 0, stdout: "stopped agent/coder\n", stderr: "" })
    t.equal(runtime.child.exitCode ?? (await stopProgram(runtime.child)), 0)
    t.equal(readFileSync(join(dir(), "status"), "utf8"), "dead\n")
    t.match(readFileSync(join(dir(), "log"), "utf8"), /^[^\n]*"type":"agent.stop"[^\n]*\n$/)
    t.match(await stack.runCtx(["agent", "stop", "coder"]), { code: 0, stdout: "dead agent/coder\n", stderr: "" })
  },
)

t.test("a reused pid, another directory or no receipt is EBUSY and nothing ends", async t => {
  const { stack, dir } = await makeAgents(t)
  const runtime = await startAgent(stack)
  const meta = readFileSync(join(dir(), "meta.json"), "utf8")
  const conflict = { code: 69, stdout: "", stderr: /^ctx: EBUSY: agent\/coder: / }
  const isUp = async () => {
    t.equal(runtime.child.exitCode, null)
    t.match(await stack.runCtx(["ping", "agent/coder"]), { code: 0 })
  }

  writeFileSync(join(dir(), "meta.json"), "{}\n")
  t.match(await stack.runCtx(["agent", "stop", "coder"]), conflict)
  await isUp()
  writeFileSync(join(dir(), "meta.json"), meta.replace(/"ino":\d+/, '"ino":1'))
  t.match(await stack.runCtx(["agent", "stop", "coder"]), conflict)
  await isUp()
  writeFileSync(join(dir(), "meta.json"), meta)

  const stranger = startProgram(["/usr/bin/sleep", "300"], { uid: OWNER, env: cleanEnv() })
  t.teardown(() => stopProgram(stranger, "SIGKILL"))
  const pid = readFileSync(join(dir(), "pid"), "utf8")
  writeFileSync(join(dir(), "pid"), `${stranger.pid}\n`)
  t.match(await stack.runCtx(["agent", "stop", "coder"]), { ...conflict, stderr: /another process than pid/ })
  await isUp()
  await stopProgram(runtime.child, "SIGKILL")
  writeFileSync(join(dir(), "pid"), `${stranger.pid}\n`)
  writeFileSync(join(dir(), "status"), "ready\n")
  t.match(await stack.runCtx(["agent", "stop", "coder"]), { ...conflict, stderr: /nobody listens/ })
  t.equal(stranger.exitCode, null)
  t.equal(stranger.signalCode, null)
  writeFileSync(join(dir(), "pid"), pid)
  t.match(await stack.runCtx(["agent", "stop", "coder"]), { code: 0, stdout: "dead agent/coder\n" })
})

t.test("only the owner and root stop an agent; within a run the tool does", async t => {
  const { stack } = await makeAgents(t)
  const runtime = await startAgent(stack)
  const denied = { code: 13, stdout: "", stderr: /^ctx: EACCES: / }
  t.match(await stack.runCtx(["agent", "stop", "coder"], { uid: OTHER }), denied)
  const run = { ...stack.env, CTX_AGENT: "coder", CTX_SESSION: "default", CTX_RUN_ID: "ctx-1" }
  t.match(await stack.runCtx(["agent", "stop", "coder"], { env: run }), denied)
  t.match(await stack.runCtx(["agent", "stop", "ghost"]), { code: 1, stderr: /^ctx: ENOENT: agent\/ghost: / })
  t.equal(runtime.child.exitCode, null)
  t.match(await stack.runCtx(["agent", "stop", "coder", "--json"], { uid: 0 }), { code: 0 })
})

t.test(
  "ctx.23 ps of parent, child and grandchild shows depths 0, 1 and 2; children has twelve columns on every line",
  async t => {
    const { stack, dir } = await makeAgents(t)
    writeFileSync(join(dir("reviewer"), "parent"), "agent:coder session:main run:r1\n")
    writeFileSync(join(dir("worker"), "parent"), "agent:reviewer\n")
    await sleep(FRESH_MS)
    const runtime = await startAgent(stack)
    const ps = await stack.runCtx(["agent", "ps"])
    t.match(ps, { code: 0, stderr: "" })
    t.equal(
      ps.stdout.replace(String(runtime.child.pid), "PID").replace(/\d+$/m, "PPID"),
      "coder\tready\tPID\tmain\towned\t-\tPPID\n  reviewer\tdead\t-\tmain\towned\t-\t-\n    worker\tdead\t-\thelper\towned\tworker\t-\n",
    )
    const json = JSON.parse((await stack.runCtx(["agent", "ps", "--json"])).stdout)
    t.match(json, [
      { depth: 0, name: "coder", pid: runtime.child.pid, ppid: process.pid },
      { depth: 1, name: "reviewer", pid: null, role: null },
      { depth: 2, name: "worker", role: "worker" },
    ])

    t.match(await stack.runCtx(["agent", "children", "coder"]), { code: 0, stdout: "", stderr: "" })
    const session = join(stack.dataRoot, `home/${OWNER}/agent/coder/session`)
    const channel = (at: string, child: string, files: Record<string, string>) => {
      const path = join(session, at, "context/child", child)
      mkdirSync(path, { recursive: true })
      for (const [file, text] of Object.entries(files)) writeFileSync(join(path, file), text)
    }
    channel("main", "reviewer", { agent: "reviewer\n", session: "s1\n", status: "active\n" })
    channel("main", "lint-9", { agent: "gone\n", session: "lint-9\n", status: "done\n" })
    channel("alt", "reviewer", { agent: "reviewer\n", session: "s2\n", status: "pending\n" })
    const { stdout, stderr } = await stack.runCtx(["agent", "children", "coder"], { uid: 0 })
    t.equal(stderr, "")
    t.strictSame(stdout.split("\n"), [
      "reviewer\tpending\treviewer\ts2\talt\t-\tmain\towned\t-\tdead\t-\t-",
      "lint-9\tdone\tgone\tlint-9\tmain\t-\t-\t-\t-\t-\t-\t-",
      "reviewer\tactive\treviewer\ts1\tmain\tr1\tmain\towned\t-\tdead\t-\t-",
      "",
    ])
    channel("alt", "bad", { agent: "../x\n", session: "s2\n", status: "pending\n" })
    const partly = await stack.runCtx(["agent", "children", "coder"], { uid: 0 })
    t.equal(partly.stdout, stdout)
    t.match(partly, { code: 2, stderr: /^ctx: EINVAL: [^\n]+\/bad\/agent is malformed: [^\n]+\n$/ })
  },
)

t.test("ps shows agents of a cycle and one with a malformed parent once each", async t => {
  const { stack, dir } = await makeAgents(t)
  writeFileSync(join(dir("coder"), "parent"), "agent:reviewer\n")
  writeFileSync(join(dir("reviewer"), "parent"), "agent:coder\n")
  writeFileSync(join(dir("worker"), "parent"), "someone\n")
  await sleep(FRESH_MS)
  const ps = await stack.runCtx(["agent", "ps"])
  t.equal(ps.stdout.replace(/\t.*/gm, ""), "worker\ncoder\n  reviewer\n")
  t.match(ps, { code: 2, stderr: /^ctx: EINVAL: agent\/worker.d\/parent [^\n]+\n$/ })
  t.match(await stack.runCtx(["agent", "stop", "coder"]), { code: 2, stdout: "", stderr: /^ctx: EINVAL: / })
})

t.test("a replaced control directory is EBUSY and the runtime goes on", async t => {
  const { stack, dir } = await makeAgents(t)
  const runtime = await startAgent(stack)
  renameSync(dir(), `${dir()}.old`)
  mkdirSync(dir())
  for (const file of ["owner", "life", "parent", "status", "pid", "meta.json", "abi", "label", "model"])
    writeFileSync(join(dir(), file), readFileSync(join(`${dir()}.old`, file)))
  await sleep(FRESH_MS)
  const ended = await stack.runCtx(["agent", "stop", "coder"])
  t.match(ended, { code: 69, stdout: "", stderr: /another control directory/ })
  t.equal(runtime.child.exitCode, null)
})
