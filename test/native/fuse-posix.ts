// needs: root fuse
// The same calls on the mount and on its backing file system come out the same, with and without passthrough.
import { mkdirSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import t from "tap"
import { type Fixture, startFixture } from "../fixture/native/fusemount.js"
import { runProgram } from "../harness/program.js"

t.setTimeout(240_000)

const SCRIPT = fileURLToPath(new URL("../fixture/native/posix.py", import.meta.url))

async function runChecks(dir: string): Promise<Record<string, unknown>> {
  const ended = await runProgram(["/usr/bin/env", "python3", SCRIPT, dir], { timeoutMs: 50_000 })
  if (ended.code !== 0) throw new Error(ended.stderr)
  return JSON.parse(ended.stdout)
}

for (const passthrough of [true, false]) {
  const how = passthrough ? "with passthrough" : "without passthrough"

  t.test(
    `fuse.34 (no locks, xattr, inotify) every call on plain nodes comes out as on the backing side, ${how}`,
    async t => {
      const m = await startFixture({ passthrough })
      try {
        mkdirSync(join(m.backing, "plain"))
        mkdirSync(join(m.backing, "data/plain"))
        t.equal((await m.ask("stats")).passthrough, passthrough ? 1 : 0)
        const [backing, mounted] = [
          await runChecks(join(m.backing, "plain")),
          await runChecks(join(m.mountPoint, "data/plain")),
        ]
        for (const name of Object.keys(backing)) t.same(mounted[name], backing[name], name)
        t.same((await m.ask("stats")).handles, 0, "no handle is left open")
      } finally {
        await m.stop()
      }
    },
  )

  t.test(`O_TMPFILE, devices and ioctl have the errors of fuse.md 5.1, ${how}`, async t => {
    const m = await startFixture({ passthrough })
    try {
      const seen = await m.py(`
put("data/f", b"x")
fd = os.open("data/f", os.O_RDONLY)
say([e(os.open, "data", os.O_TMPFILE | os.O_RDWR), e(os.mknod, "data/c", 0o20600, 259), e(os.mknod, "data/b", 0o60600, 259), e(fcntl.ioctl, fd, 0x80086601, b"\\0" * 8),
     libc.fallocate(os.open("data/f", os.O_RDWR), 8, ctypes.c_long(0), ctypes.c_long(4096)), errno.errorcode[ctypes.get_errno()]])`)
      t.same(seen, ["EOPNOTSUPP", "EPERM", "EPERM", "ENOTTY", -1, "ENOTSUP"])
    } finally {
      await m.stop()
    }
  })

  t.test(`fuse.31 (one mount and the backing path) four appenders lose and tear no line, ${how}`, async t => {
    const m = await startFixture({ passthrough })
    try {
      const seen = await m.py(`
paths = ["data/log", "data/log", "data/log", ${JSON.stringify(join(m.backing, "data/log"))}]
put("data/log", b"")
pids = []
for who, path in enumerate(paths):
  pid = os.fork()
  if pid == 0:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for i in range(1000): os.write(fd, (b"%d %05d " % (who, i)).ljust(99, b".") + b"\\n")
    os._exit(0)
  pids.append(pid)
for pid in pids: os.waitpid(pid, 0)
lines = open(${JSON.stringify(join(m.backing, "data/log"))}).read().splitlines()
say([len(lines), len(set(lines)), all(len(l) == 99 for l in lines)])`)
      t.same(seen, [4000, 4000, true])
    } finally {
      await m.stop()
    }
  })

  t.test(
    `fuse.21 inode numbers are the backing ones and survive rename of file, directory and child, ${how}`,
    async t => {
      const m = await startFixture({ passthrough })
      try {
        const seen = await m.py(`
b = ${JSON.stringify(m.backing)} + "/"
os.makedirs("data/d/c"); os.mkdir("data/e"); put("data/f", b"x"); fd = os.open("data/f", os.O_RDONLY)
names = ["data/f", "data/d", "data/d/c"]
before = [os.stat(n).st_ino for n in names]
same = before == [os.stat(b + n).st_ino for n in names]
os.rename("data/f", "data/e/g"); os.rename("data/d", "data/e/d")
after = [os.stat(n).st_ino for n in ["data/e/g", "data/e/d", "data/e/d/c"]]
listed = {x.name: x.inode() for x in os.scandir("data/e")}
say([same, before == after, os.fstat(fd).st_ino == before[0], os.read(fd, 2).decode(), listed == {"g": before[0], "d": before[1]}])`)
        t.same(seen, [true, true, true, "x", true])
      } finally {
        await m.stop()
      }
    },
  )
}

t.test("fuse.22 (one view) a hard link made on the backing side is one node with the true count", async t => {
  const m = await startFixture()
  try {
    const seen = await m.py(`
b = ${JSON.stringify(m.backing)} + "/data/"
put("data/f", b"x")
os.link(b + "f", b + "g")
a, c = os.stat("data/g"), os.stat("data/f")
time.sleep(1.1)
say([a.st_ino == c.st_ino, a.st_nlink, os.stat("data/f").st_nlink, put("data/g", b"22", os.O_WRONLY), get("data/f")])`)
    t.same(seen, [true, 2, 2, 2, "22"])
  } finally {
    await m.stop()
  }
})

t.test(
  "fuse.27 (plain only) a change on the backing path is seen within 1.1 s, a new name at the next call",
  async t => {
    const m = await startFixture()
    try {
      const seen = await m.py(`
b = ${JSON.stringify(m.backing)} + "/data/"
put("data/f", b"x")
old = [os.stat("data/f").st_size, e(os.stat, "data/n"), sorted(os.listdir("data"))]
put(b + "f", b"12345"); put(b + "n", b"n")
new = e(lambda: os.stat("data/n").st_size)
time.sleep(1.1)
say([old, new, os.stat("data/f").st_size, get("data/f"), sorted(os.listdir("data"))])`)
      t.same(seen, [[1, "ENOENT", ["f", "laid", "one"]], 1, 5, "12345", ["f", "laid", "n", "one"]])
    } finally {
      await m.stop()
    }
  },
)

t.test(
  "fuse.28 (16 MiB) without passthrough an unchanged file is read again from the page cache, a changed one is not",
  async t => {
    const m = await startFixture({ passthrough: false })
    try {
      await m.sh(`head -c 16777216 /dev/zero > ${m.backing}/data/big`)
      await m.sh("cat data/big > /dev/null; cat data/big > /dev/null")
      const before = await m.ask("stats")
      await m.sh("cat data/big > /dev/null")
      const after = await m.ask("stats")
      t.ok(after.requests - before.requests < 12, `${after.requests - before.requests} requests for 16 MiB`)
      await m.sh(`printf changed | dd of=${m.backing}/data/big conv=notrunc status=none; sleep 1.1`)
      t.equal((await m.sh("head -c 7 data/big")).stdout, "changed")
    } finally {
      await m.stop()
    }
  },
)

t.test("fuse.29 (requests only) with passthrough reads and writes of 64 MiB send few requests", async t => {
  const m: Fixture = await startFixture()
  try {
    await m.sh("stat data")
    const before = await m.ask("stats")
    await m.sh("dd if=/dev/zero of=data/big bs=1M count=64 status=none; dd if=data/big of=/dev/null bs=1M status=none")
    const after = await m.ask("stats")
    t.ok(after.requests - before.requests < 20, `${after.requests - before.requests} requests`)
  } finally {
    await m.stop()
  }
})
