// needs: root fuse memory
// Two million names looked up in the host view, and forgotten again. The files lie in memory: only the mount is of interest.
import { execFileSync, spawn } from "node:child_process"
import { mkdtempSync, readdirSync, readFileSync, rmdirSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import { runProgram } from "../harness/program.js"
import { type Fixture, makeBehind, makeFixture, OWNER } from "./fixture/stack.js"

t.setTimeout(900_000)

const DIRS = 100
const NAMES_PER_DIR = 20_000
const LOOK = `
import os, sys
top = sys.argv[1]
for d in range(${DIRS}):
    for i in range(${NAMES_PER_DIR}):
        at = os.stat("%s/d%d/n%d" % (top, d, i))
        if at.st_size != 0 or at.st_uid != ${OWNER}: raise SystemExit("%d/%d: %r" % (d, i, at))
`
const MAKE = `
import os, sys
os.setgid(${OWNER}); os.setuid(${OWNER})
for d in range(${DIRS}):
    os.mkdir("%s/d%d" % (sys.argv[1], d))
    for i in range(${NAMES_PER_DIR}): os.close(os.open("%s/d%d/n%d" % (sys.argv[1], d, i), os.O_CREAT | os.O_WRONLY))
`

/** Keeps a file open until its input ends; says its number before and after. */
const HOLD = `
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print(os.fstat(fd).st_ino, flush=True)
sys.stdin.read()
print(os.fstat(fd).st_ino)
`

const place = mkdtempSync(join(tmpdir(), "cortexfs-names-"))
let f: Fixture

t.before(async () => {
  execFileSync("mount", ["-t", "tmpfs", "-o", "nr_inodes=0,size=8g,mode=755", "cortexfs-names", place])
  process.env.TMPDIR = place
  f = await makeFixture({ timeoutMs: 800_000 })
})
t.after(async () => {
  await f?.stack.stop()
  execFileSync("umount", ["-l", place])
  rmdirSync(place)
})

const status = (field: string) =>
  Number(new RegExp(`^${field}:\\s+(\\d+)`, "m").exec(readFileSync(`/proc/${f.host.child.pid}/status`, "utf8"))![1])
const rssMib = () => status("VmRSS") / 1024
const descriptors = () => readdirSync(`/proc/${f.host.child.pid}/fd`).length
const forget = () => execFileSync("/bin/sh", ["-c", "sync; echo 2 > /proc/sys/vm/drop_caches"])

/** Looks all names up, each once; gives what was wrong. */
async function look(): Promise<string> {
  const args = ["/usr/bin/python3", "-c", LOOK, f.at(`home/${OWNER}/agent/coder/data/many`)]
  const ended = await runProgram(args, { timeoutMs: 600_000 })
  return ended.code === 0 ? "" : ended.stdout + ended.stderr
}

t.test("names without end", async t => {
  const behind = f.behind(`home/${OWNER}/agent/coder/data/many`)
  makeBehind(behind, OWNER)
  execFileSync("/usr/bin/python3", ["-c", MAKE, behind])
  const kept = f.at(`home/${OWNER}/agent/coder/data/many/d0/n0`)
  const held = spawn("/usr/bin/env", ["-i", "/usr/bin/python3", "-c", HOLD, kept], {
    stdio: ["pipe", "pipe", "inherit"],
  })
  let said = ""
  held.stdout.setEncoding("utf8").on("data", text => (said += text))
  while (!said.includes("\n")) await new Promise(resolve => setTimeout(resolve, 10))
  forget()
  const before = { rss: rssMib(), fds: descriptors() }

  await t.test(
    "fuse.47 two million names leave the mount below 384 MiB, each stat right, all else unchanged",
    async t => {
      t.equal(await look(), "")
      const peak = status("VmHWM") / 1024
      t.ok(peak <= 384, `${peak} MiB at most`)
      t.comment(`RSS ${Math.round(before.rss)} MiB before, ${Math.round(peak)} at most`)
      held.stdin.end()
      await new Promise(resolve => held.once("exit", resolve))
      const [first, last] = said.trim().split("\n")
      t.equal(last, first, "the number that the open handle shows")
      t.equal((await runProgram(["/usr/bin/stat", "-c", "%i", kept])).stdout.trim(), first)
    },
  )

  await t.test("fuse.23 two million names that the kernel drops give back memory and descriptors", async t => {
    forget()
    const limit = before.rss + 64
    for (let waited = 0; waited < 100 && rssMib() > limit; waited++)
      await new Promise(resolve => setTimeout(resolve, 100))
    t.ok(rssMib() <= limit, `${before.rss} MiB before, ${rssMib()} after`)
    t.ok(descriptors() <= before.fds + 10, `${before.fds} descriptors before, ${descriptors()} after`)
    t.notMatch(f.host.stderr(), /forgets a node more often/)
    t.comment(`RSS ${Math.round(rssMib())} MiB after`)
  })
})
