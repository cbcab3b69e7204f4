import { spawn, spawnSync } from "node:child_process"
import { once } from "node:events"
import {
  closeSync,
  fstatSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs"
import { connect, createServer } from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import t from "tap"
import * as sys from "../../src/native/sys.js"

const dir = mkdtempSync(join(tmpdir(), "cortexfs-descriptor-"))
t.teardown(() => rmSync(dir, { recursive: true }))

t.test("getrandom gives the bytes that are asked for, and no more than 1 MiB", async t => {
  t.equal(sys.getrandom(16).length, 16)
  t.equal(sys.getrandom(0).length, 0)
  t.notSame(sys.getrandom(16), sys.getrandom(16))
  t.throws(() => sys.getrandom(-1), { code: "EINVAL" })
  t.throws(() => sys.getrandom((1 << 20) + 1), { code: "EINVAL" })
})

t.test("a lock that is held elsewhere is refused at once or waited for", async t => {
  const path = join(dir, "lock")
  const [a, b, c] = [openSync(path, "w"), openSync(path, "w"), openSync(path, "w")]
  t.equal(sys.flock(a, "sh"), true)
  t.equal(sys.flock(b, "sh"), true)
  t.equal(sys.flock(c, "ex"), false)
  let isHeld = false
  const wait = sys.flockWait(c, "ex").then(() => {
    isHeld = true
  })
  sys.flock(a, "un")
  await sleep(30)
  t.equal(isHeld, false)
  closeSync(b)
  await wait
  t.equal(sys.flock(a, "sh"), false)
  closeSync(c)
  t.equal(sys.flock(a, "ex"), true)
  closeSync(a)
  t.throws(() => sys.flock(a, "ex"), { code: "EBADF", syscall: "flock" })
  await t.rejects(sys.flockWait(a, "ex"), { code: "EBADF" })
})

t.test("many waits for locks at once leave the thread pool free", async t => {
  const path = join(dir, "many")
  const holder = openSync(path, "w")
  sys.flock(holder, "ex")
  const fds = Array.from({ length: 16 }, () => openSync(path, "w"))
  const waits = fds.map(fd => sys.flockWait(fd, "sh"))
  const { readFile } = await import("node:fs/promises")
  t.equal(await Promise.race([readFile(path, "utf8"), sleep(2000, "late")]), "")
  closeSync(holder)
  await Promise.all(waits)
  fds.forEach(closeSync)
})

t.test("a pipe and a memory file are close-on-exec, and the file is sealed", async t => {
  const [read, write] = sys.pipe()
  writeSync(write, "x")
  const byte = Buffer.alloc(1)
  t.equal(readSync(read, byte), 1)
  const fd = sys.memfd("note", Buffer.from("text"))
  t.equal(readFileSync(`/proc/self/fd/${fd}`, "utf8"), "text")
  t.equal(fstatSync(fd).size, 4)
  t.throws(() => writeSync(fd, "y"), { code: "EPERM" })
  const isCloexec = (fd: number) => /flags:\t0?2\d{6}/.test(readFileSync(`/proc/self/fdinfo/${fd}`, "utf8"))
  for (const one of [read, write, fd]) t.ok(isCloexec(one))
  sys.closeOnExec(fd, false)
  t.notOk(isCloexec(fd))
  for (const one of [read, write, fd]) closeSync(one)
  t.throws(() => sys.closeOnExec(fd, true), { code: "EBADF" })
})

t.test("copyRange copies between files, out of /proc, and up to a limit", async t => {
  const data = sys.getrandom(1 << 20)
  writeFileSync(join(dir, "src"), Buffer.concat([data, data, data]))
  const copy = (path: string, size: number) => {
    const [from, to] = [openSync(path, "r"), openSync(join(dir, "dst"), "w")]
    const copied = sys.copyRange(from, to, size)
    for (const fd of [from, to]) closeSync(fd)
    return [copied, readFileSync(join(dir, "dst"))] as const
  }
  const [copied, bytes] = copy(join(dir, "src"), 2_500_000)
  t.equal(copied, 2_500_000)
  t.ok(bytes.equals(Buffer.concat([data, data, data]).subarray(0, 2_500_000)))
  t.equal(copy(join(dir, "src"), 1 << 30)[0], 3 << 20)
  t.match(copy("/proc/self/status", 1 << 20)[1].toString(), /^Name:/)
})

t.test("reflink says whether the file system shares blocks; syncfs flushes it", async t => {
  const [src, dst] = [openSync(join(dir, "src"), "r"), openSync(join(dir, "clone"), "w")]
  const isShared = sys.reflink(dst, src)
  t.equal(fstatSync(dst).size, isShared ? 3 << 20 : 0)
  sys.syncfs(dst)
  for (const fd of [src, dst]) closeSync(fd)
  t.throws(() => sys.syncfs(dst), { code: "EBADF" })
})

t.test("the peer of a local socket is known by pid, uid and gid, and by a descriptor", async t => {
  const path = join(dir, "sock")
  const server = createServer().listen(path)
  await once(server, "listening")
  const client = connect(path)
  const [peer] = await once(server, "connection")
  const { fd } = peer._handle
  t.strictSame(sys.peerCred(fd), { pid: process.pid, uid: process.getuid!(), gid: process.getgid!() })
  const pidfd = sys.peerPidfd(fd)
  if (pidfd !== undefined) {
    t.match(readFileSync(`/proc/self/fdinfo/${pidfd}`, "utf8"), new RegExp(`Pid:\t${process.pid}\n`))
    closeSync(pidfd)
  }
  client.destroy()
  peer.destroy()
  server.close()
  const [a, b] = sys.socketPair()
  t.equal(sys.peerCred(a).pid, process.pid)
  for (const one of [a, b]) closeSync(one)
  const plainFd = openSync("/dev/null", "r")
  t.throws(() => sys.peerCred(plainFd), { code: "ENOTSOCK" })
  closeSync(plainFd)
})

t.test("sdNotify sends one datagram to a path or an abstract address, and nothing without one", async t => {
  delete process.env.NOTIFY_SOCKET
  t.equal(sys.sdNotify("READY=1"), false)
  const receive =
    "use Socket; socket(S, PF_UNIX, SOCK_DGRAM, 0); bind(S, sockaddr_un($ARGV[0])) or die; $| = 1; print qq(up\\n); recv(S, $m, 4096, 0); print $m"
  for (const address of [join(dir, "notify"), `\0cortexfs-test-${process.pid}`]) {
    const listener = spawn("perl", ["-e", receive.replace("$ARGV[0]", `"${address.replace("\0", "\\0")}"`)], {
      stdio: ["ignore", "pipe", "inherit"],
    })
    await once(listener.stdout, "data")
    process.env.NOTIFY_SOCKET = address.replace("\0", "@")
    t.equal(sys.sdNotify("READY=1\nSTATUS=up"), true)
    const [text] = await once(listener.stdout, "data")
    t.equal(String(text), "READY=1\nSTATUS=up")
  }
  process.env.NOTIFY_SOCKET = "relative"
  t.throws(() => sys.sdNotify("READY=1"), { code: "EINVAL" })
  process.env.NOTIFY_SOCKET = join(dir, "nobody")
  t.throws(() => sys.sdNotify("READY=1"), { code: "ENOENT", syscall: "sendto" })
  delete process.env.NOTIFY_SOCKET
})

t.test("listenFds takes the descriptors of this process only, and the variables leave the environment", async t => {
  const set = (pid: number, count: string) =>
    Object.assign(process.env, { LISTEN_PID: String(pid), LISTEN_FDS: count, LISTEN_FDNAMES: "x" })
  set(process.pid + 1, "1")
  t.strictSame(sys.listenFds(), [])
  t.equal(process.env.LISTEN_FDS, undefined)
  for (const count of ["-1", "x", "5000", "0"]) {
    set(process.pid, count)
    t.strictSame(sys.listenFds(), [])
  }
  t.equal(process.env.LISTEN_PID, undefined)
})

t.test("a process is known by its descriptor: signalled, waited for, and gone", async t => {
  const child = spawn("/bin/sleep", ["60"], { detached: true, stdio: "ignore" })
  const pidfd = sys.pidfdOpen(child.pid!)
  t.equal(await sys.pidfdWait(pidfd, 20), false)
  const exit = once(child, "exit")
  t.equal(sys.pidfdSignal(pidfd, 15, { group: true }), true)
  t.equal(await sys.pidfdWait(pidfd, 5_000), true)
  t.strictSame(await exit, [null, "SIGTERM"])
  t.equal(sys.pidfdSignal(pidfd, 9), false)
  t.equal(sys.pidfdSignal(pidfd, 9, { group: true }), false)
  closeSync(pidfd)
  t.throws(() => sys.pidfdOpen(child.pid!), { code: "ESRCH" })
  await t.rejects(sys.pidfdWait(pidfd, 10), { code: "EBADF" })
})

t.test("an account has its primary group and its other groups; a uid without one is undefined", async t => {
  const root = sys.findAccount(0)!
  t.equal(root.name, "root")
  t.equal(root.gid, 0)
  t.notOk(root.groups.includes(0))
  const groups = spawnSync("id", ["-G", "root"], { encoding: "utf8" }).stdout.trim().split(" ").map(Number)
  t.strictSame(new Set([root.gid, ...root.groups]), new Set(groups))
  t.equal(sys.findAccount(3_999_999_999), undefined)
})

t.test("the flags of a mount are those that mount(2) knows", async t => {
  const fd = openSync("/proc/self/status", "r")
  const options = readFileSync("/proc/self/mounts", "utf8")
    .split("\n")
    .find(line => line.split(" ")[1] === "/proc")!
    .split(" ")[3]!
    .split(",")
  const flags = sys.mountFlags(fd)
  t.equal((flags & sys.MS_NOEXEC) !== 0, options.includes("noexec"))
  t.equal((flags & sys.MS_NOSUID) !== 0, options.includes("nosuid"))
  closeSync(fd)
})

t.test("the soft limit of descriptors is set up to the hard one", async t => {
  const limits = () => /Max open files\s+(\d+)\s+(\d+)/.exec(readFileSync("/proc/self/limits", "utf8"))!
  const [, soft, hard] = limits()
  sys.setNofileLimit(256)
  t.equal(limits()[1], "256")
  sys.setNofileLimit(2 ** 31)
  t.equal(limits()[1], hard)
  sys.setNofileLimit(Number(soft))
})
