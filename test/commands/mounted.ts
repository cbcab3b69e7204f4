// needs: root fuse bwrap
import { readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { command, run } from "../fixture/commands/cli.js"
import { ctxIn, script, sessionFile, startCoder, startCtx } from "../fixture/commands/stack.js"
import { OTHER, OWNER } from "../harness/product.js"
import { runProgram } from "../harness/program.js"

const { stack, runtime } = await startCoder()
t.teardown(() => stack.stop())
const SEVEN = ["status", "bin", "model", "agent", "tool", "home", "shared"]

t.test("ctx.6 status equals the file but for the counters, and without a mount it is EHOSTDOWN, 69", async t => {
  const still = (text: string) => text.replace(/^(requests|uptime_s)=\d+$/gm, "$1=N")
  const shown = await ctxIn(stack, ["status"])
  t.equal(shown.code, 0, shown.stderr)
  t.equal(still(shown.stdout), still(readFileSync(join(stack.ctx, "status"), "utf8")))
  const away = await run(command("status"), { CTX_ROOT: join(stack.dir, "run") })
  t.equal(away.code, 69)
  t.match(away.stderr, /^ctx: EHOSTDOWN: .* is not mounted: [^\n]+\n$/)
})

t.test(
  "ctx.7 ls gives the seven names in order, rows with --json, 13 for another's home, one line for a name with LF",
  async t => {
    t.equal((await ctxIn(stack, ["ls"])).stdout, SEVEN.map(name => `${name}\n`).join(""))
    t.equal(JSON.parse((await ctxIn(stack, ["ls", "--json"])).stdout).length, 7)
    await ctxIn(stack, ["ls", `home/${OWNER}`])
    const denied = await ctxIn(stack, ["ls", `home/${OWNER}`], { uid: OTHER })
    t.equal(denied.code, 13)
    t.match(denied.stderr, /^ctx: EACCES: [^\n]+: [^\n]+\n$/)
    const dir = `home/${OWNER}/agent/coder/data`
    await run(["setpriv", `--reuid=${OWNER}`, "--clear-groups", "mkdir", "-p", join(stack.ctx, dir)])
    await run(["setpriv", `--reuid=${OWNER}`, "--clear-groups", "touch", join(stack.ctx, dir, "a\nb")])
    t.equal((await ctxIn(stack, ["ls", dir])).stdout, "a\\nb\n")
  },
)

t.test("ctx.9 (through a mount) which gives the tool's path and the target of an alias", async t => {
  t.equal((await ctxIn(stack, ["which", "tool", "fs.read"])).stdout, `${stack.ctx}/tool/fs.read\n`)
  const main = JSON.parse((await ctxIn(stack, ["which", "model", "main", "--json"])).stdout)
  t.match(main.target, /\/model\/debug\/guide$/)
})

t.test(
  "ctx.22 agent status prints thirteen lines in order, and dead for a ready agent whose process is gone",
  async t => {
    const keys = ["model", "life", "role", "parent", "children", "pid", "ppid", "uid", "gid", "groups", "root", "cwd"]
    const shown = await ctxIn(stack, ["agent", "status", "coder"])
    t.equal(shown.code, 0, shown.stderr)
    const lines = shown.stdout.split("\n")
    t.equal(lines.length, 14)
    t.match(lines[0], /^(start|ready|busy|idle|stopping|dead)$/)
    t.same(
      lines.slice(1, 13).map(line => line.split("=")[0]),
      keys,
    )
    const gone = (await runProgram(["sh", "-c", "echo $$"])).stdout.trim()
    const controls = join(stack.storage, "current/agent/reviewer.d")
    writeFileSync(join(controls, "status"), "ready\n")
    for (const [pid, word] of [
      [String(process.pid), "ready"],
      [gone, "dead"],
    ] as const) {
      writeFileSync(join(controls, "pid"), `${pid}\n`)
      // A control may be up to a second old in a view.
      await new Promise(resolve => setTimeout(resolve, 1100))
      const reviewer = await ctxIn(stack, ["agent", "status", "reviewer"])
      t.equal(reviewer.stdout.split("\n")[0], word)
      const json = JSON.parse((await ctxIn(stack, ["agent", "status", "reviewer", "--json"])).stdout)
      t.same(Object.keys(json), ["agent", "status", ...keys])
      t.same([json.agent, json.status, json.pid, json.groups], ["reviewer", word, Number(pid), []])
    }
  },
)

t.test("ctx.31 without --session history shows the current session, with the index removed default", async t => {
  for (const session of ["default", "b"]) {
    const sent = await ctxIn(stack, [
      "agent",
      "send",
      "coder",
      "--session",
      session,
      script({ say: `from ${session}` }),
    ])
    t.equal(sent.code, 0, sent.stderr)
  }
  t.equal(sessionFile(stack, "index", "current"), "b\n")
  t.match((await ctxIn(stack, ["agent", "history", "coder"])).stdout, "\n  from b\n")
  rmSync(join(stack.dataRoot, `home/${OWNER}/agent/coder/session/index/current`))
  t.match((await ctxIn(stack, ["agent", "history", "coder"])).stdout, "\n  from default\n")
})

t.test("ping answers pong, and an agent that is not started is ENOENT", async t => {
  const pong = await ctxIn(stack, ["ping", "agent/coder"])
  t.same([pong.code, pong.stdout, pong.stderr], [0, "pong\n", ""])
  t.same(JSON.parse((await ctxIn(stack, ["ping", "agent/coder", "--json"])).stdout), { type: "pong" })
  const reviewer = await ctxIn(stack, ["ping", "agent/reviewer"])
  t.equal(reviewer.code, 1)
  t.match(reviewer.stderr, "ctx: ENOENT: agent/reviewer is not started: ")
})

t.test("ctx.17 a ping through connect is one pong line", async t => {
  const reply = await ctxIn(stack, ["connect", "agent/coder"], { input: '{"op":"ping"}\n' })
  t.same([reply.code, reply.stdout, reply.stderr], [0, '{"type":"pong"}\n', ""])
  const refused = await ctxIn(stack, ["connect", "agent/coder"], { input: '{"op":"dance"}\n' })
  t.equal(refused.code, 2)
  t.equal(JSON.parse(refused.stdout).code, "EINVAL")
  t.match(refused.stderr, /^ctx: EINVAL: [^\n]+: [^\n]+\n$/)
})

t.test(
  "cancel ends the active run of a session, by its id or a beginning of it, and says how a finished one ended",
  async t => {
    const slow = script({ say: ["begun\n"] }, { sleep_ms: 20_000 })
    const none = await ctxIn(stack, ["agent", "cancel", "coder", "--session", "stop"])
    t.equal(none.code, 1)
    for (const size of [0, 14, 36]) {
      const running = startCtx(stack, ["agent", "send", "coder", "--session", "stop", slow])
      await running.until("begun")
      const start = sessionFile(stack, "stop", "events.jsonl")
        .split("\n")
        .filter(line => line.includes('"type":"start"'))
      const { run: id } = JSON.parse(start.at(-1)!)
      const words = size === 0 ? ["--session", "stop"] : [id.slice(0, size)]
      const cancelled = await ctxIn(stack, ["agent", "cancel", "coder", ...words])
      t.same([cancelled.code, cancelled.stdout, cancelled.stderr], [0, `cancelled ${id}\n`, ""])
      t.equal((await running.ended).code, 130)
      const again = await ctxIn(stack, ["agent", "cancel", "coder", id])
      t.same([again.code, again.stdout], [0, `cancelled ${id}\n`])
    }
    const unknown = await ctxIn(stack, ["agent", "cancel", "coder", `ctx-${"0".repeat(32)}`])
    t.equal(unknown.code, 1)
  },
)

t.test(
  "resume prints the stored texts, the stored lines with --raw, follows a run to its end, and cancels it on SIGINT",
  async t => {
    const text = script({ say: "kept" })
    await ctxIn(stack, ["agent", "send", "coder", "--session", "look", text])
    t.equal((await ctxIn(stack, ["agent", "resume", "coder", "--session", "look"])).stdout, "kept\n")
    const raw = await ctxIn(stack, ["agent", "resume", "coder", "--session", "look", "--raw"])
    t.equal(raw.stdout, sessionFile(stack, "look", "events.jsonl"))
    const slow = script({ say: ["begun\n"] }, { sleep_ms: 1000 }, { say: "more" })
    const running = startCtx(stack, ["agent", "send", "coder", "--session", "look", slow])
    await running.until("begun")
    const followed = await ctxIn(stack, ["agent", "resume", "coder", "--session", "look", "--follow", "--after", "2"])
    t.same([followed.code, followed.stdout], [0, "kept\nbegun\nmore\n"])
    t.equal((await running.ended).code, 0)

    const endless = script({ say: ["begun\n"] }, { sleep_ms: 20_000 })
    const sender = startCtx(stack, ["agent", "send", "coder", "--session", "look", endless])
    await sender.until("begun")
    const follower = startCtx(stack, ["agent", "resume", "coder", "--session", "look", "--follow", "--raw"])
    await follower.until('"client_id"')
    await new Promise(resolve => setTimeout(resolve, 300))
    follower.child.kill("SIGINT")
    t.equal((await follower.ended).code, 130)
    t.equal((await sender.ended).code, 130)
    t.equal(sessionFile(stack, "look", "state"), "idle\n")
  },
)

t.test("ctx in the bin directory of the tree is this ctx", async t => {
  const ended = await run([join(stack.ctx, "bin/ctx"), "abi"])
  t.same([ended.code, ended.stdout, ended.stderr], [0, (await run(command("abi"))).stdout, ""])
})

t.test("a socket path of more than 107 bytes is reached through its directory", async t => {
  const root = join(stack.dir, "l".repeat(120))
  symlinkSync(stack.ctx, root)
  const pong = await ctxIn(stack, ["ping", "agent/coder"], { root })
  t.same([pong.code, pong.stdout, pong.stderr], [0, "pong\n", ""])
  const reviewer = await ctxIn(stack, ["ping", "agent/reviewer"], { root })
  t.match(reviewer.stderr, "ctx: ENOENT: agent/reviewer is not started: ")
})

// The last one: it ends the runtime.
t.test("a declared socket where nobody listens is ECONNREFUSED, 69, with the unit to start", async t => {
  await runtime.stop("SIGKILL")
  for (const args of [
    ["ping", "agent/coder"],
    ["agent", "send", "coder", "x"],
    ["agent", "resume", "coder"],
  ]) {
    const ended = await ctxIn(stack, args)
    t.equal(ended.code, 69, args.join(" "))
    t.equal(
      ended.stderr,
      "ctx: ECONNREFUSED: agent/coder: nobody listens: systemctl start cortexfs-agent@coder.socket\n",
    )
  }
})
