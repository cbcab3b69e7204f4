// needs: root fuse bwrap
import { chmodSync, chownSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { call, fingerprint, makeStage, readRows, type Stage, TYPE } from "../fixture/agent/stage.js"
import { OTHER } from "../harness/product.js"

t.test("what a call needs", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  writeFileSync(join(stage.workspace, "f"), "text\n")
  const policy = readFileSync(join(stage.controlDir, "policy"), "utf8")
  const tools = readFileSync(join(stage.controlDir, "tools"), "utf8")
  const toolDir = join(stage.controlDir, "../../tool")
  const fsRead = join(toolDir, "fs.read.d/policy")
  let sessions = 0

  /** Results of a run's calls: its tool rows' contents, with the last frame and the recoverable errors. */
  const results = async (steps: object[], more: object = {}) => {
    const session = `a-${++sessions}`
    const c = await stage.send([...steps, { say: "end" }], { session, ...more }).over()
    const rows = readRows(join(stage.sessionDir, session, "messages.jsonl")).filter(r => r.role === "tool")
    const parts = rows.map(r => (r.content as { content: string; status: string; truncated?: boolean }[])[0]!)
    return { parts, done: c.frames.at(-1)!, errors: c.frames.filter(f => f.type === "error"), frames: c.frames }
  }
  const reset = () => {
    stage.set("policy", policy)
    stage.set("tools", tools)
  }
  const models = `allow ${TYPE} model:debug/script use\n`
  const read = call("fs.read", { path: "f" })

  t.test(
    "security.1 (direct call) with an empty tool policy a call is EACCES, nothing is started, the run ends ok",
    async t => {
      stage.set("policy", models)
      const { parts, done, errors } = await results([read])
      t.match(parts, [{ status: "error", content: /^ERROR: EACCES: / }])
      t.match(errors, [{ code: "EACCES", tool: "fs.read", recoverable: true }])
      t.match(done, { status: "ok" })
      reset()
    },
  )

  t.test(
    "security.2 the tool's own policy must name the agent's type, and a line added acts without restart",
    async t => {
      const own = readFileSync(fsRead, "utf8")
      writeFileSync(fsRead, "")
      t.match((await results([read])).parts, [{ status: "error", content: /^ERROR: EACCES: / }])
      writeFileSync(fsRead, `allow ${TYPE} tool:fs.read execute\n`)
      t.match((await results([read])).parts, [{ status: "ok", content: "text\n" }])
      writeFileSync(fsRead, own)
    },
  )

  t.test("security.3 a line removed between two calls of a run refuses the second", async t => {
    const run = stage.send([read, { sleep_ms: 700 }, read, { say: "end" }], { session: "removed" })
    await run.frame("message")
    stage.set("policy", models)
    await run.over()
    const parts = run.frames.filter(f => f.type === "message" && f.role === "tool").map(f => (f.content as object[])[0])
    t.match(parts, [{ status: "ok" }, { status: "error", content: /^ERROR: EACCES: / }])
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
    reset()
  })

  t.test("security.4 a tool that is not declared is EACCES although both policies allow it", async t => {
    stage.set("tools", "")
    t.match((await results([read])).parts, [{ status: "error", content: /^ERROR: EACCES: / }])
    reset()
  })

  t.test(
    "runtime.10 (refusals) undeclared, refused, not executable and symlinked tools are recoverable, the run ends ok",
    async t => {
      stage.tool("plain", "#!/bin/sh\necho plain\n")
      const path = join(toolDir, "plain")
      t.match((await results([call("plain", { args: ["x"] })])).parts, [{ status: "ok", content: "plain\n" }])

      chmodSync(path, 0o644)
      const still = await results([call("plain", { args: ["x"] })])
      t.match(still.parts, [{ status: "error", content: /^ERROR: ENOENT: / }], "no execute bit: no hit")
      t.match(still.done, { status: "ok" })

      chmodSync(path, 0o700)
      chownSync(path, OTHER, OTHER)
      t.match(
        (await results([call("plain", { args: ["x"] })])).parts,
        [{ content: /^ERROR: EACCES: / }],
        "of another uid",
      )
      chownSync(path, 0, 0)
      chmodSync(path, 0o755)

      renameSync(path, `${path}.away`)
      symlinkSync("plain.away", path)
      const linked = await results([call("plain", { args: ["x"] })])
      t.match(linked.parts, [{ status: "error", content: /^ERROR: ENOENT: / }], "a link is no hit")
      t.match(linked.errors, [{ code: "ENOENT", tool: "plain", recoverable: true }])
      rmSync(path)
      renameSync(`${path}.away`, path)
      t.match(
        (await results([call("nowhere", { args: ["x"] })])).parts,
        [{ content: /^ERROR: EACCES: / }],
        "not declared",
      )
    },
  )

  t.test(
    "runtime.10 (time and size) a tool past its timeout is ETIMEDOUT, 2 MiB are cut to 1 MiB and to one marker line",
    async t => {
      stage.tool("slow", "#!/bin/sh\necho first\nsleep 36.7\n", { timeout: "1\n" })
      const slow = await results([call("slow", { args: ["x"] })])
      t.match(slow.parts, [{ status: "error", content: /^ERROR: ETIMEDOUT/ }])
      t.match(slow.done, { status: "ok" })

      stage.tool("big", "#!/bin/sh\nhead -c 2097152 /dev/zero | tr '\\\\0' x\n")
      const big = await results([call("big", { args: ["x"] }), { expect: "bytes omitted" }])
      t.equal(Buffer.byteLength(big.parts[0]!.content), 1_048_576)
      t.equal(big.parts[0]!.truncated, true)
      t.match(big.done, { status: "ok" }, "the observation has the marker")
    },
  )

  t.test("approval ask denies every call, with a reason that is stored, and nothing is started", async t => {
    stage.set("approval", "ask\n")
    const { parts, done, frames } = await results([read])
    t.match(
      frames.find(f => f.type === "approval_result"),
      { id: "c-1", name: "fs.read", decision: "deny", reason: /./ },
    )
    t.match(parts, [{ status: "error", content: /^ERROR: EACCES: / }])
    t.match(done, { status: "ok" })
    stage.set("approval", "auto\n")
  })

  t.test(
    "runtime.9 (policy) without model use a send is EACCES and records nothing; a line removed during a run ends the next call",
    async t => {
      stage.set("policy", policy.replace(models, ""))
      const before = fingerprint(stage.sessionDir)
      const refused = await stage.send([{ say: "x" }], { session: "no-model" }).over()
      t.match(refused.frames, [{ type: "error", code: "EACCES" }])
      t.strictSame(fingerprint(stage.sessionDir), before)
      reset()

      stage.tool("nap", '#!/bin/sh\nsleep "$1"\n')
      const now = readFileSync(join(stage.controlDir, "policy"), "utf8")
      const run = stage.send([call("nap", { args: ["0.8"] }), { say: "never" }], { session: "model-gone" })
      await run.frame("tool_call")
      stage.set("policy", now.replace(models, ""))
      await run.over()
      t.match(run.frames.slice(-2), [
        { type: "error", code: "EACCES" },
        { type: "done", status: "error" },
      ])
      reset()
    },
  )

  t.test("a model that does not exist is ENOENT before anything is recorded", async t => {
    stage.set("model", "debug/none\n")
    t.match((await stage.send([{ say: "x" }], { session: "none" }).over()).frames, [{ type: "error", code: "ENOENT" }])
    stage.set("model", "debug/script\n")
  })

  t.test("runtime.1 a malformed control makes send EINVAL naming it, nothing is recorded", async t => {
    const before = fingerprint(stage.sessionDir)
    const bad: [string, string][] = [
      ["abi", "argv-v1\n"],
      ["window", "08\n"],
      ["window", "20000\n"],
      ["life", "detached\n"],
      ["env", "LD_PRELOAD=x\n"],
      ["env", "CTX_AGENT_STEPS=0\n"],
      ["env", "CTX_OTHER=1\n"],
      ["env", "HOME=/x\n"],
      ["label", "user:role:type\n"],
      ["iso", "jail\n"],
      ["cwd", "rel\n"],
      ["path", "tool\n"],
      ["model", "nothing\n"],
      ["approval", "maybe\n"],
      ["parent", "worker\n"],
      ["gid", "x\n"],
      ["groups", "x\n"],
      ["mount", "srv\t/x\tro\t-\n"],
      ["uid", "12002\n"],
      ["owner", "x\n"],
      ["root", "rel\n"],
    ]
    for (const [control, text] of bad) {
      const path = join(stage.controlDir, control)
      const old = readFileSync(path, "utf8")
      stage.set(control, text)
      const { frames } = await stage.send([{ say: "x" }], { session: "control" }).over()
      const names = control === "uid" ? /uid|iso/ : new RegExp(control)
      t.match(frames, [{ type: "error", code: "EINVAL", message: names }], `${control} ${JSON.stringify(text)}`)
      t.equal(frames.length, 1)
      stage.set(control, old)
    }
    t.strictSame(fingerprint(stage.sessionDir), before)
  })

  t.test(
    "runtime.1 (tools and policy) malformed tools count as none and are told, a malformed policy denies everything",
    async t => {
      for (const text of ["tsh\n", "fs.read\nfs.read\n"]) {
        stage.set("tools", text)
        const { parts, errors, done } = await results([read])
        t.match(errors, [
          { code: "EINVAL", recoverable: true },
          { code: "EACCES", tool: "fs.read" },
        ])
        t.match(parts, [{ content: /^ERROR: EACCES: / }])
        t.match(done, { status: "ok" })
      }
      reset()
      stage.set("policy", `${policy}nonsense\n`)
      t.match((await stage.send([{ say: "x" }], { session: "p" }).over()).frames, [{ type: "error", code: "EACCES" }])
      reset()
    },
  )
})
