// needs: root fuse
// Listings: snapshots at offset 0, cursors, big directories, the kernel's own copy of a listing, nodes and descriptors given back.
import { mkdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { startFixture } from "../fixture/native/fusemount.js"

t.setTimeout(240_000)

/** readdir(3) with cursors, by libc: `entries()` from the current position, `tell()`, `seek(at)`, `rewind()`. */
const DIR = `
class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_ulong), ("off", ctypes.c_long), ("size", ctypes.c_ushort), ("type", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]
libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.POINTER(Dirent)
libc.readdir.argtypes = libc.rewinddir.argtypes = libc.telldir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
class Dir:
    def __init__(self, path): self.d = libc.opendir(os.fsencode(path))
    def next(self):
        got = libc.readdir(self.d)
        return got.contents.name.decode() if got else None
    def rest(self):
        names = []
        while True:
            name = self.next()
            if name is None: return names
            names.append(name)
    def tell(self): return libc.telldir(self.d)
    def seek(self, at): libc.seekdir(self.d, at)
    def rewind(self): libc.rewinddir(self.d)
`

t.test(
  "fuse.24 (10,000 entries) a listing gives each entry once, cursors lead back, rewinding sees what is new",
  async t => {
    const m = await startFixture()
    try {
      mkdirSync(join(m.backing, "data/big"))
      for (let i = 0; i < 10_000; i++) writeFileSync(join(m.backing, "data/big", `entry-${i}`), "")
      const seen = await m.py(`${DIR}
d = Dir("data/big")
first, cursors = [], []
for i in range(10002):
    cursors.append(d.tell())
    first.append(d.next())
done = d.next()
again = []
for at in (9999, 5, 7000, 0, 2345):
    d.seek(cursors[at])
    again.append(d.next() == first[at])
put("data/big/newer", b"")
d.rewind()
rest = d.rest()
say([len(set(first)), sorted(first) == sorted([".", ".."] + ["entry-%d" % i for i in range(10000)]), done, again, len(rest), "newer" in rest])`)
      t.same(seen, [10_002, true, null, [true, true, true, true, true], 10_003, true])
      const plus = await m.py(`
names = os.listdir("data/big")
say([len(names), all(x.stat().st_ino == x.inode() for x in os.scandir("data/big"))])`)
      t.same(plus, [10_001, true])
    } finally {
      await m.stop()
    }
  },
)

t.test("fuse.24 (races only) names that come and go never double or lose one that stays", async t => {
  const m = await startFixture()
  try {
    mkdirSync(join(m.backing, "data/race"))
    for (let i = 0; i < 1000; i++) writeFileSync(join(m.backing, "data/race", `stays-${i}`), "")
    const seen = await m.py(`
stop = []
def churn(who):
    n = 0
    while not stop:
        put("data/race/%s-%d" % (who, n), b""); n += 1
        if n % 3: os.unlink("data/race/%s-%d" % (who, n - 1))
    return n
workers = [threading.Thread(target=churn, args=(w,)) for w in "ab"]
for w in workers: w.start()
bad = 0
for i in range(60):
    names = os.listdir("data/race")
    bad += len(names) != len(set(names)) or sum(n.startswith("stays-") for n in names) != 1000
stop.append(1)
for w in workers: w.join()
say(bad)`)
    t.equal(seen, 0)
  } finally {
    await m.stop()
  }
})

t.test(
  "a listing kept by the kernel is dropped when the directory changes, through the mount at once, on the backing path after the TTL",
  async t => {
    const m = await startFixture()
    try {
      mkdirSync(join(m.backing, "data/d"))
      for (let i = 0; i < 2000; i++) writeFileSync(join(m.backing, "data/d", `f${i}`), "")
      await m.sh("sleep 0.1; ls -f data/d; ls -f data/d; sleep 0.1; ls -f data/d")
      const before = await m.ask("stats")
      t.equal((await m.sh("ls -f data/d | wc -l")).stdout.trim(), "2002")
      const kept = await m.ask("stats")
      t.ok(
        kept.requests - before.requests < 12,
        `${kept.requests - before.requests} requests for a kept listing of 2,000`,
      )
      t.equal((await m.sh("touch data/d/mine; ls -f data/d | grep -c mine")).stdout.trim(), "1")
      t.equal(
        (
          await m.sh(
            `ls -f data/d >/dev/null; touch ${m.backing}/data/d/other; sleep 1.1; ls -f data/d | grep -c other`,
          )
        ).stdout.trim(),
        "1",
      )
      t.equal((await m.sh("rm data/d/mine; ls -f data/d | grep -c mine")).stdout.trim(), "0")
    } finally {
      await m.stop()
    }
  },
)

t.test("fuse.23 (20,000 names) dropping the kernel's caches gives nodes and descriptors back", async t => {
  const m = await startFixture()
  try {
    for (let d = 0; d < 20; d++) {
      mkdirSync(join(m.backing, "data", `d${d}`))
      for (let i = 0; i < 1000; i++) writeFileSync(join(m.backing, "data", `d${d}`, `f${i}`), "")
    }
    const before = await m.ask("stats")
    await m.sh("find data -type f | xargs stat -c %s > /dev/null")
    const full = await m.ask("stats")
    t.ok(full.nodes > 20_000, `${full.nodes} nodes`)
    t.ok(full.descriptors < 60, `${full.descriptors} descriptors`)
    await m.sh("cd /; echo 2 > /proc/sys/vm/drop_caches; sleep 0.3; echo 2 > /proc/sys/vm/drop_caches; sleep 0.3")
    const after = await m.ask("stats")
    t.ok(after.nodes <= before.nodes + 10, `${after.nodes} nodes left`)
    t.ok(after.descriptors <= before.descriptors + 10, `${after.descriptors} descriptors left`)
  } finally {
    await m.stop()
  }
})

t.test(
  "with more directories than kept descriptors every one still works, and a replaced one is ESTALE, not another's content",
  async t => {
    const m = await startFixture({ timeoutMs: 120_000 })
    try {
      const seen = await m.py(
        `
os.mkdir("data/many")
for i in range(4500): os.mkdir("data/many/%d" % i)
for i in range(4500): put("data/many/%d/f" % i, b"%d" % i)
ok = all(get("data/many/%d/f" % i) == str(i) for i in range(0, 4500, 7))
b = ${JSON.stringify(m.backing)} + "/data/many/"
fd = os.open("data/many/3", os.O_PATH)
for i in range(4400): os.stat("data/many/%d/f" % (i + 50))
os.rename(b + "3", b + "gone"); os.mkdir(b + "3"); put(b + "3/f", b"other")
say([ok, e(os.stat, "f", dir_fd=fd) if isinstance(e(os.stat, "f", dir_fd=fd), str) else "found", get("data/many/gone/f")])`,
        { timeoutMs: 90_000 },
      )
      t.equal(seen[0], true)
      t.not(seen[1], "found", "the old directory does not show the new one's file")
      t.equal(seen[2], "3")
      t.ok((await m.ask("stats")).descriptors <= 4096)
    } finally {
      await m.stop()
    }
  },
)
