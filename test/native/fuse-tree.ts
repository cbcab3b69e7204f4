// needs: root fuse
// The generated tree of a mount: attributes, bodies, rendered files, the refresh rule, zones and the questions to TypeScript.
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { type Fixture, type Json, startFixture } from "../fixture/native/fusemount.js"

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

t.test("fuse.1 (type and options only) mountinfo shows fuse.cortexfs with the options of a root mount", async t => {
  await withMount({}, async m => {
    const { stdout } = await m.sh(`grep " ${m.mountPoint} " /proc/self/mountinfo`)
    t.match(
      stdout,
      / rw,nosuid,nodev,noatime - fuse\.cortexfs cortexfs rw,user_id=0,group_id=0,default_permissions,allow_other/,
    )
  })
})

t.test("a generated tree has the given order, modes, owners and bytes, and nothing can be changed in it", async t => {
  await withMount({}, async m => {
    const seen = await m.py(`
s = os.lstat("zz/a")
say({
  "list": os.listdir("."), "hello": get("hello"), "link": os.readlink("link"), "through": get("link"),
  "mode": oct(s.st_mode), "uid": s.st_uid, "size": s.st_size, "nlink": os.stat("zz").st_nlink,
  "high": all(os.lstat(p).st_ino > 1 << 62 for p in [".", "hello", "link", "zz", "zz/a", "status"]),
  "d_ino": all(x.inode() == os.lstat(x.name).st_ino for x in os.scandir(".")),
  "absent": e(os.stat, "nope"), "notdir": e(os.stat, "hello/x"), "readlink": e(os.readlink, "hello"),
  "create": e(put, "nope", b""), "mkdir": e(os.mkdir, "nope"), "symlink": e(os.symlink, "a", "nope"), "write": e(put, "hello", b"x"),
  "trunc": e(os.truncate, "hello", 0), "chmod": e(os.chmod, "hello", 0o600), "chown": e(os.chown, "hello", 1, 1),
  "utime": e(os.utime, "hello"), "unlink": e(os.unlink, "hello"), "rmdir": e(os.rmdir, "zz"), "rename": e(os.rename, "hello", "x"),
  "into": e(os.rename, "data/one", "zz/one"), "link2": e(os.link, "hello", "data/hello"), "exists": e(os.mkdir, "zz"),
  "noreplace": e(rename2, "hello", "zz", 1), "exchange": e(rename2, "hello", "nope", 2), "whiteout": e(rename2, "data/one", "data/x", 4),
})`)
    t.same(seen, {
      list: ["status", "hello", "link", "zz", "data", "deep"],
      hello: "hello\n",
      link: "hello",
      through: "hello\n",
      mode: "0o100400",
      uid: 12001,
      size: 1,
      nlink: 1,
      high: true,
      d_ino: true,
      absent: "ENOENT",
      notdir: "ENOTDIR",
      readlink: "EINVAL",
      create: "EROFS",
      mkdir: "EROFS",
      symlink: "EROFS",
      write: "EROFS",
      trunc: "EROFS",
      chmod: "EROFS",
      chown: "EROFS",
      utime: "EROFS",
      unlink: "EROFS",
      rmdir: "EROFS",
      rename: "EROFS",
      into: "EROFS",
      link2: "EROFS",
      exists: "EEXIST",
      noreplace: "EEXIST",
      exchange: "ENOENT",
      whiteout: "EINVAL",
    })
  })
})

t.test("the kernel checks projected modes: another uid reads no 0400 file", async t => {
  await withMount({}, async m => {
    t.equal(await m.py(`say(e(get, "zz/a"))`, { uid: 12002 }), "EACCES")
    t.equal(await m.py(`say(e(get, "zz/a"))`, { uid: 12001 }), "a")
  })
})

t.test(
  "fuse.26 (fixture tree) a rendered file is fixed at open, fstat then has its size, two opens differ",
  async t => {
    await withMount({}, async m => {
      const seen = await m.py(`
a = os.open("status", os.O_RDONLY)
first, size = os.pread(a, 100, 0), os.fstat(a).st_size
b = os.open("status", os.O_RDONLY)
say({"size": size == len(first), "again": os.pread(a, 100, 0) == first, "other": os.pread(b, 100, 0) != first, "end": len(os.pread(a, 9, 500)),
     "text": first.decode(), "shared": e(mmap.mmap, a, 10, mmap.MAP_SHARED, mmap.PROT_READ), "seek": os.lseek(a, 3, os.SEEK_DATA),
     "private": mmap.mmap(a, 6, mmap.MAP_PRIVATE, mmap.PROT_READ)[:6].decode()})`)
      t.match(seen, { size: true, again: true, other: true, end: 0, shared: "ENODEV", seek: 3, private: "render" })
      t.match(seen.text, /^render \d+ status\n$/)
      await m.ask("render", { errno: 13 })
      t.equal(await m.py(`say(e(get, "status"))`), "EACCES", "an errno of TypeScript is the errno of the open")
    })
  },
)

t.test("a tree is asked for once freshMs after the last time, and a change is seen then", async t => {
  await withMount({ freshMs: 300 }, async m => {
    await m.sh("cat hello; cat hello; stat zz/a")
    const before = await m.ask("stats")
    await m.ask("body", { text: "changed and longer\n" })
    await pause(320)
    t.equal(await m.py(`say([get("hello"), os.stat("hello").st_size, get("hello")][0])`), "changed and longer\n")
    const after = await m.ask("stats")
    t.equal(after.refreshes - before.refreshes, 1)
    await m.sh("sleep 1")
    t.equal((await m.ask("stats")).refreshes, after.refreshes, "an idle mount asks nothing")
  })
})

t.test("a handle keeps the bytes it was opened on while the tree changes, without mixing pages", async t => {
  await withMount({ freshMs: 100 }, async m => {
    await m.ask("body", { text: "A".repeat(300_000) })
    await pause(120)
    const client = m.py(`
a = os.open("hello", os.O_RDONLY)
first = os.pread(a, 10, 0)
time.sleep(1.0)
b = os.open("hello", os.O_RDONLY)
rest = os.pread(a, 100, 250000)
new = b"".join(os.pread(b, 4096, i * 4096) for i in range(80))
say([first.decode(), rest.decode()[:10], len(new), len(set(new)), os.pread(a, 5, 100).decode()])`)
    await pause(500)
    await m.ask("body", { text: "B".repeat(310_000) })
    t.same(await client, ["AAAAAAAAAA", "AAAAAAAAAA", 310_000, 1, "AAAAA"])
  })
})

t.test(
  "generated entries lie over a backing directory and win; a backing entry shows the projected owner and mode",
  async t => {
    await withMount({}, async m => {
      writeFileSync(join(m.backing, "data/laid"), "never shown")
      writeFileSync(join(m.backing, "data/plain"), "plain")
      const seen = await m.py(`
s = os.stat("deep")
say([sorted(os.listdir("data")), get("data/laid"), oct(s.st_mode), s.st_uid, s.st_gid, e(os.unlink, "data/laid"), e(os.rmdir, "deep"), os.listdir("data/one")])`)
      t.same(seen, [["laid", "one", "plain"], "laid over", "0o41777", 3, 4, "EROFS", null, []])
    })
  },
)

t.test("names of a hidden zone are not there; unlisted ones are found and not listed", async t => {
  await withMount({}, async m => {
    writeFileSync(join(m.backing, "data/.hidden-x"), "")
    writeFileSync(join(m.backing, "data/.unlisted-x"), "u")
    const seen = await m.py(`
say([sorted(os.listdir("data")), e(os.stat, "data/.hidden-x"), e(put, "data/.hidden-y", b""), get("data/.unlisted-x"), e(put, "data/.unlisted-y", b"12")])`)
    t.same(seen, [["laid", "one"], "ENOENT", "EROFS", "u", 2])
  })
})

t.test(
  "fuse.48 (fixture zones) a component over 255 bytes is ENAMETOOLONG for stat, create, mkdir and rename",
  async t => {
    await withMount({}, async m => {
      mkdirSync(join(m.backing, "data/readonly"))
      const seen = await m.py(`
out = []
for n in [255, 256, 1024, 1025]:
  for d in [".", "data", "zz", "data/readonly"]:
    p = d + "/" + "n" * n
    out.append([n, d, e(os.stat, p), e(put, p, b""), e(os.mkdir, p), e(os.rename, "data/one", p)])
say([o for o in out if o[0] != 255 and set(o[2:]) != {"ENAMETOOLONG"}] + [o for o in out if o[0] == 255 and o[2] != "ENOENT"])`)
      t.same(seen, [])
    })
  },
)

t.test("a read-only zone refuses every change, keeps reading, and shows a backing change at the next call", async t => {
  await withMount({}, async m => {
    mkdirSync(join(m.backing, "data/readonly"))
    writeFileSync(join(m.backing, "data/readonly/log"), "one\n")
    const seen = await m.py(`
r = "data/readonly/"
fd = os.open(r + "log", os.O_RDONLY)
before = os.read(fd, 100).decode()
os.stat(r + "log")
put(${JSON.stringify(m.backing)} + "/data/readonly/log", b"two\\n", os.O_WRONLY | os.O_APPEND)
say([before, os.read(fd, 100).decode(), os.stat(r + "log").st_size,
  e(put, r + "log", b"x"), e(put, r + "new", b"x"), e(os.mkdir, r + "d"), e(os.unlink, r + "log"), e(os.rename, r + "log", "data/log"),
  e(os.rename, "data/one", r + "one"), e(os.chmod, r + "log", 0o600), e(os.truncate, r + "log", 0), e(os.link, r + "log", "data/l"),
  e(os.symlink, "a", r + "s"), e(os.mkfifo, r + "f"), e(os.mknod, r + "dev", 0o20600, 259)])`)
    t.same(seen, ["one\n", "two\n", 8, ...Array(12).fill("EROFS")])
  })
})

t.test("fuse.33 (fixture nodes) extended attributes have the names, order and errors of fuse.md 8.4", async t => {
  await withMount({}, async m => {
    mkdirSync(join(m.backing, "data/readonly"))
    writeFileSync(join(m.backing, "data/readonly/log"), "one\n5")
    symlinkSync("x", join(m.backing, "data/sym"))
    const seen = await m.py(`
def all_of(p): return {n[len("user.cortexfs."):]: os.getxattr(p, n).decode() for n in os.listxattr(p)}
say([all_of("hello"), all_of("data/readonly/log"), list(all_of(".").items())[:2], os.listxattr("data/sym", follow_symlinks=False),
  e(os.getxattr, "hello", "user.x"), e(os.getxattr, "hello", "security.capability"), e(os.getxattr, "hello", "system.posix_acl_access"),
  e(os.setxattr, "status", "user.cortexfs.kind", b"x"), e(os.removexattr, "status", "user.cortexfs.kind"), e(os.setxattr, "data/readonly/log", "user.x", b"x"),
  libc.getxattr(b"hello", b"user.cortexfs.kind", ctypes.create_string_buffer(1), 1), errno.errorcode[ctypes.get_errno()]])`)
    const rest = {
      output_token_estimate: "0",
      cache_bytes: "0",
      cache_entries: "0",
      cache_state: "none",
      tokenizer: "byte-estimate-v1",
    }
    t.same(seen, [
      {
        abi_path: "hello",
        kind: "ctx.ordinary",
        origin: "virtual",
        storage: "memory",
        virtual: "true",
        backing_exists: "false",
        bytes: "6",
        token_estimate: "2",
        input_token_estimate: "2",
        ...rest,
      },
      {
        abi_path: "data/readonly/log",
        kind: "ctx.session.messages",
        origin: "disk",
        storage: "disk",
        virtual: "false",
        backing_exists: "true",
        backing_path: `${m.backing}/data/readonly/log`,
        bytes: "5",
        token_estimate: "2",
        input_token_estimate: "2",
        ...rest,
      },
      [
        ["abi_path", ""],
        ["kind", "ctx.ordinary"],
      ],
      [],
      "ENODATA",
      "ENODATA",
      "EOPNOTSUPP",
      "EROFS",
      "EROFS",
      "EOPNOTSUPP",
      -1,
      "ERANGE",
    ])
  })
})

t.test("an asking zone gives TypeScript the operation with caller and paths, and does what it allows", async t => {
  await withMount({}, async m => {
    mkdirSync(join(m.backing, "data/asking"), { mode: 0o777 })
    await m.sh(`chmod 0777 ${m.backing}/data/asking`)
    const seen = await m.py(
      `
d = "data/asking/"
say([e(put, d + "f", b"1"), e(put, d + "refused", b"1"), e(os.mkdir, d + "dir"), e(os.symlink, "txt", d + "sym"), e(os.mkfifo, d + "pipe"), e(os.link, d + "f", d + "hard"),
  e(os.rename, d + "f", d + "g"), e(os.chmod, d + "g", 0o640), e(put, d + "g", b"22", os.O_WRONLY), e(os.truncate, d + "g", 1), e(os.unlink, d + "hard"), e(os.rmdir, d + "dir"),
  e(os.rename, d + "g", d + "refused"), sorted(os.listdir(d)), os.stat(d + "g").st_uid, os.stat(d + "g").st_size])`,
      { uid: 12001 },
    )
    t.same(seen, [
      1,
      "EACCES",
      null,
      null,
      null,
      null,
      null,
      null,
      2,
      null,
      null,
      null,
      "EACCES",
      ["g", "pipe", "sym"],
      12001,
      1,
    ])
    const { asked } = await m.ask("asked")
    const ops = asked.filter((a: Json) => a.op !== "miss")
    t.same(
      ops.map((a: Json) => [a.op, a.path.replace("data/asking/", ""), a.path2?.replace("data/asking/", ""), a.target]),
      [
        ["create", "f", undefined, undefined],
        ["create", "refused", undefined, undefined],
        ["mkdir", "dir", undefined, undefined],
        ["symlink", "sym", undefined, "txt"],
        ["mknod", "pipe", undefined, undefined],
        ["link", "f", "hard", undefined],
        ["rename", "f", "g", undefined],
        ["setattr", "g", undefined, undefined],
        ["write", "g", undefined, undefined],
        ["write", "g", undefined, undefined],
        ["unlink", "hard", undefined, undefined],
        ["rmdir", "dir", undefined, undefined],
        ["rename", "g", "refused", undefined],
      ],
    )
    t.ok(ops.every((a: Json) => a.uid === 12001 && a.gid === 12001 && a.pid > 0))
    t.ok(asked.some((a: Json) => a.op === "miss" && a.path === "data/asking/f"))
  })
})

t.test("a miss may make the name: only the uid itself makes its home by looking it up", async t => {
  await withMount({}, async m => {
    mkdirSync(join(m.backing, "data/homes"))
    const look = `say(e(lambda: os.stat("data/homes/12001").st_size > 0))`
    t.equal(await m.py(look, { uid: 12002 }), "ENOENT")
    t.equal(await m.py(look, { uid: 12001 }), true)
    t.equal(await m.py(look, { uid: 12002 }), true)
    t.equal(await m.py(`say(e(os.stat, "data/homes/012"))`), "ENOENT")
  })
})

t.test(
  "volumes are borders: rename and link between them are EXDEV, a mount inside a backing directory is EXDEV",
  async t => {
    await withMount({}, async m => {
      for (const dir of ["homes/1", "homes/2", "inner"]) mkdirSync(join(m.backing, "data", dir), { recursive: true })
      writeFileSync(join(m.backing, "data/homes/1/f"), "1")
      await m.sh(`mount -t tmpfs none ${m.backing}/data/inner && mount -t tmpfs none ${m.backing}/data/homes/2`)
      try {
        const seen = await m.py(`
h = "data/homes/"
say([e(os.rename, h + "1/f", h + "2/f"), e(os.link, h + "1/f", "data/f"), e(os.stat, "data/inner"), e(put, h + "2/x", b"123"), get(h + "2/x"), e(os.rename, h + "1/f", h + "1/g"), e(os.rmdir, h + "2")])`)
        t.same(seen, ["EXDEV", "EXDEV", "EXDEV", 3, "123", null, "EROFS"])
      } finally {
        await m.sh(`umount -l ${m.backing}/data/inner ${m.backing}/data/homes/2`)
      }
    })
  },
)

t.test("an invalidated name is looked up again before its time to live", async t => {
  await withMount({ freshMs: 0 }, async m => {
    writeFileSync(join(m.backing, "data/f"), "1")
    const client = m.py(`
a = os.stat("data/f").st_size
time.sleep(0.4)
say([a, os.stat("data/f").st_size])`)
    await pause(200)
    writeFileSync(join(m.backing, "data/f"), "12345")
    await m.ask("invalidate", { path: "data/f" })
    t.same(await client, [1, 5])
  })
})
