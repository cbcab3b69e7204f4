// needs: root fuse strace
// What is durable: fsync through a mount is the backing descriptor's own, and so is its error.
import { execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import { chownSync, mkdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { makeStack } from "../harness/product.js"
import { runProgram } from "../harness/program.js"
import { makeFixture, OWNER } from "./fixture/stack.js"

t.setTimeout(120_000)

const home = `home/${OWNER}`

/** Syncs a file in both ways and its directory; prints the three results. */
const SYNC = `
import errno, os, sys
def e(f, *args):
    try:
        return f(*args) and "ok" or "ok"
    except OSError as fault:
        return errno.errorcode[fault.errno]
fd = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
os.write(fd, b"x" * 4096)
d = os.open(sys.argv[1], os.O_RDONLY)
print(e(os.fsync, fd), e(os.fdatasync, fd), e(os.fsync, d))
`

t.test("fuse.30 (calls) fsync, fdatasync and fsync of a directory are made on the backing descriptors", async t => {
  const f = await makeFixture()
  t.teardown(() => f.stack.stop())
  const log = join(f.stack.dir, "trace")
  const tracer = spawn("strace", ["-f", "-y", "-e", "trace=fsync,fdatasync", "-o", log, "-p", `${f.host.child.pid}`])
  await once(tracer.stderr!, "data")
  mkdirSync(f.at(`${home}/d`))
  const { stdout } = await runProgram(["/usr/bin/python3", "-c", SYNC, f.at(`${home}/d`)])
  tracer.kill("SIGINT")
  await once(tracer, "exit")
  t.equal(stdout.trim(), "ok ok ok")
  const behind = f.behind(`${home}/d`)
  const calls = [...readFileSync(log, "utf8").matchAll(/(f\w+)\(\d+<([^>]*)>/g)].map(match => [match[1], match[2]])
  t.same(calls, [
    ["fsync", `${behind}/file`],
    ["fdatasync", `${behind}/file`],
    ["fsync", behind],
  ])
})

t.test("fuse.30 (EIO) a backing device that fails to write fails the fsync of file and directory", async t => {
  const stack = await makeStack()
  const sh = (line: string) => execFileSync("/bin/sh", ["-ec", line], { encoding: "utf8" }).trim()
  const behind = join(stack.dataRoot, home)
  const disk = join(stack.dir, "disk")
  sh(`truncate -s 64M ${disk} && mkfs.ext4 -q -O ^has_journal -E nodiscard ${disk}`)
  mkdirSync(behind, { recursive: true })
  sh(`mount -o loop,errors=continue ${disk} ${behind}`)
  let stopHost: () => Promise<unknown> = async () => {}
  t.teardown(async () => {
    await stopHost()
    sh(`umount -l ${behind}`)
    await stack.stop()
  })
  chownSync(behind, OWNER, OWNER)
  stopHost = (await stack.startHost()).stop
  const at = join(stack.ctx, home)
  mkdirSync(join(at, "d"))
  const whole = await runProgram(["/usr/bin/python3", "-c", SYNC, join(at, "d")])
  t.equal(whole.stdout.trim(), "ok ok ok")
  const fill = `
import errno, os, sys
def e(f, *args):
    try:
        f(*args)
        return "ok"
    except OSError as fault:
        return errno.errorcode[fault.errno]
fd = os.open(sys.argv[1] + "/big", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"y" * (1 << 20), 0)
first = [e(os.fsync, fd)]
print("written", flush=True)
sys.stdin.readline()
os.pwrite(fd, b"z" * (1 << 20), 0)
first.append(e(os.fsync, fd))
os.rename(sys.argv[1] + "/d/file", sys.argv[1] + "/d/renamed")
d = os.open(sys.argv[1] + "/d", os.O_RDONLY)
print(*first, e(os.fsync, d))
`
  const writer = spawn("/usr/bin/python3", ["-c", fill, at], { stdio: ["pipe", "pipe", "inherit"] })
  let said = ""
  writer.stdout.setEncoding("utf8").on("data", text => (said += text))
  await once(writer.stdout, "data")
  // The disk loses all but its first part: what lies behind that can be written no more.
  sh(`truncate -s 4M ${disk} && losetup -c $(losetup -nO NAME -j ${disk})`)
  writer.stdin.end("go\n")
  await once(writer, "close")
  t.equal(said, "written\nok EIO EIO\n")
})
