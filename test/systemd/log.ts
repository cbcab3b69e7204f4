// needs: root fuse bwrap socat systemd
// The logs of tools and models, which only root may write, written by a runtime that has given up every right.
import { linkSync, statSync, symlinkSync, unlinkSync } from "node:fs"
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, currentDir, makeTool, playScripts, script, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const STORE = "/var/lib/cortexfs"
const MODEL_LOG = `${STORE}/cache/model.log`

interface Line {
  ts: string
  object: string
  [key: string]: unknown
}

t.test("a machine with a running view", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  await system.manage("start", "cortexfs@coder")
  const dir = await currentDir(system)
  const tool = (name: string) => `${dir}/tool/${name}.d/log`
  const read = (path: string): Line[] => {
    const text = system.read(path)
    t.match(text, /^(\{[^\n]*\}\n)*$/, "whole lines")
    return text
      .split("\n")
      .filter(Boolean)
      .map(line => JSON.parse(line))
  }
  const facts = (lines: Line[]) => lines.map(({ ts: _, run: __, elapsed_ms: ___, ...rest }) => rest)
  const own = { type: "tool.call", agent: "coder", session: "default" }
  const call = (name: string) => ({ call: { name, arguments: { args: ["canary-argument"] } } })
  let sent = 0
  const play = async (...steps: object[]) => {
    const input = script(...steps, { say: "canary-answer" })
    const frames = await ask(system, owner, { op: "send", id: `l${++sent}`, input })
    t.match(frames.at(-1), { type: "done", status: "ok" })
    return frames[0]!.run as string
  }
  const open = ["talks", "fails", "closed", "linked", "hard", "missing.log"]
  for (const name of open) {
    const text = name === "fails" ? "#!/usr/bin/bash\nexit 3\n" : "#!/usr/bin/bash\necho canary-output\n"
    await makeTool(system, name, text, name === "closed" ? ["reviewer"] : ["coder"])
  }
  await playScripts(system, "coder", ...open, "later", "mine")

  await t.test(
    "each call of a found tool leaves one line, a refusal its code, and nothing of what was said",
    async t => {
      const run = await play(call("talks"), call("fails"), call("closed"), call("undeclared"))
      t.same(facts(read(tool("talks"))), [{ ...own, object: "tool/talks", status: "ok" }])
      t.match(read(tool("talks")), [{ ts: /^\d{4}-\d\d-\d\dT[\d:.]+Z$/, run }])
      t.same(facts(read(tool("fails"))), [{ ...own, object: "tool/fails", status: "error" }])
      t.same(facts(read(tool("closed"))), [{ ...own, object: "tool/closed", status: "error", code: "EACCES" }])
      const { uid, mode } = statSync(system.see(tool("talks")))
      t.same([uid, mode & 0o777], [0, 0o644], "root's as before")
      const [capabilities] = /^CapEff:\t(\S+)$/m
        .exec(system.read(`/proc/${await system.mainPid(RUNTIME)}/status`))!
        .slice(1)
      t.equal(capabilities, "0000000000000000")
    },
  )

  t.test("model.26 (the line of an agent) a call of a model leaves one line in the log of models", async t => {
    const before = read(MODEL_LOG)
    t.ok(before.length > 0)
    const run = await play(call("talks"))
    const added = read(MODEL_LOG).slice(before.length)
    const line = {
      type: "model.call",
      agent: "coder",
      session: "default",
      object: "model/debug/script",
      run,
      status: "ok",
    }
    t.ok(added.length >= 1)
    for (const { ts, elapsed_ms: elapsedMs, ...rest } of added) {
      t.same(rest, line)
      t.match(ts, /Z$/)
      t.ok(Number.isInteger(elapsedMs))
    }
    const { uid, mode } = statSync(system.see(MODEL_LOG))
    t.same([uid, mode & 0o777], [0, 0o644])
    const failing = await ask(system, owner, {
      op: "send",
      id: "bad",
      input: script({ error: { code: "EIO", message: "canary-failure" } }),
    })
    t.match(failing.at(-1), { status: "error" })
    t.match(read(MODEL_LOG).at(-1), { object: "model/debug/script", status: "error", code: "EIO" })
    t.notMatch(system.read(MODEL_LOG) + system.read(tool("talks")), "canary")
  })

  t.test(
    "a tool of the owner's home is logged there by the owner, and a tool installed meanwhile from the next start on",
    async t => {
      const home = `${STORE}/home/${owner}`
      await system.text(["cp", "-a", `${dir}/tool/talks`, `${dir}/tool/later`])
      await makeTool(system, "later", "#!/usr/bin/bash\necho x\n", ["coder"])
      await makeTool(system, "mine", "#!/usr/bin/bash\necho x\n", ["coder"])
      await system.text(["mkdir", "-p", `${home}/tool`])
      await system.text(["mv", `${dir}/tool/mine`, `${dir}/tool/mine.d`, `${home}/tool/`])
      await system.text(["chown", "-R", `${owner}:${owner}`, `${home}/tool`])
      await play(call("later"), call("mine"))
      t.same(read(tool("later")), [])
      t.same(facts(read(`${home}/tool/mine.d/log`)), [{ ...own, object: "tool/mine", status: "ok" }])
      await system.manage("stop", RUNTIME)
      await play(call("later"))
      t.same(facts(read(tool("later"))), [{ ...own, object: "tool/later", status: "ok" }])
    },
  )

  t.test("a log that is a link, has a second name or is missing is not written, and the calls go on", async t => {
    await system.manage("stop", RUNTIME)
    for (const name of ["linked", "hard", "missing.log"]) unlinkSync(system.see(tool(name)))
    system.write("/root/precious", "")
    symlinkSync("/root/precious", system.see(tool("linked")))
    system.write(`${dir}/tool/precious`, "")
    linkSync(system.see(`${dir}/tool/precious`), system.see(tool("hard")))
    await play(call("linked"), call("hard"), call("missing.log"), call("talks"))
    t.equal(system.read("/root/precious"), "")
    t.equal(system.read(`${dir}/tool/precious`), "")
    t.match(read(tool("talks")).at(-1), { object: "tool/talks" })
    const { InvocationID: invocation } = await system.show(RUNTIME, "InvocationID")
    const told = (await system.entries(`_SYSTEMD_INVOCATION_ID=${invocation}`)).filter(
      ({ PRIORITY }) => PRIORITY === "4",
    )
    t.match(told, [{ MESSAGE: /^cortexfs-agent: a log is not written: E[A-Z]+$/ }], "told once")
  })

  t.test("a log of models above 8 MiB is moved away at a start, and no payload holds a log", async t => {
    await system.manage("stop", RUNTIME)
    const line = `${JSON.stringify({ old: "x".repeat(1000) })}\n`
    system.write(MODEL_LOG, line.repeat(8_400))
    const { size, ino } = statSync(system.see(MODEL_LOG))
    t.ok(size > 8 * 2 ** 20)
    await play(call("talks"))
    t.match(statSync(system.see(`${MODEL_LOG}.1`)), { size, ino })
    t.match(read(MODEL_LOG)[0], { type: "model.call" })
    await makeTool(system, "talks", "#!/usr/bin/bash\nls -l /proc/self/fd /proc/$$/fd\n", ["coder"])
    const frames = await ask(system, owner, { op: "send", id: "fds", input: script(call("talks"), { say: "x" }) })
    const text = JSON.stringify(frames.find(frame => frame.type === "message" && frame.role === "tool"))
    t.match(text, "pipe:")
    t.notMatch(text, /\blog\b|model\.log/)
    t.match(await system.run(["ctx", "bootstrap", "--check", `${STORE}/storage/current`]), { code: 0 })
  })
})
