// needs: root systemd
// The harness itself: an instance cannot outlive its test, and it shares no directory with the host.
import { execFileSync, spawn } from "node:child_process"
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import { bootSystem, KEEPER, makeState } from "../harness/systemd.js"

async function until(isTrue: () => boolean): Promise<boolean> {
  for (let waitedMs = 0; waitedMs < 30_000; waitedMs += 20) {
    if (isTrue()) return true
    await new Promise(resolve => setTimeout(resolve, 20))
  }
  return false
}

/** True while the process lives; a zombie does not. */
function isAlive(pid: number): boolean {
  try {
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "latin1"))
  } catch {
    return false
  }
}

const groups = () =>
  execFileSync("/usr/bin/find", ["/sys/fs/cgroup", "-maxdepth", "2", "-name", "cortexfs-test-*"], { encoding: "utf8" })
    .split("\n")
    .filter(Boolean)

/** A keeper whose lifeline another process holds, `sleep` in place of a test. */
async function keep() {
  const state = makeState({})
  const holder = spawn("/usr/bin/sleep", ["600"], { stdio: ["ignore", "pipe", "ignore"] })
  const keeper = spawn(KEEPER, ["keep", state], { stdio: [holder.stdout, "pipe", "inherit"], detached: true })
  holder.stdout.destroy()
  let said = ""
  keeper.stdout.setEncoding("utf8").on("data", text => {
    said += text
  })
  if (!(await until(() => /^pid \d+$/m.test(said)))) throw new Error("no machine")
  return { state, pid: Number(/^pid (\d+)$/m.exec(said)![1]), keeper, holder }
}

t.test("what the instance has of the host", async t => {
  const mark = mkdtempSync(join(tmpdir(), "cortexfs-mark-"))
  writeFileSync(join(mark, "file"), "kept")
  t.teardown(() => rmSync(mark, { recursive: true, force: true }))
  const system = await bootSystem()
  t.teardown(() => system.stop())
  for (const path of ["/tmp", "/var/tmp", "/run", "/dev", "/etc/systemd/system", "/var/lib/cortexfs"]) {
    t.not(statSync(system.see(path)).dev, existsSync(path) ? statSync(path).dev : 0, path)
  }
  t.notOk(existsSync(system.see(mark)), "the host's /tmp is not there")
  t.same((await system.run(["touch", "/mnt/project/x"])).code, 1, "the project cannot be written")
  await system.text(["rm", "-rf", "/usr/share/doc", "/etc/passwd"])
  t.ok(existsSync("/etc/passwd"), "what is removed inside is there outside")
  for (const space of ["pid", "mnt", "uts", "ipc", "net", "cgroup"]) {
    const of = (pid: number | string) => execFileSync("readlink", [`/proc/${pid}/ns/${space}`], { encoding: "utf8" })
    t.not(of(system.pid), of("self"), space)
  }
  await system.stop()
  t.equal(readFileSync(join(mark, "file"), "utf8"), "kept")
})

t.test("an instance whose test is killed is powered off, and nothing of it is left", async t => {
  const { state, pid, holder } = await keep()
  holder.kill("SIGKILL")
  t.ok(await until(() => !isAlive(pid)), "PID 1 is gone")
  t.ok(await until(() => !existsSync(state)), "its state too")
})

t.test("an instance whose keeper is killed ends at once, and the next boot sweeps what it left", async t => {
  const { state, pid, keeper, holder } = await keep()
  keeper.kill("SIGKILL")
  t.ok(await until(() => !isAlive(pid)), "PID 1 is gone")
  holder.kill("SIGKILL")
  t.ok(existsSync(state))
  const left = groups().filter(path => path.endsWith(`-${keeper.pid}`))
  t.equal(left.length, 1)
  const system = await bootSystem()
  t.notOk(existsSync(state))
  t.same(
    groups().filter(path => left.includes(path)),
    [],
  )
  await system.stop()
})
