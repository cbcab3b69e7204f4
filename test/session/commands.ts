// needs: root fuse
import { appendFileSync, readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import type { Place } from "../../src/session/place.js"
import { beginRun, emptyEnv, linesOf, Sessions, startOf, takePicture } from "../fixture/session/place.js"
import { makeStack, OWNER } from "../harness/product.js"
import { runProgram } from "../harness/program.js"

t.test("history, output, trajectory, session list and session verify through a mount", async t => {
  const stack = await makeStack()
  t.teardown(() => stack.stop())
  await stack.startHost()
  const dir = join(stack.dataRoot, `home/${OWNER}/agent/coder/session`)
  const place: Place = { dir, scope: "private", uid: OWNER, gid: OWNER }
  const sessions = new Sessions(place)
  t.teardown(() => sessions.close())
  const recorder = await beginRun(sessions, "build-fix", startOf(1))
  await recorder.event({ type: "tool_call", id: "c-1", name: "fs.read", arguments: { path: "Makefile" } })
  await recorder.toolResult({ name: "fs.read", callId: "c-1", content: "all: app\n\tmake\u0007\n", status: "ok" })
  await recorder.settle({ status: "ok", parts: [{ type: "text", text: "no rule\nfor app" }] })
  sessions.find("build-fix")!.unlockRun()
  const rows = linesOf(join(dir, "build-fix/messages.jsonl"))
  const before = takePicture(dir)
  const ctx = [...emptyEnv({ CTX_ROOT: stack.ctx }), join(stack.prefix, "bin/ctx")]
  const runCtx = (args: string[]) => runProgram([...ctx, ...args], { uid: OWNER })

  await t.test("history prints time, role, run and indented escaped text; --tail, --raw and --json", async t => {
    const plain = await runCtx(["agent", "history", "coder"])
    const [user, tool, assistant] = rows.map(row => JSON.parse(row))
    t.equal(
      plain.stdout,
      `${user.ts}\tuser\t${user.run}\n  input 1\n${tool.ts}\ttool:fs.read\t${user.run}\n  all: app\n  \\tmake\\x07\n` +
        `${assistant.ts}\tassistant\t${user.run}\n  no rule\n  for app\n`,
    )
    const raw = await runCtx(["agent", "history", "coder", "--raw"])
    t.equal(raw.stdout, readFileSync(join(dir, "build-fix/messages.jsonl"), "utf8"))
    t.equal((await runCtx(["history", "coder", "--raw", "--tail", "1"])).stdout, `${rows[2]}\n`)
    const json = await runCtx(["agent", "history", "coder", "--json"])
    t.strictSame(
      JSON.parse(json.stdout),
      rows.map(row => JSON.parse(row)),
    )
  })

  await t.test("output prints latest.md", async t => {
    t.equal((await runCtx(["agent", "output", "coder"])).stdout, "no rule\nfor app\n")
    const json = await runCtx(["agent", "output", "coder", "--json"])
    t.strictSame(JSON.parse(json.stdout), { session: "build-fix", text: "no rule\nfor app\n" })
    const missing = await runCtx(["agent", "output", "coder", "--session", "none"])
    t.equal(missing.code, 1)
    t.match(missing.stderr, /^ctx: ENOENT: session none does not exist: .+\n$/)
  })

  await t.test("trajectory prints one document", async t => {
    const { stdout, code } = await runCtx(["agent", "trajectory", "coder"])
    t.equal(code, 0)
    const document = JSON.parse(stdout)
    t.equal(document.trajectory_id, "coder/build-fix")
    t.strictSame(document.steps[1].observation.results, [
      { source_call_id: "c-1", content: "all: app\n\tmake\u0007\n" },
    ])
    t.equal((await runCtx(["agent", "trajectory", "coder", "--json"])).stdout, stdout)
  })

  await t.test("session.18 (empty session) trajectory of an empty session is ENODATA with empty stdout", async t => {
    ;(await sessions.create("blank", { cwd: "/workspace" })).close()
    const ended = await runCtx(["agent", "trajectory", "coder", "--session", "blank"])
    t.equal(ended.code, 1)
    t.equal(ended.stdout, "")
    t.match(ended.stderr, /^ctx: ENODATA: /)
  })

  await t.test("session list prints the table of session-services 2; nothing of it writes", async t => {
    const listed = await runCtx(["agent", "session", "list", "coder"])
    t.match(listed.stdout, /^\*\tbuild-fix\tother\tdone\t\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.000Z\t\n$/)
    const json = await runCtx(["agent", "session", "list", "coder", "--json"])
    const [row] = JSON.parse(json.stdout)
    t.strictSame(Object.keys(row), ["current", "session", "group", "state", "updated", "title"])
    t.equal((await runCtx(["agent", "session", "list", "coder", "--origin", "chat"])).stdout, "")
    t.equal((await runCtx(["agent", "session", "list", "coder", "--origin", "mail"])).code, 2)
    const { blank: _, ...now } = takePicture(dir)
    for (const [path, facts] of Object.entries(before))
      if (path.startsWith("build-fix")) t.equal(now[path], facts, path)
  })

  await t.test(
    "session.14 (verify command) verify names file, line, offset and reason, exit 1; history stops there with EIO",
    async t => {
      const good = await runCtx(["agent", "session", "verify", "coder"])
      t.equal(good.code, 0)
      const size = (name: string) => readFileSync(join(dir, "build-fix", name)).length
      t.equal(
        good.stdout,
        `ok\tmessages.jsonl\trows=3\tbytes=${size("messages.jsonl")}\nok\tevents.jsonl\trows=6\tbytes=${size("events.jsonl")}\n`,
      )
      const offset = size("messages.jsonl")
      appendFileSync(join(dir, "build-fix/messages.jsonl"), '{"role":"user"')
      const bad = await runCtx(["agent", "session", "verify", "coder", "build-fix"])
      t.equal(bad.code, 1)
      t.equal(bad.stdout.split("\n")[0], `bad\tmessages.jsonl\tline=4\toffset=${offset}\treason=torn-tail`)
      t.match(bad.stderr, /^ctx: EIO: .*messages\.jsonl line 4 .*\n$/)
      const json = JSON.parse((await runCtx(["agent", "session", "verify", "coder", "build-fix", "--json"])).stdout)
      t.strictSame(json[0], { action: "bad", file: "messages.jsonl", line: 4, offset, reason: "torn-tail" })
      const all = await runCtx(["agent", "session", "verify", "coder", "--all"])
      t.match(
        all.stdout,
        /^ok\tblank\/messages\.jsonl\t.*\nok\tblank\/events\.jsonl\t.*\nbad\tbuild-fix\/messages\.jsonl\t/,
      )
      for (const words of [
        ["agent", "history"],
        ["agent", "trajectory"],
      ]) {
        const ended = await runCtx([...words, "coder", "--session", "build-fix"])
        t.equal(ended.code, 1)
        t.match(ended.stderr, /^ctx: EIO: messages\.jsonl line 4 is damaged: torn-tail: .+\n$/)
      }
    },
  )
})
