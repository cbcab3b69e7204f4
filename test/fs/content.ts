// needs: root fuse strace
// Generated content, listings, identity, caches and attributes, as a client sees them.
import { execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import {
  appendFileSync,
  closeSync,
  linkSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statfsSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs"
import { createServer } from "node:net"
import { join } from "node:path"
import t from "tap"
import { cleanEnv } from "../harness/program.js"
import { act, act1, type Call, type Facts } from "./fixture/actor.js"
import { type Fixture, makeBehind, makeFixture, makeSession, O, OTHER, OWNER, writeBehind } from "./fixture/stack.js"

let f: Fixture
const home = `home/${OWNER}`
const sleep = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

t.before(async () => {
  f = await makeFixture()
})
t.after(() => f.stack.stop())

function readRequests(): number {
  return Number(/^requests=(\d+)$/m.exec(readFileSync(f.at("status"), "utf8"))![1])
}

t.test("object metadata of models, agents and tools has exactly its keys and its values", async t => {
  const runner = "#!/usr/bin/cortexfs-object-runner\n"
  t.equal(
    readFileSync(f.at("model/debug/echo"), "utf8"),
    `${runner}id=debug/echo\nname=echo\ndescription=Echo the last user text\ntype=model\ncreated_at=0\nowned_by=debug\ncontext_length=unknown\n`,
  )
  const control = (path: string) => readFileSync(f.at(path), "utf8").slice(0, -1)
  t.equal(
    readFileSync(f.at("agent/coder"), "utf8"),
    `${runner}id=coder\nname=coder\ndescription=coder\ntype=agent\nowned_by=${OWNER}\nmodel=${control("agent/coder.d/model")}\nabi=sdk-envelope-v1\nlife=owned\n`,
  )
  const cap = control("tool/fs.read.d/cap").split("\n").join(",")
  t.equal(
    readFileSync(f.at("tool/fs.read"), "utf8"),
    `${runner}id=fs.read\nname=fs.read\ndescription=${control("tool/fs.read.d/description")}\ntype=tool\nowned_by=0\ncap=${cap}\n`,
  )
})

t.test("a hostile description becomes one line of at most 1024 bytes of UTF-8", async t => {
  const meta = join(f.generation, "agent/coder.d/meta.json")
  const before = readFileSync(meta)
  writeFileSync(meta, `${JSON.stringify({ description: `a\nowned_by=0\u007f\t\ud800${"é".repeat(600)}` })}\n`)
  await sleep(1100)
  const line = readFileSync(f.at("agent/coder"), "utf8").split("\n")[3]!
  t.equal(readFileSync(f.at("agent/coder"), "utf8").split("\n").length, 10)
  t.match(line, /^description=a owned_by=0 {2}\ufffdé+$/)
  t.ok(Buffer.byteLength(line) <= "description=".length + 1024)
  writeFileSync(meta, "not json")
  await sleep(1100)
  t.match(readFileSync(f.at("agent/coder"), "utf8"), "\ndescription=coder\n")
  writeFileSync(meta, before)
})

t.test("fuse.25 the root has its own order and generated directories are in byte order", async t => {
  const raw = (rel: string) =>
    execFileSync("/bin/ls", ["-f", "-1", f.at(rel)], { encoding: "utf8" })
      .split("\n")
      .filter(name => name && name !== "." && name !== "..")
  t.same(raw(""), ["status", "bin", "model", "agent", "tool", "home", "shared"])
  for (const rel of ["tool", "agent", "model", "model/debug", "model/debug/echo.d", "bin"]) {
    const names = raw(rel)
    t.same(names, [...names].sort(), rel)
    t.ok(names.length > 0)
  }
})

t.test("fuse.26 the size of a generated file is what a read gives, and one handle does not change", async t => {
  for (const rel of ["model/debug/echo", "agent/coder", "tool/fs.read", "model/route", "model/debug/echo.d/limit"])
    t.equal(statSync(f.at(rel)).size, readFileSync(f.at(rel)).length, rel)
  const [, facts, first, , again] = (await act(OWNER, [
    ["handle", "s", f.at("status"), O.RDONLY],
    ["fstat", "s"],
    ["hpread", "s", 4096, 0],
    ["stat", f.at("bin")],
    ["hpread", "s", 4096, 0],
    ["hpread", "s", 10, 100_000],
  ])) as [string, Facts, string, Facts, string]
  t.equal(facts.size, first.length)
  t.equal(again, first)
  t.ok(readRequests() > Number(/^requests=(\d+)$/m.exec(first)![1]))
})

t.test("fuse.21 rename keeps the inode of a file, a directory and its child, and open handles", async t => {
  makeBehind(f.behind(`${home}/one/sub`), OWNER)
  makeBehind(f.behind(`${home}/one`), OWNER)
  makeBehind(f.behind(`${home}/two`), OWNER)
  writeBehind(f.behind(`${home}/one/sub/file`), "content", OWNER)
  const ino = (rel: string) => statSync(f.at(`${home}/${rel}`), { bigint: true }).ino
  const before = [ino("one"), ino("one/sub"), ino("one/sub/file")]
  const fd = openSync(f.at(`${home}/one/sub/file`), "r")
  renameSync(f.at(`${home}/one/sub/file`), f.at(`${home}/one/sub/other`))
  renameSync(f.at(`${home}/one`), f.at(`${home}/two/moved`))
  t.same([ino("two/moved"), ino("two/moved/sub"), ino("two/moved/sub/other")], before)
  const buffer = Buffer.alloc(20)
  t.equal(buffer.toString("utf8", 0, readSync(fd, buffer)), "content")
  closeSync(fd)
  for (const rel of ["two/moved", "two/moved/sub", "two/moved/sub/other"]) {
    t.equal(ino(rel), statSync(f.behind(`${home}/${rel}`), { bigint: true }).ino, rel)
    const parent = rel.slice(0, rel.lastIndexOf("/"))
    const scan = (await act1(OWNER, "scan", f.at(`${home}/${parent}`))) as [string, string][]
    t.equal(scan.find(([name]) => rel.endsWith(`/${name}`))?.[1], String(ino(rel)), rel)
  }
  const generated = ["status", "tool", "tool/fs.read", "model/main"]
  const numbers = generated.map(rel => statSync(f.at(rel === "model/main" ? "model" : rel), { bigint: true }).ino)
  t.ok(numbers.every(number => number > 2n ** 62n))
  t.equal(new Set(numbers).size, numbers.length)
})

t.test("fuse.22 names of one file share a number and the true link count", async t => {
  const view = await f.stack.startView("coder")
  const rel = `${home}/agent/coder/data`
  writeBehind(f.behind(`${rel}/a`), "x", OWNER)
  t.equal(await act1(OWNER, "link", f.at(`${rel}/a`), f.at(`${rel}/b`)), "ok")
  linkSync(f.behind(`${rel}/a`), f.behind(`${rel}/c`))
  await sleep(1100)
  const behind = statSync(f.behind(`${rel}/a`), { bigint: true })
  for (const root of [f.stack.ctx, view.mountPoint])
    for (const name of ["a", "b", "c"]) {
      const facts = (await act1(OWNER, "stat", join(root, rel, name))) as Facts
      t.same([facts.ino, facts.nlink], [String(behind.ino), 3], `${root} ${name}`)
    }
  await view.stop()
})

t.test("fuse.27 a change behind is seen in 1.1 s, in a session and after a failed lookup at once", async t => {
  const plain = f.at(`${home}/ttl`)
  writeBehind(f.behind(`${home}/ttl`), "1", OWNER)
  t.equal(statSync(plain).size, 1)
  appendFileSync(f.behind(`${home}/ttl`), "22")
  await sleep(1100)
  t.equal(statSync(plain).size, 3)
  makeSession(f.behind(`${home}/agent/coder/session/ttl`), OWNER)
  const messages = f.at(`${home}/agent/coder/session/ttl/messages.jsonl`)
  for (let size = 0; size < 20; size++) {
    t.equal(statSync(messages).size, size)
    appendFileSync(f.behind(`${home}/agent/coder/session/ttl/messages.jsonl`), "x")
  }
  for (const rel of [`${home}/new`, `${home}/agent/coder/session/ttl/latest2.md`]) {
    t.throws(() => statSync(f.at(rel)), { code: "ENOENT" })
    writeBehind(f.behind(rel), "x", OWNER)
    t.equal(statSync(f.at(rel)).size, 1)
  }
})

t.test("a control changed behind is seen within 1.1 s, whole", async t => {
  const control = join(f.generation, "agent/coder.d/cwd")
  const before = readFileSync(control)
  t.equal(readFileSync(f.at("agent/coder.d/cwd"), "utf8"), before.toString())
  writeFileSync(`${control}.new`, "/elsewhere\n")
  renameSync(`${control}.new`, control)
  await sleep(1100)
  t.equal(readFileSync(f.at("agent/coder.d/cwd"), "utf8"), "/elsewhere\n")
  writeFileSync(control, before)
  const description = join(f.generation, "tool/fs.read.d/description")
  const said = readFileSync(description)
  writeFileSync(description, "Another text\n")
  await sleep(1100)
  t.match(readFileSync(f.at("tool/fs.read"), "utf8"), "\ndescription=Another text\n")
  writeFileSync(description, said)
})

t.test("fuse.24 a listing of 100,000 gives each name once, in time and calls proportional to their number", async t => {
  const list = (rel: string) =>
    execFileSync("/bin/ls", ["-f", "-1", f.at(rel)], { encoding: "utf8", maxBuffer: 1 << 24 })
      .split("\n")
      .filter(name => name.startsWith("n"))
  const fill = "import os,sys\nfor i in range(int(sys.argv[2])): os.close(os.open(sys.argv[1]+'/n%d'%i,os.O_CREAT))"
  const medians: number[] = []
  const getdents: number[] = []
  for (const count of [10_000, 100_000]) {
    const rel = `${home}/many${count}`
    makeBehind(f.behind(rel), OWNER)
    execFileSync("/usr/bin/python3", ["-c", fill, f.behind(rel), String(count)])
    const names = list(rel)
    t.equal(names.length, count)
    t.equal(new Set(names).size, count)
    const times: number[] = []
    for (let i = 0; i < 5; i++) {
      const started = process.hrtime.bigint()
      execFileSync("/bin/ls", ["-f", f.at(rel)], { stdio: "ignore" })
      times.push(Number(process.hrtime.bigint() - started) / 1e6)
    }
    medians.push(times.sort((a, b) => a - b)[2]!)
    // The kernel keeps a listing while the directory stays as it is.
    writeBehind(f.behind(`${rel}/more`), "", OWNER)
    await sleep(1100)
    const lines = await traceServer(["getdents64"], () => list(rel))
    getdents.push(lines.filter(line => line.includes("getdents64(")).length)
  }
  t.ok(medians[1]! <= 15 * medians[0]!, `${medians[0]} ms, ${medians[1]} ms`)
  t.ok(getdents[0]! >= 1 && getdents[1]! <= 15 * getdents[0]!, `${getdents} calls`)

  const dir = f.at(`${home}/many10000`)
  const churn = execFileSync(
    "/bin/sh",
    ["-c", 'i=0; (while [ $i -lt 300 ]; do : > "$0/x$i"; rm "$0/x$i"; i=$((i+1)); done) & ls -f -1 "$0"; wait', dir],
    { encoding: "utf8", maxBuffer: 1 << 24 },
  )
  const stable = churn.split("\n").filter(name => name.startsWith("n"))
  t.equal(stable.length, 10_000)
  t.equal(new Set(stable).size, 10_000)
  const cursor = JSON.parse(execFileSync("/usr/bin/python3", ["-c", SEEK, dir], { encoding: "utf8", env: cleanEnv() }))
  t.same(cursor, { again: true, rewound: 10_003 })
  for (const count of [10_000, 100_000]) rmSync(f.behind(`${home}/many${count}`), { recursive: true })
})

/** Lines of strace about these calls of the server while `use` runs. */
async function traceServer(calls: string[], use: () => unknown): Promise<string[]> {
  const trace = join(f.stack.dir, "trace")
  const args = ["-f", "-q", "-e", `trace=${calls.join(",")}`, "-o", trace, "-p", String(f.host.child.pid)]
  const tracer = spawn("strace", args)
  while (!/^TracerPid:\s+[1-9]/m.test(readFileSync(`/proc/${f.host.child.pid}/status`, "utf8"))) await sleep(10)
  // The other threads are taken one after the other.
  await sleep(300)
  await use()
  tracer.kill("SIGTERM")
  await once(tracer, "exit")
  return readFileSync(trace, "utf8").split("\n")
}

const SEEK = `
import ctypes, json, sys
c = ctypes.CDLL(None)
c.opendir.restype = ctypes.c_void_p
for f in (c.readdir, c.telldir, c.seekdir, c.rewinddir): f.argtypes = [ctypes.c_void_p]
c.readdir.restype = ctypes.c_void_p
c.telldir.restype = ctypes.c_long
c.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
d = c.opendir(sys.argv[1].encode())
def name():
    e = c.readdir(d)
    return None if not e else ctypes.string_at(e + 19)
for _ in range(5000): name()
at = c.telldir(d)
first = [name() for _ in range(3000)]
c.seekdir(d, at)
again = first == [name() for _ in range(3000)]
c.rewinddir(d)
count = 0
while name() is not None: count += 1
print(json.dumps({"again": again, "rewound": count}))
`

t.test("fuse.33 attributes say what a node is, in order, and none can be set", async t => {
  const all = ["abi_path", "kind", "origin", "storage", "virtual", "backing_exists", "backing_path", "bytes"]
  all.push("token_estimate", "input_token_estimate", "output_token_estimate", "cache_bytes", "cache_entries")
  all.push("cache_state", "tokenizer")
  makeSession(f.behind(`${home}/agent/coder/session/attributes`), OWNER)
  writeBehind(f.behind(`${home}/attributes`), "12345", OWNER)
  const session = `${home}/agent/coder/session/attributes`
  const rows: [path: string, kind: string, isVirtual: boolean, bytes: number | undefined, behind?: string][] = [
    ["tool/fs.read", "ctx.tool.exec", true, statSync(f.at("tool/fs.read")).size],
    ["status", "ctx.ordinary", true, undefined],
    [home, "ctx.home.dir", false, 0, f.behind(home)],
    [
      "agent/coder.d/policy",
      "ctx.agent.control",
      false,
      statSync(join(f.generation, "agent/coder.d/policy")).size,
      join(f.generation, "agent/coder.d/policy"),
    ],
    [`${session}/messages.jsonl`, "ctx.session.messages", false, 0, f.behind(`${session}/messages.jsonl`)],
    [session, "ctx.session.dir", false, 0, f.behind(session)],
    [`${home}/attributes`, "ctx.ordinary", false, 5, f.behind(`${home}/attributes`)],
    ["shared/lab", "ctx.shared.dir", false, 0, f.behind("shared/lab")],
    ["shared/lab/queue/done", "ctx.shared.queue", false, 0, f.behind("shared/lab/queue/done")],
    ["model/debug/echo", "ctx.model.exec", true, statSync(f.at("model/debug/echo")).size],
    ["model/debug/echo.d/cap", "ctx.model.control", true, statSync(f.at("model/debug/echo.d/cap")).size],
    ["agent/coder", "ctx.agent.exec", true, statSync(f.at("agent/coder")).size],
  ]
  const prefix = "user.cortexfs."
  for (const [path, kind, isVirtual, bytes, behind] of rows) {
    const names = (await act1(OWNER, "listxattr", f.at(path))) as string[]
    const values = new Map<string, string>()
    const got = (await act(
      OWNER,
      names.map((name): Call => ["getxattr", f.at(path), name]),
    )) as string[]
    names.forEach((name, i) => {
      values.set(name.slice(prefix.length), got[i]!)
    })
    t.same(
      [...values.keys()],
      all.filter(name => values.has(name)),
      path,
    )
    t.equal(values.get("abi_path"), path)
    t.equal(values.get("kind"), kind, path)
    t.equal(values.get("origin"), isVirtual ? "virtual" : "disk", path)
    t.equal(values.get("storage"), isVirtual ? "memory" : "disk", path)
    t.equal(values.get("virtual"), String(isVirtual), path)
    if (behind !== undefined) t.equal(values.get("backing_path"), behind)
    if (bytes !== undefined) {
      t.equal(values.get("bytes"), String(bytes), path)
      t.equal(values.get("token_estimate"), String(Math.ceil(bytes / 4)), path)
    }
    t.equal(values.get("cache_state"), "none")
    t.equal(values.get("tokenizer"), "byte-estimate-v1")
  }
  t.same(
    await act(0, [
      ["getxattr", f.at("status"), "user.x"],
      ["getxattrsize", f.at("tool/fs.read"), `${prefix}kind`, 1],
      ["setxattr", f.at("status"), `${prefix}kind`, "x"],
      ["removexattr", f.at("status"), `${prefix}kind`],
      ["setxattr", f.at(`${home}/attributes`), "user.x", "x"],
      ["getxattr", f.at("model/main"), `${prefix}kind`],
    ]),
    ["ENODATA", "ERANGE", "EROFS", "EROFS", "EOPNOTSUPP", "ENODATA"],
  )
  const view = await f.stack.startView("coder")
  const plain = join(view.mountPoint, `${home}/agent/coder/data`)
  const names = (await act1(OWNER, "listxattr", plain)) as string[]
  t.ok(names.includes(`${prefix}kind`))
  t.notOk(names.includes(`${prefix}backing_path`))
  t.equal(await act1(OWNER, "getxattr", plain, `${prefix}backing_path`), "ENODATA")
  await view.stop()
})

t.test("statfs gives the data root's file system with names of 255 bytes", async t => {
  const here = statfsSync(f.at("home"))
  const behind = statfsSync(f.stack.dataRoot)
  t.equal(here.type, 0x65735546)
  t.equal(here.blocks, behind.blocks)
  t.equal(((await act1(OWNER, "statfs", f.at("status"))) as { namelen: number }).namelen, 255)
})

t.test(
  "fuse.6 (generated reads) reading generated files opens nothing behind and looks at the sources once a second",
  async t => {
    let elapsedS = 0
    const lines = await traceServer(["openat", "openat2", "open", "newfstatat", "statx"], () => {
      const started = Date.now()
      for (let i = 0; i < 2000; i++) {
        statSync(f.at("model/debug/echo.d/limit"))
        readFileSync(f.at("model/debug/echo.d/limit"))
      }
      elapsedS = (Date.now() - started) / 1000
    })
    t.ok(lines.length > 10, "the sources are looked at")
    t.equal(
      lines.filter(line => /O_RDONLY/.test(line) && !/O_PATH|O_DIRECTORY/.test(line)).length,
      0,
      "nothing is opened to be read",
    )
    const sweeps = lines.filter(line => line.includes('"cortexfs.bootstrap.json"')).length
    t.ok(sweeps <= Math.ceil(elapsedS) + 1, `${sweeps} sweeps in ${elapsedS} s`)
    const control = join(f.generation, "agent/coder.d/life")
    const { mtimeMs, atimeMs } = statSync(control)
    writeFileSync(control, "temp!\n".slice(0, readFileSync(control).length))
    utimesSync(control, atimeMs / 1000, mtimeMs / 1000 + 5)
    await sleep(1100)
    t.match(readFileSync(f.at("agent/coder"), "utf8"), "\nlife=temp!")
    writeFileSync(control, "owned\n")
  },
)

t.test("fuse.43 (plain files) a script and an ELF file in a home run, and do not without the x bit", async t => {
  makeBehind(f.behind(`${home}/exec`), OWNER)
  writeBehind(f.behind(`${home}/exec/script`), "#!/bin/sh\necho ran $1\n", OWNER, 0o755)
  execFileSync("cp", ["/bin/echo", f.behind(`${home}/exec/elf`)])
  const script = f.at(`${home}/exec/script`)
  t.same(
    await act(OWNER, [
      ["exec", script, "it"],
      ["exec", f.at(`${home}/exec/elf`), "elf"],
      ["chmod", script, 0o644],
      ["exec", script],
    ]),
    [{ code: 0, stdout: "ran it\n" }, { code: 0, stdout: "elf\n" }, "ok", "EACCES"],
  )
})

t.test("fuse.18 (errno) connect through the alias tells a missing listener from a dead one", async t => {
  const socket = f.at("agent/coder.sock")
  const listener = join(f.stack.run, "agent/coder.sock")
  t.equal(await act1(OWNER, "connect", socket), "ENOENT")
  mkdirSync(join(f.stack.run, "agent"), { recursive: true })
  await act(0, [["bind", listener]])
  execFileSync("chmod", ["666", listener])
  t.equal(await act1(OWNER, "connect", socket), "ECONNREFUSED")
  rmSync(listener)
  t.same(readdirSync(join(f.stack.run, "agent")), [])
})

t.test(
  "fuse.18 (links of a sticky directory) the alias can be followed by every uid where only the owner's can",
  async t => {
    const sysctl = "/proc/sys/fs/protected_symlinks"
    const before = readFileSync(sysctl, "utf8")
    const listener = join(f.stack.run, "agent/coder.sock")
    mkdirSync(join(f.stack.run, "agent"), { recursive: true })
    const server = createServer(socket => socket.end()).listen(listener)
    await once(server, "listening")
    execFileSync("chmod", ["666", listener])
    // A link of another's in a directory like agent/ shows that the kernel does protect.
    const sticky = join(f.stack.dir, "sticky")
    makeBehind(sticky, OTHER, 0o1777)
    symlinkSync(listener, join(sticky, "link"))
    try {
      writeFileSync(sysctl, "1")
      t.equal(await act1(OWNER, "connect", join(sticky, "link")), "EACCES")
      for (const uid of [OWNER, 0, OTHER])
        t.equal(await act1(uid, "connect", f.at("agent/coder.sock")), "ok", String(uid))
    } finally {
      writeFileSync(sysctl, before)
      server.close()
    }
  },
)
