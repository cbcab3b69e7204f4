// needs: root fuse bwrap
import { once } from "node:events"
import { readdirSync, rmSync, statSync } from "node:fs"
import { connect } from "node:net"
import { join } from "node:path"
import t from "tap"
import { bindListener, type Listener } from "../../src/endpoint/listener.js"
import { agentCommand } from "../fixture/agent/stage.js"
import { makeDir, makeStack, OWNER } from "../harness/product.js"
import { asUser, cleanEnv, runProgram, startProgram, stopProgram } from "../harness/program.js"

/** Leaves the socket of a process that was killed at `path`. */
async function leaveDead(path: string): Promise<void> {
  const text = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(1)"
  await runProgram(["/usr/bin/python3", "-c", text, path])
}

t.test("every directory that root makes for a socket can be entered by everybody, whatever the umask", async t => {
  const dir = makeDir()
  const before = process.umask(0o077)
  t.teardown(() => process.umask(before))
  const listener = await bindListener(join(dir, "run/cortexfs/agent/a.sock"), 0o666)
  t.teardown(() => listener.close())
  for (const path of ["run", "run/cortexfs", "run/cortexfs/agent"]) {
    t.equal(statSync(join(dir, path)).mode & 0o777, 0o755, path)
  }
  t.equal(statSync(join(dir, "run/cortexfs/agent/a.sock")).mode & 0o777, 0o666)
  t.equal(process.umask(), 0o077)
  t.same(readdirSync(join(dir, "run/cortexfs/agent")), ["a.sock"], "nothing else is left there")
})

t.test("of many that bind a path with a dead socket at once exactly one does, and the others are EBUSY", async t => {
  const path = join(makeDir(), "a.sock")
  for (let round = 0; round < 5; round++) {
    rmSync(path, { force: true })
    await leaveDead(path)
    const all = await Promise.allSettled(Array.from({ length: 8 }, () => bindListener(path, 0o600)))
    const listeners = all.flatMap(one => (one.status === "fulfilled" ? [one.value] : []))
    const codes = all.flatMap(one => (one.status === "rejected" ? [one.reason.code] : []))
    t.equal(listeners.length, 1)
    t.same(
      codes,
      Array.from({ length: 7 }, () => "EBUSY"),
    )
    const socket = connect({ path })
    await once(socket, "connect")
    socket.destroy()
    for (const listener of listeners as Listener[]) listener.close()
  }
})

t.test("runtimes of one agent started at the same instant: one serves, the others are EBUSY, exit 69", async t => {
  const stack = await makeStack()
  t.teardown(() => stack.stop())
  const socket = join(stack.run, "agent/coder.sock")
  for (let round = 0; round < 4; round++) {
    const running = Array.from({ length: 4 }, () => {
      const child = startProgram(agentCommand(stack), { env: cleanEnv(), stdio: ["ignore", "ignore", "pipe"] })
      let stderr = ""
      child.stderr!.setEncoding("utf8").on("data", text => (stderr += text))
      return { child, said: () => stderr, closed: once(child, "close") }
    })
    t.teardown(() => running.map(({ child }) => child.kill("SIGKILL")))
    const losers: typeof running = []
    const noted = running.map(one => one.closed.then(() => losers.push(one)))
    for (let i = 0; i < 200 && losers.length < 3; i++) await new Promise(resolve => setTimeout(resolve, 50))
    t.equal(losers.length, 3)
    for (const { child, said } of losers) {
      t.equal(child.exitCode, 69, said())
      t.match(said(), /^cortexfs-agent: EBUSY: [^\n]+\n$/)
    }
    const winner = running.find(one => !losers.includes(one))!
    const answered = await runProgram(
      asUser(["/usr/bin/socat", "-t5", "-", `UNIX-CONNECT:${socket}`], { uid: OWNER }),
      { input: '{"op":"ping"}\n' },
    )
    t.equal(answered.stdout, '{"type":"pong"}\n')
    // Killed, it leaves a dead socket for the next round.
    await stopProgram(winner.child, "SIGKILL")
    await Promise.all(noted)
  }
})
