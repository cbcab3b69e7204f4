// needs: root fuse strace
// cortexfs-mount as a program: its options, exit codes, start, stop, crash, abort, and a switch of the generation.
import { execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import t from "tap"
import { findMountAt, listMountsAt } from "../../src/native/mounts.js"
import { detachMount, makeMountPoint } from "../harness/mount.js"
import { currentGeneration, makeStack, type Stack } from "../harness/product.js"
import { cleanEnv, runProgram, startProgram, stopProgram } from "../harness/program.js"
import { act1 } from "./fixture/actor.js"

let stack: Stack
let program: string
let source: string
let common: string[]

t.before(async () => {
  stack = await makeStack()
  program = join(stack.prefix, "bin/cortexfs-mount")
  source = join(stack.storage, "current")
  common = [program, "--source", source, "--run", stack.run, "--config", stack.config]
})
t.after(() => stack.stop())

const sleep = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

t.test("fuse.1 the mount has its type and options, and a second server leaves a live one alone", async t => {
  const host = await stack.startHost()
  const mount = findMountAt(stack.ctx)!
  t.equal(mount.type, "fuse.cortexfs")
  t.equal(mount.source, "cortexfs")
  for (const option of ["rw", "nosuid", "nodev", "noatime", "default_permissions", "allow_other"])
    t.ok([...mount.options, ...mount.superOptions].includes(option), option)
  const second = await runProgram([...common, stack.ctx])
  t.equal(second.code, 69)
  t.match(second.stderr, /^cortexfs-mount: EBUSY: [^\n]+\n$/)
  t.equal(listMountsAt(stack.ctx).length, 1)
  t.match(readFileSync(join(stack.ctx, "status"), "utf8"), `pid=${host.child.pid}\n`)
  for (const name of [".x", "a/b", "x.d", ""]) {
    const bad = await runProgram([...common, "--agent", name, stack.ctx])
    t.equal(bad.code, 2, JSON.stringify(name))
    t.match(bad.stderr, /^cortexfs-mount: usage: [^\n]+\n$/)
  }
  t.equal(await host.stop(), 0)
})

t.test("bad arguments exit 2 and a missing source, agent or mount point exits 69, each with one line", async t => {
  const rows: [args: string[], code: number, word: string][] = [
    [[], 2, "usage"],
    [["--source", source], 2, "usage"],
    [["--source", source, stack.ctx, "more"], 2, "usage"],
    [["--source", source, "--unknown", stack.ctx], 2, "usage"],
    [["--abort", stack.ctx, stack.ctx], 2, "usage"],
    [["--source", join(stack.dir, "nothing"), stack.ctx], 69, "ENOENT"],
    [["--source", program, stack.ctx], 69, "ENOTDIR"],
    [["--source", source, "--agent", "nobody", stack.ctx], 69, "ENOENT"],
    [["--source", source, join(stack.dir, "nothing")], 69, "ENOENT"],
  ]
  for (const [args, code, word] of rows) {
    const ended = await runProgram([program, ...args])
    t.equal(ended.code, code, args.join(" "))
    t.match(ended.stderr, new RegExp(`^cortexfs-mount: ${word}: [^\\n]+\\n$`), args.join(" "))
  }
  t.equal(findMountAt(stack.ctx), undefined)
})

t.test("fuse.50 (owner) a malformed owner refuses its agent's view with EINVAL", async t => {
  const control = join(currentGeneration(stack), "agent/worker.d/owner")
  const owner = readFileSync(control, "utf8")
  for (const text of ["", "01\n", "x\n", owner.trimEnd()]) {
    writeFileSync(control, text)
    const ended = await runProgram([...common, "--agent", "worker", join(stack.run, "mount/worker")])
    t.equal(ended.code, 69, JSON.stringify(text))
    t.match(ended.stderr, /^cortexfs-mount: EINVAL: /)
  }
  writeFileSync(control, owner)
})

t.test(
  "fuse.2 (not the withheld INIT) READY comes when the first call succeeds, and SIGTERM answers every reader",
  async t => {
    const { createSocket, dir, messages } = await listenNotify()
    const child = startProgram([...common, stack.ctx], {
      env: cleanEnv({ NOTIFY_SOCKET: join(dir, "notify") }),
      stdio: ["ignore", "pipe", "pipe"],
    })
    let stdout = ""
    child.stdout!.on("data", text => (stdout += text))
    while (!messages.some(message => message.startsWith("READY=1"))) await sleep(2)
    t.equal((await runProgram(["/bin/cat", join(stack.ctx, "status")])).code, 0)
    const readers = Array.from({ length: 10 }, () =>
      spawn("/bin/sh", ["-c", 'while :; do cat "$0" >/dev/null || exit 9; done', join(stack.ctx, "status")], {
        stdio: ["ignore", "ignore", "pipe"],
      }),
    )
    const ends = readers.map(reader => once(reader, "exit"))
    await sleep(300)
    const started = Date.now()
    t.equal(await stopProgram(child), 0)
    t.ok(Date.now() - started < 5000)
    for (const end of ends) t.equal((await end)[0], 9, "each reader ended with an errno")
    t.equal(findMountAt(stack.ctx), undefined)
    t.same(readdirSync(stack.ctx), [])
    t.ok(messages.some(message => message.startsWith("STOPPING=1")))
    t.equal(stdout, "")
    createSocket.kill()
  },
)

t.test("fuse.2 (INIT withheld) no READY comes before the kernel's INIT is answered", async t => {
  const { createSocket, dir, messages } = await listenNotify()
  // The first reply of each serving thread, INIT's among them, is held back for some seconds.
  const hold = ["/usr/bin/strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=writev"]
  const child = startProgram([...hold, "-e", "inject=writev:delay_enter=3s:when=1", ...common, stack.ctx], {
    env: cleanEnv({ NOTIFY_SOCKET: join(dir, "notify") }),
    stdio: ["ignore", "ignore", "inherit"],
  })
  const isReady = () => messages.some(message => message.startsWith("READY=1"))
  while (findMountAt(stack.ctx) === undefined) await sleep(2)
  await sleep(1000)
  t.notOk(isReady(), "mounted for a second, and not ready")
  while (!isReady()) await sleep(5)
  t.equal((await runProgram(["/bin/cat", join(stack.ctx, "status")])).code, 0)
  // The tracer hands the signal on to nobody: the server itself is told.
  const pid = /^pid=(\d+)$/m.exec(readFileSync(join(stack.ctx, "status"), "utf8"))?.[1]
  process.kill(Number(pid), "SIGTERM")
  await once(child, "exit")
  t.equal(findMountAt(stack.ctx), undefined)
  createSocket.kill()
})

/** A process that listens for sd_notify datagrams and prints them, since Node.js has no such socket. */
async function listenNotify() {
  const dir = join(stack.dir, "notify")
  mkdirSync(dir, { recursive: true })
  rmSync(join(dir, "notify"), { force: true })
  const code =
    "import socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM)\ns.bind(sys.argv[1])\nprint('bound',flush=True)\n" +
    "while True: print(s.recv(4096).decode().replace(chr(10),';'),flush=True)"
  const createSocket = spawn("/usr/bin/python3", ["-c", code, join(dir, "notify")], {
    stdio: ["ignore", "pipe", "inherit"],
  })
  const messages: string[] = []
  createSocket
    .stdout!.setEncoding("utf8")
    .on("data", (text: string) => messages.push(...text.split("\n").filter(Boolean)))
  while (messages.length === 0) await sleep(5)
  return { createSocket, dir, messages }
}

t.test("an open file does not keep the server from stopping within 5 s", async t => {
  const host = await stack.startHost()
  const holder = spawn("/bin/sh", ["-c", 'exec 9<"$0"; exec sleep 60', join(stack.ctx, "status")], { stdio: "ignore" })
  await sleep(200)
  const started = Date.now()
  t.equal(await host.stop(), 0)
  t.ok(Date.now() - started < 5000)
  t.equal(findMountAt(stack.ctx), undefined)
  holder.kill("SIGKILL")
})

t.test("an outside umount ends the server with 0", async t => {
  const host = await stack.startHost()
  const exit = once(host.child, "exit")
  execFileSync("umount", ["-i", stack.ctx])
  t.equal((await exit)[0], 0)
  await host.stop()
})

t.test("the view's mount point is made below the run directory and removed at a clean stop", async t => {
  const view = await stack.startView("coder")
  t.equal(view.mountPoint, join(stack.run, "mount/coder"))
  t.equal(await view.stop(), 0)
  t.notOk(existsSync(view.mountPoint))
  t.ok(existsSync(stack.ctx), "another mount point stays")
})

t.test("fuse.3 a switched current changes nothing in a running mount", async t => {
  const host = await stack.startHost()
  const before = readFileSync(join(stack.ctx, "status"), "utf8")
  const old = currentGeneration(stack)
  const next = `${old}x`
  execFileSync("cp", ["-a", old, next])
  writeFileSync(join(next, "agent/coder.d/cwd"), "/elsewhere\n")
  const link = join(stack.storage, ".current-0")
  symlinkSync(`${readlinkSync(source)}x`, link)
  renameSync(link, source)
  await sleep(1100)
  const generationOf = (text: string) => /^generation=(.*)$/m.exec(text)![1]
  t.equal(generationOf(readFileSync(join(stack.ctx, "status"), "utf8")), generationOf(before))
  t.equal(readFileSync(join(stack.ctx, "agent/coder.d/cwd"), "utf8"), "/workspace\n")
  t.equal(await host.stop(), 0)
  const again = await stack.startHost()
  t.equal(generationOf(readFileSync(join(stack.ctx, "status"), "utf8")), `${generationOf(before)}x`)
  t.equal(readFileSync(join(stack.ctx, "agent/coder.d/cwd"), "utf8"), "/elsewhere\n")
  t.equal(await again.stop(), 0)
  const back = join(stack.storage, ".current-1")
  symlinkSync(`generations/${old.slice(old.lastIndexOf("/") + 1)}`, back)
  renameSync(back, source)
  rmSync(next, { recursive: true })
})

const WRITER = `
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
count = 0
line = b"x" * 63 + b"\\n"
try:
    while True:
        os.write(fd, line)
        count += 1
        if count == 100: print("running", flush=True)
        if os.path.exists(sys.argv[2]): break
except OSError: pass
print(count, flush=True)
os._exit(0)
`

t.test("fuse.38 after kill -9 every acknowledged byte is behind, and a new start detaches the dead mount", async t => {
  const host = await stack.startHost({ env: cleanEnv({ CORTEXFS_PASSTHROUGH: "0" }) })
  mkdirSync(join(stack.dataRoot, "shared/lab"), { recursive: true })
  const stopFile = join(stack.dir, "stop")
  const writers = [0, 1, 2, 3].map(i =>
    spawn("/usr/bin/python3", ["-c", WRITER, join(stack.ctx, `shared/lab/w${i}`), stopFile], {
      stdio: ["ignore", "pipe", "inherit"],
    }),
  )
  const texts = writers.map(() => "")
  const ends = writers.map(async (writer, i) => {
    writer.stdout!.setEncoding("utf8").on("data", text => (texts[i] += text))
    await once(writer, "close")
  })
  while (!texts.every(text => text.startsWith("running"))) await sleep(5)
  host.child.kill("SIGKILL")
  await once(host.child, "exit")
  writeFileSync(stopFile, "")
  await Promise.all(ends)
  for (const [i, text] of texts.entries()) {
    const acknowledged = Number(text.trim().split("\n").at(-1)) * 64
    t.ok(acknowledged >= 6400)
    t.ok(statSync(join(stack.dataRoot, `shared/lab/w${i}`)).size >= acknowledged, `writer ${i}`)
  }
  t.equal(await act1(0, "statfs", stack.ctx), "ENOTCONN")
  await sleep(1100)
  t.equal(await act1(0, "stat", stack.ctx), "ENOTCONN", "also what the kernel had cached")
  const again = await stack.startHost()
  t.equal(listMountsAt(stack.ctx).length, 1)
  t.match(readFileSync(join(stack.ctx, "status"), "utf8"), "state=mounted\n")
  t.equal(await again.stop(), 0)
  await host.stop()

  execFileSync("mount", ["-t", "tmpfs", "foreign", stack.ctx])
  const refused = await runProgram([...common, stack.ctx])
  t.equal(refused.code, 69)
  t.match(refused.stderr, /^cortexfs-mount: EBUSY: /)
  t.equal(findMountAt(stack.ctx)?.type, "tmpfs")
  execFileSync("umount", [stack.ctx])
})

t.test("two dead mounts stacked on one point are both detached", async t => {
  const first = await stack.startHost()
  const view = await stack.startView("coder")
  execFileSync("mount", ["-i", "--bind", view.mountPoint, stack.ctx])
  t.equal(listMountsAt(stack.ctx).length, 2)
  for (const { child } of [first, view]) {
    child.kill("SIGKILL")
    await once(child, "exit")
  }
  const again = await stack.startHost()
  t.equal(listMountsAt(stack.ctx).length, 1)
  t.match(readFileSync(join(stack.ctx, "status"), "utf8"), `pid=${again.child.pid}\n`)
  t.equal(await again.stop(), 0)
  await view.stop()
})

t.test("fuse.39 abort frees callers of a stopped server within a second", async t => {
  const host = await stack.startHost()
  host.child.kill("SIGSTOP")
  const waiting = runProgram([
    "/usr/bin/python3",
    "-c",
    "import os,sys;os.listdir(sys.argv[1])",
    join(stack.ctx, "tool"),
  ])
  await sleep(300)
  const started = Date.now()
  const aborted = await runProgram([program, "--abort", stack.ctx])
  t.equal(aborted.code, 0, aborted.stderr)
  t.ok(Date.now() - started < 1000)
  const ended = await waiting
  t.not(ended.code, 0)
  t.match(ended.stderr, /Errno (103|107|4)\]/)
  t.equal(findMountAt(stack.ctx), undefined)
  host.child.kill("SIGCONT")
  host.child.kill("SIGKILL")
  await host.stop()
  t.equal((await runProgram([program, "--abort", stack.ctx])).code, 0, "nothing to abort is no fault")
})

t.test("a mount point below the run directory with a plus is escaped and its agent's name decoded", async t => {
  const generation = currentGeneration(stack)
  const controls = join(generation, "agent/c++.d")
  execFileSync("cp", ["-a", join(generation, "agent/worker.d"), controls])
  const mountPoint = join(stack.run, "mount/c\\x2b\\x2b")
  const server = startProgram([...common, "--agent", "c\\x2b\\x2b", mountPoint], { stdio: "inherit" })
  while (findMountAt(mountPoint)?.type !== "fuse.cortexfs") await sleep(10)
  t.match(readFileSync(join(mountPoint, "status"), "utf8"), "agent=c++\n")
  t.equal(await stopProgram(server), 0)
  t.notOk(existsSync(mountPoint))
  rmSync(controls, { recursive: true })
})

t.test("a mount point that is missing elsewhere is not made", async t => {
  const mountPoint = join(stack.dir, "gone")
  const removePoint = makeMountPoint(mountPoint)
  removePoint()
  t.equal((await runProgram([...common, mountPoint])).code, 69)
  t.notOk(existsSync(mountPoint))
  detachMount(mountPoint)
})
