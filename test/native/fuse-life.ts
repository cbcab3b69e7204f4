// needs: root fuse
// A mount from start to end: a busy TypeScript thread, waiting clients, deadlines, death, busy unmounts, self-access.
import { execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import { mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { type Fixture, startFixture } from "../fixture/native/fusemount.js"
import { abortMount, detachMount, findMountLine } from "../harness/mount.js"
import { asUser, runProgram } from "../harness/program.js"

t.setTimeout(240_000)

const pause = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

async function withMount(
  options: Parameters<typeof startFixture>[0],
  body: (m: Fixture) => Promise<void>,
): Promise<void> {
  const mount = await startFixture(options)
  try {
    await body(mount)
  } finally {
    await mount.stop()
  }
}

t.test("a busy TypeScript thread stops rendered nodes only", async t => {
  await withMount({}, async m => {
    writeFileSync(join(m.backing, "data/f"), "x")
    const busy = m.ask("busy", { ms: 1500 })
    await busy
    const seen = await m.py(`
def took(f):
    start = time.monotonic()
    f()
    return time.monotonic() - start
worst = 0
for i in range(50):
    worst = max(worst, took(lambda: [os.stat("data/f"), get("data/f"), put("data/n%d" % i, b"1"), os.listdir("data/one")]))
say([worst, took(lambda: get("status"))])`)
    t.ok(seen[0] < 0.5, `the slowest native round took ${seen[0]} s`)
    t.ok(seen[1] > 0.3, `the rendered node waited ${seen[1]} s`)
  })
})

t.test("a client that waits for TypeScript dies at once when killed, and gets EINTR on a signal", async t => {
  await withMount({}, async m => {
    await m.ask("render", { isHeld: true })
    const client = spawn("/bin/cat", [`${m.mountPoint}/status`], { stdio: "ignore" })
    for (let i = 0; (await m.ask("stats")).parked === 0 && i < 200; i++) await pause(10)
    const killedAt = Date.now()
    client.kill("SIGKILL")
    await once(client, "exit")
    t.ok(Date.now() - killedAt < 1000, "dead within a second")
    t.equal((await m.ask("stats")).parked, 0)
    const seen = await m.py(`
import signal
class Late(Exception): pass
def late(*_): raise Late()
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.3)
start = time.monotonic()
try: got = get("status")
except Late: got = "interrupted"
say([got, time.monotonic() - start])`)
    t.equal(seen[0], "interrupted")
    t.ok(seen[1] < 1.5)
    await m.ask("render", {})
    t.match((await m.sh("cat status")).stdout, /^render/)
  })
})

t.test("an upcall without an answer ends with EIO at its deadline, a lookup with ENOMEM", async t => {
  await withMount({ upcallTimeoutMs: 300, freshMs: 200 }, async m => {
    await m.ask("render", { isHeld: true })
    t.equal(await m.py(`say(e(get, "status"))`), "EIO")
    await pause(250)
    await m.ask("busy", { ms: 900 })
    t.match((await m.sh("stat hello")).stderr, /Cannot allocate memory/)
  })
})

t.test(
  "fuse.38 (no restart by the product) kill -9 of the server keeps what was written; then ENOTCONN; a new mount serves",
  async t => {
    const m = await startFixture()
    try {
      const client = m.py(`
fd = os.open("data/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
n = 0
try:
    while True:
        os.write(fd, b"%09d\\n" % n)
        n += 1
        if n % 100 == 0 and e(os.stat, "data/none") in ("ENOTCONN", "ECONNABORTED"): break
except OSError: pass
time.sleep(1.1)  # what the kernel has cached is good until its time to live
say([n, e(os.stat, "data"), e(get, "hello")])`)
      await pause(500)
      m.child.kill("SIGKILL")
      const [n, stat, read] = await client
      t.same([stat, read], ["ENOTCONN", "ENOTCONN"])
      const lines = readFileSync(join(m.backing, "data/log"), "utf8").split("\n").length - 1
      t.ok(lines >= n && n > 0, `${lines} lines are stored, ${n} were acknowledged`)
      t.equal(findMountLine(m.mountPoint)?.type, "fuse.cortexfs")
      detachMount(m.mountPoint)
      const second = await startFixture({ backing: m.backing, mountPoint: m.mountPoint })
      t.equal((await second.sh("cat hello")).stdout, "hello\n")
      await second.stop()
    } finally {
      await m.stop()
      t.notOk(findMountLine(m.mountPoint))
    }
  },
)

t.test("two mounts of one backing tree serve side by side", async t => {
  await withMount({}, async m => {
    await withMount({ backing: m.backing }, async other => {
      const seen = await m.py(`
o = ${JSON.stringify(other.mountPoint)} + "/"
put("data/f", b"from one")
os.mkdir(o + "data/d")
os.rename("data/f", "data/d/g")
say([get(o + "data/d/g"), os.stat(o + "data/d/g").st_ino == os.stat("data/d/g").st_ino, e(os.rename, "data/d/g", o + "data/x")])`)
      t.same(seen, ["from one", true, "EXDEV"])
    })
  })
})

t.test(
  "fuse.2 (unmount only) a stop with open handles and waiting readers answers all of them and leaves a plain directory",
  async t => {
    const m = await startFixture()
    await m.ask("render", { isHeld: true })
    const holder = m.py(`
put("data/f", b"x")
fd = os.open("data/f", os.O_RDONLY)
got = []
def reader(): got.append(e(get, "status"))
readers = [threading.Thread(target=reader) for i in range(10)]
for r in readers: r.start()
for r in readers: r.join()
say([len(got), all(isinstance(g, str) and g.isupper() for g in got)])`)
    for (let i = 0; (await m.ask("stats")).parked < 10 && i < 300; i++) await pause(10)
    const startedAt = Date.now()
    await m.ask("stop")
    t.equal(await m.ended, "unmounted")
    t.ok(Date.now() - startedAt < 5000)
    t.same(await holder, [10, true])
    t.notOk(findMountLine(m.mountPoint))
    await m.stop()
  },
)

t.test("an outside umount ends the server with exit 0", async t => {
  const m = await startFixture()
  execFileSync("umount", [m.mountPoint])
  t.equal(await m.ended, "unmounted")
  if (m.child.exitCode === null) await once(m.child, "exit")
  t.equal(m.child.exitCode, 0)
  await m.stop()
})

t.test("a copy of the mount in another namespace keeps no stop waiting", async t => {
  const m = await startFixture()
  const other = spawn("/usr/bin/unshare", ["-m", "--propagation", "private", "/bin/sleep", "20"], { stdio: "ignore" })
  try {
    await pause(200)
    const startedAt = Date.now()
    await m.ask("stop")
    t.equal(await m.ended, "unmounted")
    t.ok(Date.now() - startedAt < 4000)
    t.notOk(findMountLine(m.mountPoint))
  } finally {
    other.kill("SIGKILL")
    await m.stop()
  }
})

t.test("an aborted connection ends the server with its reason and leaves a plain directory", async t => {
  const m = await startFixture()
  await m.ask("render", { isHeld: true })
  const client = m.py(`say(e(get, "status"))`)
  for (let i = 0; (await m.ask("stats")).parked === 0 && i < 300; i++) await pause(10)
  abortMount(m.mountPoint)
  t.match(await m.ended, /^error: .*aborted/)
  t.match(await client, /^(ECONNABORTED|ENOTCONN)$/)
  t.notOk(findMountLine(m.mountPoint))
  await m.stop()
})

t.test("process.exit with a mount in service unmounts it", async t => {
  const m = await startFixture()
  const client = m.py(`
fd = os.open("data/one", os.O_RDONLY)
time.sleep(1)
say(e(os.listdir, "data"))`)
  await pause(300)
  m.child.send({ id: 99, command: "exit" })
  if (m.child.exitCode === null) await once(m.child, "exit")
  t.notOk(findMountLine(m.mountPoint))
  t.type(await client, "string")
  await m.stop()
})

t.test("fuse.4 (engine only) the server itself is refused with EDEADLK where it would wait for itself", async t => {
  await withMount({ freshMs: 100 }, async m => {
    await pause(150)
    const before = await m.ask("stats")
    t.equal((await m.ask("stat", { path: `${m.mountPoint}/hello` })).errno, -35)
    await m.sh("stat hello")
    t.equal((await m.ask("read", { path: `${m.mountPoint}/status` })).errno, -35)
    t.equal((await m.ask("stats")).refreshes - before.refreshes, 1)
    await m.sh("exec 3<>data/kept; echo kept >&3")
    t.equal((await m.ask("read", { path: `${m.mountPoint}/data/kept` })).text, "kept\n", "native nodes answer even so")
  })
})

t.test("a mount that cannot be made rejects with the errno and leaves nothing", async t => {
  await t.rejects(startFixture({ mountPoint: "/nonexistent/mount" }), { code: "ENOENT" })
})

t.test(
  "fuse.44 (invalidation and expiry only) a bind laid over a name survives invalidations and expired times to live",
  async t => {
    await withMount({ freshMs: 100 }, async m => {
      mkdirSync(join(m.backing, "data/one/over"), { recursive: true })
      const client = m.sh(
        `unshare -m --propagation private sh -c 'mount -t tmpfs none data/one/over && touch data/one/over/in && mount -t tmpfs none zz && touch zz/in; sleep 3; ls data/one/over zz; umount zz data/one/over'`,
      )
      await pause(400)
      for (let i = 0; i < 50; i++) {
        for (const path of ["data/one/over", "data/one", "data", "zz", "zz/a", "data/one/over/x"])
          await m.ask("invalidate", { path })
        await m.sh("stat data/one/over zz > /dev/null")
      }
      t.equal((await client).stdout.replace(/\s+/g, " "), "data/one/over: in zz: in ")
    })
  },
)

t.test(
  "fuse.49 (fusermount3) an ordinary user mounts without privilege; passthrough is 0, others are refused",
  async t => {
    // A private mount namespace with a device node that the user may open; fusermount3 wants an account: nobody has one.
    const uid = 65534
    const script = `set -e
mount -t tmpfs none /dev/shm
mknod -m 0666 /dev/shm/fuse c 10 229
mount --bind /dev/shm/fuse /dev/fuse
exec setpriv --reuid=${uid} --regid=65534 --clear-groups -- "$@"`
    const dir = execFileSync("mktemp", ["-d", "/tmp/cortexfs-user-XXXXXX"]).toString().trim()
    mkdirSync(join(dir, "b/data"), { recursive: true })
    mkdirSync(join(dir, "m"))
    execFileSync("chown", ["-R", `${uid}:65534`, dir])
    const m = await startFixture({
      prefix: ["/usr/bin/unshare", "-m", "--propagation", "private", "/bin/bash", "-c", script, "bash"],
      backing: join(dir, "b"),
      mountPoint: join(dir, "m"),
      rootless: true,
      allowOther: false,
      ownUid: uid,
    })
    try {
      const run = async (code: string, as = uid) => {
        const ended = await runProgram(
          ["/usr/bin/nsenter", "-m", "-t", String(m.child.pid), "--"].concat(
            asUser(["/usr/bin/env", "python3", "-c", code], { uid: as }),
          ),
        )
        return ended.code === 0 ? ended.stdout.trim() : ended.stderr
      }
      t.match(
        await run(`print(open("/proc/self/mountinfo").read())`),
        new RegExp(`${dir}/m rw,nosuid,nodev,noatime .*fuse.cortexfs cortexfs`),
      )
      t.equal(
        await run(`
import os
os.chdir("${dir}/m")
open("data/f", "w").write("mine")
os.mkdir("data/d"); os.rename("data/f", "data/d/f")
try: os.chown("data/d/f", ${uid}, 65534); c = "ok"
except PermissionError: c = "EPERM"
print(open("hello").read().strip(), open("status").read().split()[0], open("data/d/f").read(), os.stat("data/d/f").st_uid, c)`),
        `hello render mine ${uid} EPERM`,
      )
      t.equal((await m.ask("stats")).passthrough, 0)
      t.match(await run(`import os; os.stat("${dir}/m/hello")`, 0), /PermissionError/)
      await m.ask("stop")
      t.equal(await m.ended, "unmounted")
    } finally {
      await m.stop()
      execFileSync("rm", ["-rf", dir])
    }
  },
)
