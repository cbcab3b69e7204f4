// needs: root fuse bwrap
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, unlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { agentCommand, makeStage, type Stage } from "../fixture/agent/stage.js"
import { OTHER, OWNER } from "../harness/product.js"
import { cleanEnv, runProgram, startProgram } from "../harness/program.js"

/** Listens at argv[1] and starts argv[2:] as a supervisor would, with what LISTEN_* says in the environment of this program. */
const ACTIVATE = `import os,socket,sys
s=socket.socket(socket.AF_UNIX)
if not os.path.exists(sys.argv[1]) or os.environ.get("AGAIN") is None:
    s.bind(sys.argv[1]); os.chmod(sys.argv[1],0o666); s.listen(64)
os.dup2(s.fileno(),3); os.set_inheritable(3,True)
os.environ.setdefault("LISTEN_PID",str(os.getpid()))
os.execv(sys.argv[2],sys.argv[2:])`

/** Prints each datagram that comes to the socket argv[1]. */
const NOTIFIED = `import os,socket,sys
s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.bind(sys.argv[1]); os.chmod(sys.argv[1],0o666)
print("up",flush=True)
while True: print(repr(s.recv(4096).decode()),flush=True)`

t.test("the process of a runtime", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  const { stack, owner } = stage
  const { socket } = stage.runtime
  const command = agentCommand(stack)
  const status = () => readFileSync(join(stage.controlDir, "status"), "utf8")
  const runAgent = (args: string[], options = {}) =>
    runProgram([join(stack.prefix, "bin/cortexfs-agent"), ...args], options)
  const replaced = (option: string, value: string) => {
    const args = command.slice(1)
    args[args.indexOf(option) + 1] = value
    return args
  }

  t.test("started as root it has the owner's identity for good and no capability", async t => {
    t.match((await owner.ask(socket, { op: "ping" })).frames, [{ type: "pong" }])
    const text = readFileSync(`/proc/${stage.runtime.child.pid}/status`, "utf8")
    t.match(text, new RegExp(`^Uid:\\t${OWNER}\\t${OWNER}\\t${OWNER}\\t${OWNER}$`, "m"))
    t.match(text, new RegExp(`^Gid:\\t${OWNER}\\t${OWNER}\\t${OWNER}\\t${OWNER}$`, "m"))
    t.match(text, /^Groups:\t\s*$/m)
    for (const set of ["CapInh", "CapPrm", "CapEff", "CapAmb"]) t.match(text, new RegExp(`^${set}:\t0+$`, "m"), set)
    t.equal(statSync(socket).mode & 0o777, 0o666)
    t.equal(statSync(join(socket, "..")).mode & 0o777, 0o755)
  })

  t.test("a second runtime is EBUSY, exit 69, and the first serves on", async t => {
    const { code, stderr, stdout } = await runAgent(command.slice(1))
    t.equal(code, 69)
    t.match(stderr, /^cortexfs-agent: EBUSY: [^\n]+\n$/)
    t.equal(stdout, "")
    t.match((await owner.ask(socket, { op: "ping" })).frames, [{ type: "pong" }])
  })

  t.test("bad arguments exit 2, an unknown agent 69, a foreign or root owner 13, each with one line", async t => {
    const cases: [string[], number, RegExp, object?][] = [
      [[], 2, /^cortexfs-agent: usage: /],
      [["--source", "/x"], 2, /^cortexfs-agent: usage: /],
      [[...command.slice(1), "--nonsense"], 2, /^cortexfs-agent: usage: /],
      [replaced("--agent", "no/name"), 2, /^cortexfs-agent: usage: /],
      [replaced("--agent", "absent"), 69, /^cortexfs-agent: ENOENT: /],
      [replaced("--source", "/nowhere"), 69, /^cortexfs-agent: ENOENT: /],
      [replaced("--agent", "worker"), 13, /^cortexfs-agent: E(PERM|ACCES): /, { uid: OTHER }],
    ]
    for (const [args, code, line, options] of cases) {
      const ended = await runAgent(args, options)
      t.equal(ended.code, code, args.join(" "))
      t.match(ended.stderr, line)
      t.equal(ended.stderr.split("\n").length, 2, "one line")
    }
    const ownerControl = join(stage.controlDir, "../worker.d/owner")
    const old = readFileSync(ownerControl)
    writeFileSync(ownerControl, "0\n")
    const root = await runAgent(replaced("--agent", "worker"))
    writeFileSync(ownerControl, old)
    t.equal(root.code, 13)
    t.match(root.stderr, /^cortexfs-agent: EPERM: /)
  })

  t.test("a dead socket is replaced, another kind of file is left alone", async t => {
    stage.runtime.child.kill("SIGKILL")
    await once(stage.runtime.child, "exit")
    t.ok(existsSync(socket), "a killed runtime leaves its socket")
    const { birthtimeMs } = statSync(socket)
    stage.runtime = await stack.startRuntime("coder")
    t.not(statSync(socket).birthtimeMs, birthtimeMs)
    t.match((await owner.ask(socket, { op: "ping" })).frames, [{ type: "pong" }])
    await stage.runtime.stop()
    rmSync(socket, { force: true })
    writeFileSync(socket, "mine")
    const { code, stderr } = await runAgent(command.slice(1))
    t.equal(code, 69)
    t.match(stderr, /^cortexfs-agent: EEXIST: /)
    t.equal(readFileSync(socket, "utf8"), "mine")
    unlinkSync(socket)
    stage.runtime = await stack.startRuntime("coder")
  })

  t.test("a socket that is not its own any more is not removed at the end", async t => {
    unlinkSync(socket)
    writeFileSync(socket, "somebody else's")
    t.equal(await stage.runtime.stop(), 0)
    t.equal(readFileSync(socket, "utf8"), "somebody else's")
    unlinkSync(socket)
    stage.runtime = await stack.startRuntime("coder")
  })

  t.test("a runtime that bound its socket itself does not exit when idle", async t => {
    await stage.restart({ CORTEXFS_IDLE_S: "1" })
    await new Promise(resolve => setTimeout(resolve, 2_000))
    t.equal(stage.runtime.child.exitCode, null)
  })

  t.test(
    "units.14 (without a system manager) a malformed control at start is an answer to each of 100 connects, not a crash",
    async t => {
      stage.set("life", "detached\n")
      await stage.restart()
      for (let i = 0; i < 100; i++) {
        const c = await owner.ask(
          socket,
          i % 2 ? { op: "ping" } : { op: "send", id: `u-${i}`, session: "default", input: "x" },
        )
        if (c.lines.length !== 1 || c.frames[0]!.code !== "EINVAL" || !/life/.test(c.lines[0]!.text))
          t.fail(c.lines.map(l => l.text).join())
      }
      t.equal(stage.runtime.child.exitCode, null)
      stage.set("life", "owned\n")
      t.match((await owner.ask(socket, { op: "ping" })).frames, [{ type: "pong" }], "mended, it serves")
    },
  )

  t.test("a malformed owner leaves a runtime that is nobody and refuses everybody", async t => {
    stage.set("owner", "x\n")
    await stage.restart()
    t.match((await owner.ask(socket, { op: "ping" })).frames, [{ type: "error", code: "EACCES" }])
    t.match(readFileSync(`/proc/${stage.runtime.child.pid}/status`, "utf8"), /^Uid:\t65534\t65534\t65534\t65534$/m)
    stage.set("owner", `${OWNER}\n`)
    await stage.restart()
  })

  const activate = (path: string, env: Record<string, string>, more: string[] = []): ChildProcess =>
    startProgram(["/usr/bin/python3", "-c", ACTIVATE, path, ...command, ...more], {
      env: cleanEnv({ LISTEN_FDS: "1", LISTEN_FDNAMES: "agent", ...env }),
      stdio: ["ignore", "inherit", "pipe"],
    })

  t.test(
    "a socket that was handed over is served and stays, and without work the runtime exits 0 by itself",
    async t => {
      await stage.runtime.stop()
      mkdirSync(join(stack.run, "given"), { mode: 0o755 })
      const path = join(stack.run, "given/agent.sock")
      const child = activate(path, { CORTEXFS_IDLE_S: "1" })
      const exited = once(child, "exit")
      await until(() => existsSync(path))
      t.match((await owner.ask(path, { op: "ping" })).frames, [{ type: "pong" }])
      const run = owner.open(path).send({
        op: "send",
        id: "i-1",
        session: "default",
        workspace: stage.workspace,
        cwd: "/workspace",
        input: '{"schema":"cortexfs.script/v1","steps":[{"sleep_ms":2000},{"say":"x"}]}',
      })
      await run.over()
      t.match(run.frames.at(-1), { type: "done", status: "ok" }, "a run of 2 s is no idle second")
      t.equal(child.exitCode, null)
      const [code] = await exited
      t.equal(code, 0)
      t.equal(status(), "idle\n")
      t.equal(readFileSync(join(stage.controlDir, "pid"), "utf8"), "\n")
      t.ok(statSync(path).isSocket(), "the path belongs to the supervisor")
      t.equal((await owner.ask(socket, { op: "ping" })).errorCode, "ECONNREFUSED", "no other socket was bound")
    },
  )

  t.test("units.6 (deviations) another pid, count, name or no listening socket exits 2 with one line", async t => {
    const deviations: Record<string, string>[] = [
      { LISTEN_PID: "1" },
      { LISTEN_FDS: "2" },
      { LISTEN_FDNAMES: "model" },
      { AGAIN: "1" },
    ]
    for (const env of deviations) {
      const path = join(stack.run, "given/other.sock")
      rmSync(path, { force: true })
      // With AGAIN the path exists and descriptor 3 is a socket that does not listen.
      if (env.AGAIN) writeFileSync(path, "")
      const child = activate(path, env)
      let stderr = ""
      child.stderr!.on("data", text => (stderr += text))
      const [code] = await once(child, "close")
      t.equal(code, 2, JSON.stringify(env))
      t.match(stderr, /^cortexfs-agent: usage: [^\n]+\n$/)
    }
  })

  t.test("READY comes when a connection is served, STOPPING at the end", async t => {
    const path = join(stack.run, "notify.sock")
    const listener = spawn("/usr/bin/python3", ["-c", NOTIFIED, path], {
      env: cleanEnv(),
      stdio: ["ignore", "pipe", "inherit"],
    })
    t.teardown(() => listener.kill("SIGKILL"))
    const told: string[] = []
    listener
      .stdout!.setEncoding("utf8")
      .on("data", (text: string) => told.push(...text.split("\n").filter(line => line !== "")))
    await until(() => told.includes("up"))
    stage.runtime = await stack.startRuntime("coder", { env: { NOTIFY_SOCKET: path } })
    await until(() => told.some(line => line.includes("READY=1")))
    t.match((await owner.ask(socket, { op: "ping" })).frames, [{ type: "pong" }])
    t.match(told[1], /^'READY=1\\nSTATUS=ready sessions=0 runs=0 queued=0'$/)
    await stage.runtime.stop()
    await until(() => told.some(line => line.includes("STOPPING=1")))
    stage.runtime = await stack.startRuntime("coder")
  })
})

async function until(isThere: () => boolean): Promise<void> {
  for (let waitedMs = 0; !isThere(); waitedMs += 20) {
    if (waitedMs > 10_000) throw new Error("did not happen in 10 s")
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}
