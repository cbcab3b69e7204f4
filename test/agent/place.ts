// needs: root fuse bwrap
import {
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import t, { type Test } from "tap"
import { isRunning, waitFor } from "../fixture/agent/process.js"
import { python } from "../fixture/agent/python.js"
import { call, fingerprint, makeStage, type Stage } from "../fixture/agent/stage.js"
import { OWNER } from "../harness/product.js"

t.test("where a run may happen", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  await stage.send([{ say: "first" }]).over()

  const refused = async (t: Test, code: string, more: object) => {
    const before = fingerprint(stage.sessionDir)
    const c = await stage.send([{ say: "x" }], more).over()
    t.match(c.frames, [{ type: "error", code }], JSON.stringify(more))
    t.strictSame(fingerprint(stage.sessionDir), before, "nothing is recorded")
  }

  t.test("session.11 cwd: the default, and each refusal, with nothing recorded", async t => {
    writeFileSync(join(stage.workspace, "file"), "x")
    mkdirSync(join(stage.workspace, "sub"))
    symlinkSync("/etc", join(stage.workspace, "out"))
    symlinkSync("sub", join(stage.workspace, "in"))
    const run = await stage.send([{ say: "x" }], { cwd: undefined }).over()
    t.match(run.frames[0], { type: "start", cwd: "/workspace" })
    await refused(t, "ENOENT", { cwd: "/workspace/none" })
    await refused(t, "ENOTDIR", { cwd: "/workspace/file" })
    await refused(t, "EACCES", { cwd: "/etc" })
    await refused(t, "EACCES", { cwd: "/workspace/out" })
    await refused(t, "ENOENT", { cwd: "/nowhere/at/all" })
    for (const cwd of ["rel", "/a/../b", "/workspace/", "//workspace", ""]) await refused(t, "EINVAL", { cwd })
    for (const cwd of ["/workspace/sub", "/workspace/in", "/home/agent", "/ctx/tool", "/home/agent/data"]) {
      const ok = await stage.send([{ say: "x" }], { cwd }).over()
      t.match(ok.frames.at(-1), { type: "done", status: "ok" }, cwd)
    }
  })

  t.test("session.30 (storage and configuration only) a workspace that holds what is closed is EACCES", async t => {
    for (const workspace of [
      "/",
      "/etc/cortexfs",
      "/proc",
      "/var",
      stage.stack.dataRoot,
      stage.stack.dir,
      stage.sessionDir,
    ]) {
      const code = existsSync(workspace) ? "EACCES" : "ENOENT"
      await refused(t, code, { workspace })
    }
    await refused(t, "ENOENT", { workspace: join(stage.workspace, "none") })
    await refused(t, "ENOTDIR", { workspace: join(stage.workspace, "file") })
    await refused(t, "EACCES", { workspace: "/root" })
  })

  t.test("session.30 (views elsewhere) a workspace or mount source in or above any view is EACCES", async t => {
    const host = await stage.stack.startHost()
    const home = `home/${OWNER}/agent/coder/data`
    const agentView = join(stage.stack.run, "mount/coder")
    for (const path of [stage.stack.ctx, join(stage.stack.ctx, home), join(agentView, home), stage.stack.dir]) {
      await refused(t, "EACCES", { workspace: path })
    }
    const mount = readFileSync(join(stage.controlDir, "mount"), "utf8")
    stage.set("mount", `${mount}${join(stage.stack.ctx, "shared")}\t/x\tro\t-\n`)
    await refused(t, "EACCES", {})
    stage.set("mount", `${mount}/ctx/${home}\t/x\tro\t-\n`)
    const run = await stage.send([{ say: "x" }], {}).over()
    t.match(run.frames.at(-1), { type: "done", status: "ok" }, "the agent's own home is bound from its own view")
    stage.set("mount", mount)
    await host.stop()
  })

  t.test("the agent's data that became a link is EACCES as workspace, with nothing recorded", async t => {
    // Through the view, as the agent does it.
    const data = join(stage.stack.run, `mount/coder/home/${OWNER}/agent/coder/data`)
    renameSync(data, `${data}-moved`)
    symlinkSync("/etc", data)
    await refused(t, "EACCES", { workspace: undefined })
    unlinkSync(data)
    renameSync(`${data}-moved`, data)
  })

  t.test("session.12 (temp) a temp run leaves no file and no index line, and is not replayed or seen", async t => {
    const before = fingerprint(stage.sessionDir)
    const temp = { scope: "temp", session: "passing", id: "t-1" }
    const run = await stage.send([{ say: "a" }, call("fs.list", {}), { say: "b" }], temp).over()
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
    t.ok(
      run.frames.every(f => !("seq" in f)),
      "temp frames have no seq",
    )
    t.ok(run.frames.filter(f => f.type !== "delta").every(f => "ts" in f))
    t.strictSame(fingerprint(stage.sessionDir), before)
    t.notOk(readdirSync(stage.sessionDir).includes("passing"))
    const again = await stage.send([{ say: "a" }, call("fs.list", {}), { say: "b" }], temp).over()
    t.match(again.frames[0], { type: "start" }, "runs again")
    t.not(again.frames[0]!.run, run.frames[0]!.run)
    const status = await stage.owner.ask(stage.runtime.socket, { op: "status", session: "passing" })
    t.match(status.frames, [{ status: "idle" }])
  })

  t.test("session.12 (temp) closing its connection ends the processes of a temp run", async t => {
    stage.tool("nap", '#!/bin/sh\nsleep "$1"\n')
    const run = stage.send([call("nap", { args: ["34.7"] })], { scope: "temp", session: "passing" })
    await run.frame("tool_call")
    await waitFor(() => isRunning("sleep", "34.7"))
    run.destroy()
    await waitFor(() => !isRunning("sleep", "34.7"))
    t.pass()
  })

  t.test("a temp run is cancelled by its run id while it lives", async t => {
    const run = stage.send([{ sleep_ms: 30000 }], { scope: "temp", session: "passing" })
    const start = await run.frame("start")
    const cancel = await stage.owner.ask(stage.runtime.socket, { op: "cancel", id: start.run })
    t.match(cancel.frames, [{ type: "done", status: "cancelled", run: start.run }])
    await run.over()
    t.match((await stage.owner.ask(stage.runtime.socket, { op: "cancel", id: start.run })).frames, [{ code: "ENOENT" }])
  })

  t.test("session.12 (refusals) scope shared needs a space, the policy and Linux rights", async t => {
    await refused(t, "EINVAL", { scope: "shared" })
    await refused(t, "EINVAL", { scope: "private", shared: "lab" })
    await refused(t, "ENOENT", { scope: "shared", shared: "nolab" })
    mkdirSync(join(stage.stack.dataRoot, "shared/lab"), { mode: 0o755 })
    await refused(t, "EACCES", { scope: "shared", shared: "lab" })
  })

  t.test("session.12 (shared) an allowed shared run has its files and index below the space alone", async t => {
    const space = join(stage.stack.dataRoot, "shared/lab")
    chownSync(space, OWNER, OWNER)
    const policy = readFileSync(join(stage.controlDir, "policy"), "utf8")
    stage.set("policy", `${policy}allow coder_t shared:lab write\n`)
    const before = fingerprint(stage.sessionDir)
    const shared = { scope: "shared", shared: "lab", session: "both", id: "s-1" }
    const run = await stage.send([{ say: "a" }, call("fs.list", {}), { say: "b" }], shared).over()
    t.match(run.frames[0], { type: "start", scope: "shared", shared: "lab" })
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
    t.strictSame(fingerprint(stage.sessionDir), before)
    const sessions = join(space, "agent/coder/session")
    t.equal(readFileSync(join(sessions, "index/list"), "utf8"), "both\n")
    t.equal(readFileSync(join(sessions, "both/latest.md"), "utf8"), "b\n")
    const again = await stage.send([{ say: "a" }, call("fs.list", {}), { say: "b" }], shared).over()
    t.strictSame(
      again.lines.map(l => l.text),
      [run.lines.at(-1)!.text],
      "it is replayed",
    )
    stage.set("policy", policy)
  })

  t.test("runtime.4 without bubblewrap a send is EHOSTDOWN, no row, no process", async t => {
    // A mount namespace of the runtime's own, in which an overlay with a whiteout takes the program away.
    const hide = `set -e; d=$(mktemp -d); mount -t tmpfs none $d; mkdir $d/up $d/work; mknod $d/up/bwrap c 0 0
mount -t overlay -o lowerdir=/usr/bin,upperdir=$d/up,workdir=$d/work none /usr/bin; umount -l $d; rmdir $d; exec "$@"`
    const child = await stage.startBy(["unshare", "--mount", "--propagation", "slave", "sh", "-c", hide, "sh"])
    await refused(t, "EHOSTDOWN", {})
    const children = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, "utf8")
    t.equal(children, "", "no process")
  })
})

t.test("security.35 with the view unmounted send, step and tool call are EHOSTDOWN and start no sandbox", async t => {
  const stage = await makeStage()
  t.teardown(() => stage.stop())
  stage.tool("touch", '#!/bin/sh\ntouch "/workspace/$1"\n')
  await stage.send([call("touch", { args: ["before"] }), { say: "x" }]).over()
  t.ok(existsSync(join(stage.workspace, "before")))

  // One run stands before a tool call, one before a new step, when the view goes.
  const ready = (name: string) => `while not os.path.exists("/workspace/${name}"): time.sleep(0.05)`
  stage.program(
    python(`e = read()
if e["step"] == 0:
    ${ready("go")}
    call("c-1", "touch", args=["after"])
else: say(e["observation"]["content"])
if e["step"] == 0:
    e = read(); say(e["observation"]["content"])`),
  )
  const calling = stage.send("hi", { session: "calling" })
  await calling.frame("start")
  await new Promise(resolve => setTimeout(resolve, 500))
  await stage.view.stop()
  writeFileSync(join(stage.workspace, "go"), "")
  await calling.over()
  t.match(
    calling.frames.find(f => f.type === "error"),
    { code: "EHOSTDOWN", tool: "touch", recoverable: true },
  )
  t.notOk(existsSync(join(stage.workspace, "after")))

  const before = fingerprint(stage.sessionDir)
  const c = await stage.send("hi", { session: "refused" }).over()
  t.match(c.frames, [{ type: "error", code: "EHOSTDOWN" }])
  t.strictSame(fingerprint(stage.sessionDir), before)
  t.match((await stage.owner.ask(stage.runtime.socket, { op: "ping" })).frames, [{ type: "pong" }], "it serves on")

  stage.view = await stage.stack.startView("coder")
  stage.program(python('e = read()\nif e["step"] == 0: call("c-1", "touch", args=["third"])\nelse: say("never")'))
  stage.tool("touch", "#!/bin/sh\nsleep 1\n")
  const stepping = stage.send("hi", { session: "stepping" })
  await stepping.frame("tool_call")
  await new Promise(resolve => setTimeout(resolve, 300))
  stage.view.child.kill("SIGKILL")
  await stepping.over()
  t.match(stepping.frames.slice(-2), [
    { type: "error", code: "EHOSTDOWN" },
    { type: "done", status: "error" },
  ])
})
