// needs: root
// `ctx agent session gc` and `archive`: what is selected, protected, told and moved.
import { spawn } from "node:child_process"
import { once } from "node:events"
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import t from "tap"
import { cwdKey } from "../../src/abi/hash.js"
import { matchGlob } from "../../src/session/glob.js"
import { ctxGc, digest, GcHome, namesIn, readIndex } from "../fixture/session/gc.js"
import { takePicture } from "../fixture/session/place.js"
import { makeDir, OTHER, OWNER } from "../harness/product.js"

const seconds = (ageS: number) => `${Math.floor(Date.now() / 1000) - ageS}\n`
const temp = (lifetime: string) => `{"client":"ctx","scope":"private","lifetime":${JSON.stringify(lifetime)}}\n`

function openHome(t: { teardown(work: () => void): void }): GcHome {
  const home = new GcHome()
  t.teardown(() => home.close())
  return home
}

t.test(
  "session.17 each row of the protection matrix has its reason; a preview prints what --yes prints, and writes nothing",
  async t => {
    const home = openHome(t)
    const dir = home.dir()
    const run = "ctx-7f3a90c1d2e4455b8a6c0f1e2d3b4a59"
    const names = [
      ..."default kept active unsafe linked long locked asked garbled expired missing idle error nolife badlife".split(
        " ",
      ),
      ..."temp-old temp-new sent".split(" "),
    ]
    await home.record(names)
    home.write("kept", "state", "idle\n")
    home.write("active", "state", "active\n")
    home.write("unsafe", "state", "idle")
    rmSync(join(dir, "linked/state"))
    symlinkSync("../idle/state", join(dir, "linked/state"))
    home.write("long", "state", `${"x".repeat(65)}\n`)
    for (const [name, file, at] of [
      ["asked", `${run}.c-2.json`, "2999-01-01T00:00:00.000Z"],
      ["garbled", `${run}.c-2.json`, "tomorrow"],
      ["expired", `${run}.c-2.json`, "2020-01-01T00:00:00.000Z"],
    ] as const) {
      mkdirSync(join(dir, name, "pending"))
      writeFileSync(join(dir, name, "pending", file), JSON.stringify({ version: 1, expires_at: at }))
      chownSync(join(dir, name, "pending", file), OWNER, OWNER)
      chownSync(join(dir, name, "pending"), OWNER, OWNER)
    }
    rmSync(join(dir, "missing/state"))
    home.write("error", "state", "error\n")
    home.write("nolife", "meta.json", "{}\n")
    home.write("badlife", "meta.json", temp("idle:soon"))
    home.write("temp-old", "updated_at", seconds(1801))
    // Neither a link nor a stray file nor a name of no session is a candidate.
    symlinkSync("idle", join(dir, "link"))
    writeFileSync(join(dir, "file"), "")
    mkdirSync(join(dir, "bad name"))
    const lock = spawn("/usr/bin/flock", [join(dir, "locked"), "sh", "-c", "echo held; read x"], {
      stdio: ["pipe", "pipe", "pipe"],
    })
    t.teardown(() => lock.kill("SIGKILL"))
    await once(lock.stdout, "data")

    const before = takePicture(home.path)
    const preview = await ctxGc(home, ["gc", "coder", "--keep", "kept"])
    t.strictSame([preview.code, preview.stderr], [0, ""])
    t.strictSame(takePicture(home.path), before, "the preview wrote nothing")
    t.equal((await ctxGc(home, ["gc", "coder", "--keep", "kept", "--dry-run"])).stdout, preview.stdout)
    const protectedBy: Record<string, string> = {
      default: "default",
      sent: "current",
      kept: "keep",
      active: "active",
      unsafe: "unsafe-state",
      linked: "unsafe-state",
      long: "unsafe-state",
      locked: "locked",
      asked: "pending",
      garbled: "pending",
    }
    const lines = (verb: string) =>
      [...names]
        .sort()
        .map(name => {
          const reason = protectedBy[name]
          return reason === undefined
            ? `${verb}\tcoder\t${name}\t${home.archive()}/${name}\n`
            : `protected\tcoder\t${name}\t${reason}\n`
        })
        .join("")
    t.equal(preview.stdout, lines("would-archive"))
    const json = JSON.parse((await ctxGc(home, ["gc", "coder", "--keep", "kept", "--json"])).stdout)
    t.strictSame(json[0], { action: "protected", agent: "coder", session: "active", detail: "active" })

    // Row 10, by the files alone; what a filter leaves out has no line.
    const lifetimes = await ctxGc(home, ["gc", "coder", "--lifetime", "temp"])
    t.equal(lifetimes.stdout, `would-archive\tcoder\ttemp-old\t${home.archive()}/temp-old\n`)

    const gone = names.filter(name => protectedBy[name] === undefined)
    const digests = new Map(gone.map(name => [name, digest(join(dir, name))]))
    const index = readIndex(dir)
    const done = await ctxGc(home, ["gc", "coder", "--keep", "kept", "--yes"])
    t.strictSame([done.code, done.stderr], [0, ""])
    t.equal(done.stdout, lines("archived"))
    t.strictSame(namesIn(home.archive()), [...gone].sort())
    for (const name of gone)
      t.equal(digest(join(home.archive(), name)), digests.get(name), `${name} is byte for byte as it was`)
    const now = readIndex(dir)
    t.strictSame(
      now.list,
      index.list.filter(name => !gone.includes(name)),
      "list lost exactly the archived names",
    )
    const left = Object.entries(index.keys).filter(([, body]) => !gone.includes(body.trim()))
    t.strictSame(now.keys, Object.fromEntries(left), "the keys lost exactly those of the archived names")
    t.equal(readFileSync(join(dir, "index/current"), "utf8"), "sent\n")
    for (const path of [join(home.path, "archived_sessions"), home.archive()]) {
      const { mode, uid } = statSync(path)
      t.strictSame([mode & 0o7777, uid], [0o700, OWNER], path)
    }
    const again = await ctxGc(home, ["gc", "coder", "--keep", "kept", "--yes"])
    t.notMatch(again.stdout, /archived\t/)
    lock.stdin.end()
  },
)

t.test("session.19 (collection) a hand-made directory temp-notes never appears under --lifetime temp", async t => {
  const home = openHome(t)
  await home.record(["temp-a", "keeper"])
  home.write("temp-a", "updated_at", seconds(4000))
  mkdirSync(join(home.dir(), "temp-notes"))
  chownSync(join(home.dir(), "temp-notes"), OWNER, OWNER)
  const { stdout } = await ctxGc(home, ["gc", "--lifetime", "temp"])
  t.match(stdout, /^would-archive\tcoder\ttemp-a\t[^\n]*\n$/)
  t.match((await ctxGc(home, ["gc"])).stdout, /would-archive\tcoder\ttemp-notes\t/)
})

t.test("filters must all hold: --match, --older-than, --idle, --lifetime", async t => {
  const home = openHome(t)
  await home.record(["a-old", "a-new", "b-old", "temp-x", "sent"])
  for (const name of ["a-old", "b-old"]) home.write(name, "created_at", seconds(86_500))
  home.write("a-old", "updated_at", seconds(3700))
  home.write("b-old", "updated_at", "soon\n")
  const selected = async (...args: string[]) => {
    const { stdout, stderr } = await ctxGc(home, ["gc", "coder", ...args])
    t.equal(stderr, "")
    return stdout
      .split("\n")
      .filter(Boolean)
      .map(line => line.split("\t")[2])
  }
  t.strictSame(await selected("--older-than", "1d"), ["a-old", "b-old"])
  t.strictSame(await selected("--older-than", "24h", "--idle", "1h"), ["a-old"])
  t.strictSame(await selected("--match", "a-*"), ["a-new", "a-old"])
  t.strictSame(await selected("--match", "a-*", "--match", "[!a]-old", "--older-than", "86400s"), ["a-old", "b-old"])
  t.strictSame(await selected("--lifetime", "keep"), ["a-new", "a-old", "b-old", "sent"])
  t.strictSame(await selected("--idle", "70m"), [])
  for (const args of [
    ["--older-than", "1w"],
    ["--idle", "0s"],
    ["--idle", "-5m"],
    ["--lifetime", "soon"],
    ["--keep", "a/b"],
  ]) {
    const ended = await ctxGc(home, ["gc", "coder", ...args, "--yes"])
    t.strictSame([ended.code, ended.stdout], [2, ""], args.join(" "))
    t.match(ended.stderr, /^ctx: usage: .+: .+\n$/)
  }
  t.equal(namesIn(home.archive()).length, 0)
})

t.test("a pattern matches the whole name", async t => {
  const cases: [string, string, boolean][] = [
    ["", "", true],
    ["*", "abc", true],
    ["a*", "ba", false],
    ["*a", "ba", true],
    ["?", "", false],
    ["a?c", "abc", true],
    ["[a-c]x", "bx", true],
    ["[!a-c]x", "bx", false],
    ["[^a-c]x", "dx", true],
    ["[]]", "]", true],
    ["[a", "[a", true],
    ["[a-]", "-", true],
    ["a.c", "abc", false],
    ["a*b*c", "a-b-b-c", true],
    ["a*b*c", "a-b-b", false],
    ["A", "a", false],
  ]
  for (const [glob, name, isMatch] of cases) t.equal(matchGlob(glob, name), isMatch, `${glob} ${name}`)
  t.equal(matchGlob(`${"*a".repeat(500)}b`, "a".repeat(64)), false)
})

t.test(
  "ctx.1 gc --yes without AGENT archives the eligible session of both agents and their index entries; again nothing; without an agent home nothing is printed",
  async t => {
    const home = openHome(t)
    for (const agent of ["coder", "reviewer"]) await home.record(["old", "sent"], agent)
    // No agent's sessions.
    mkdirSync(join(home.path, "agent/notes/session"), { recursive: true })
    mkdirSync(join(home.path, "agent/other"))
    writeFileSync(join(home.path, "agent/file"), "")
    symlinkSync("coder", join(home.path, "agent/alias"))
    const done = await ctxGc(home, ["gc", "--yes"])
    t.strictSame([done.code, done.stderr], [0, ""])
    const line = (agent: string) =>
      `archived\t${agent}\told\t${home.archive(agent)}/old\nprotected\t${agent}\tsent\tcurrent\n`
    t.equal(done.stdout, line("coder") + line("reviewer"))
    for (const agent of ["coder", "reviewer"]) {
      const { list, keys } = readIndex(home.dir(agent))
      t.strictSame(list, ["sent"])
      t.strictSame(keys, { [`by-cwd/${cwdKey("/workspace/sent")}`]: "sent\n" })
    }
    const again = await ctxGc(home, ["gc", "--yes"])
    t.strictSame([again.code, again.stderr], [0, ""])
    t.notMatch(again.stdout, /^archived/m)
    const empty = new GcHome()
    t.match(await ctxGc(empty, ["gc", "--yes"]), { code: 0, stdout: "", stderr: "" })
    rmSync(empty.path, { recursive: true })
    t.match(await ctxGc(empty, ["gc"]), { code: 0, stdout: "", stderr: "" })
    t.match(await ctxGc(empty, ["gc", "--json"]), { code: 0, stdout: "[]\n", stderr: "" })
  },
)

t.test(
  "ctx.32 --delete alone previews, --delete --archive-dir is a usage error, archive of default is EBUSY, of a taken destination EEXIST",
  async t => {
    const home = openHome(t)
    await home.record(["default", "old", "gone", "sent"])
    const before = takePicture(home.path)
    const preview = await ctxGc(home, ["gc", "coder", "--delete", "--match", "gone"])
    t.match(preview, { code: 0, stdout: "would-delete\tcoder\tgone\t-\n", stderr: "" })
    for (const args of [
      ["--delete", "--archive-dir", "/x"],
      ["--dry-run", "--yes"],
      ["--archive-dir", "x"],
      ["--archive-dir", "/"],
    ]) {
      const ended = await ctxGc(home, ["gc", ...args])
      t.strictSame([ended.code, ended.stdout], [2, ""], args.join(" "))
      t.match(ended.stderr, /^ctx: usage: [^\n]+: [^\n]+\n$/)
    }
    const busy = await ctxGc(home, ["archive", "coder", "default"])
    t.strictSame([busy.code, busy.stdout], [69, ""])
    t.match(busy.stderr, /^ctx: EBUSY: agent\/coder: session default is protected: default: .+\n$/)
    t.strictSame(takePicture(home.path), before)

    const digestBefore = digest(join(home.dir(), "old"))
    mkdirSync(join(home.archive(), "old"), { recursive: true })
    for (const path of ["archived_sessions", "archived_sessions/coder"]) chownSync(join(home.path, path), OWNER, OWNER)
    const list = readIndex(home.dir())
    const taken = await ctxGc(home, ["archive", "coder", "old"])
    t.strictSame([taken.code, taken.stdout], [1, ""])
    t.match(taken.stderr, /^ctx: EEXIST: agent\/coder session old: .+\/old exists: .+\n$/)
    t.strictSame(readIndex(home.dir()), list)
    t.equal(digest(join(home.dir(), "old")), digestBefore)
    const foreseen = await ctxGc(home, ["gc", "coder", "--match", "o*"])
    t.match(foreseen, { code: 0, stdout: "would-fail\tcoder\told\tEEXIST\n", stderr: "" })
    const failed = await ctxGc(home, ["gc", "coder", "--match", "[og]*", "--yes"])
    t.strictSame(
      [failed.code, failed.stdout],
      [1, `archived\tcoder\tgone\t${home.archive()}/gone\nfailed\tcoder\told\tEEXIST\n`],
    )
    t.match(failed.stderr, /^ctx: EEXIST: .+\n$/)
    rmSync(join(home.archive(), "old"), { recursive: true })
    const done = await ctxGc(home, ["archive", "coder", "old", "--json"])
    t.strictSame(JSON.parse(done.stdout), [
      { action: "archived", agent: "coder", session: "old", detail: `${home.archive()}/old` },
    ])
    t.equal(digest(join(home.archive(), "old")), digestBefore)
    for (const name of ["old", "none"])
      t.match(await ctxGc(home, ["archive", "coder", name]), { code: 1, stdout: "", stderr: /^ctx: ENOENT: / })
    t.match(await ctxGc(home, ["archive", "nobody", "old"]), { code: 1, stderr: /^ctx: ENOENT: / })
  },
)

t.test("--delete --yes removes the session and follows no link out of it", async t => {
  const home = openHome(t)
  await home.record(["gone", "sent"])
  const outside = makeDir("cortexfs-outside")
  writeFileSync(join(outside, "file"), "stays")
  symlinkSync(outside, join(home.dir(), "gone/context/link"))
  symlinkSync(join(outside, "file"), join(home.dir(), "gone/latest"))
  const done = await ctxGc(home, ["gc", "--delete", "--yes"])
  t.match(done, { code: 0, stdout: "deleted\tcoder\tgone\t-\nprotected\tcoder\tsent\tcurrent\n", stderr: "" })
  t.strictSame(namesIn(home.dir()), ["index", "sent"])
  t.strictSame(namesIn(outside), ["file"])
  t.strictSame(readIndex(home.dir()).list, ["sent"])
  t.notOk(existsSync(join(home.path, "archived_sessions")))
})

t.test(
  "session.17 (other file system) an archive directory on another file system fails with EXDEV, the source is intact",
  async t => {
    const home = openHome(t)
    await home.record(["old", "sent"])
    const before = digest(home.dir())
    const index = readIndex(home.dir())
    const away = "/dev/shm"
    const preview = await ctxGc(home, ["gc", "--archive-dir", `${away}/cortexfs-gc-test`])
    t.match(preview.stdout, /^would-fail\tcoder\told\tEXDEV\n/)
    const done = await ctxGc(home, ["gc", "--yes", "--archive-dir", `${away}/cortexfs-gc-test`])
    t.strictSame([done.code, done.stdout], [1, "failed\tcoder\told\tEXDEV\nprotected\tcoder\tsent\tcurrent\n"])
    t.match(done.stderr, /^ctx: EXDEV: .+\n$/)
    t.match(await ctxGc(home, ["archive", "coder", "old", "--archive-dir", `${away}/cortexfs-gc-test`]), {
      code: 1,
      stderr: /^ctx: EXDEV: /,
    })
    t.notOk(existsSync(`${away}/cortexfs-gc-test`))
    t.equal(digest(home.dir()), before)
    t.strictSame(readIndex(home.dir()), index)
  },
)

t.test("an archive directory that overlaps the live sessions is EINVAL by whatever path it is named", async t => {
  const home = openHome(t)
  await home.record(["old", "sent"])
  const dir = makeDir("cortexfs-archive")
  chownSync(dir, OWNER, OWNER)
  symlinkSync(home.path, join(dir, "home"))
  symlinkSync(join(home.path, "agent"), join(dir, "agents"))
  const bad = [
    home.path,
    join(home.path, "agent"),
    home.dir(),
    join(home.dir(), "old"),
    join(dir, "home"),
    join(dir, "home/agent/x"),
    join(dir, "agents/x"),
    "/tmp",
  ]
  for (const path of bad) {
    const ended = await ctxGc(home, ["gc", "--yes", "--archive-dir", path])
    t.strictSame([ended.code, ended.stdout], [2, ""], path)
    t.match(ended.stderr, /^ctx: EINVAL: .+ overlaps .+\n$/, path)
  }
  const done = await ctxGc(home, ["gc", "--yes", "--archive-dir", join(dir, "kept")])
  t.match(done.stdout, `archived\tcoder\told\t${join(dir, "kept/coder/old")}\n`)
  t.strictSame(namesIn(join(dir, "kept/coder")), ["old"])
  const parentless = await ctxGc(home, ["gc", "--archive-dir", join(dir, "none/below")])
  t.match(parentless, { code: 1, stdout: "", stderr: /^ctx: ENOENT: / })
})

t.test("links and special files where the archive or a session belongs change nothing", async t => {
  const home = openHome(t)
  await home.record(["old", "sent"])
  const outside = makeDir("cortexfs-outside")
  chownSync(outside, OWNER, OWNER)
  symlinkSync(outside, join(home.path, "archived_sessions"))
  const linked = await ctxGc(home, ["gc", "--yes"])
  t.strictSame([linked.code, linked.stdout.split("\n")[0]], [1, "failed\tcoder\told\tEIO"])
  t.equal((await ctxGc(home, ["gc"])).stdout.split("\n")[0], "would-fail\tcoder\told\tEIO")
  t.strictSame(namesIn(outside), [])
  rmSync(join(home.path, "archived_sessions"))
  // Keys that are no plain files name nothing and stay.
  symlinkSync("../list", join(home.dir(), "index/by-hash/link"))
  mkdirSync(join(home.dir(), "index/by-hash/dir"))
  writeFileSync(join(home.dir(), "index/by-hash/long"), "x".repeat(300))
  // Somebody else's directory cannot be moved by the owner of the home.
  mkdirSync(join(home.dir(), "theirs"))
  writeFileSync(join(home.dir(), "theirs/state"), "idle\n")
  chownSync(join(home.dir(), "theirs"), OTHER, OTHER)
  mkdirSync(join(home.dir(), "closed"), { mode: 0o700 })
  const done = await ctxGc(home, ["gc", "--yes"])
  t.equal(
    done.stdout,
    `protected\tcoder\tclosed\tunsafe-state\narchived\tcoder\told\t${home.archive()}/old\nprotected\tcoder\tsent\tcurrent\nfailed\tcoder\ttheirs\tEACCES\n`,
  )
  t.equal(done.code, 13)
  t.match(done.stderr, /^ctx: EACCES: agent\/coder session theirs: .+\n$/)
  t.strictSame(namesIn(join(home.dir(), "index/by-hash")), ["dir", "link", "long"])
  t.ok(existsSync(join(home.dir(), "theirs/state")))
})

t.test("a bad body of list or current is EINVAL and nothing of that agent moves; the others are done", async t => {
  const home = openHome(t)
  for (const agent of ["coder", "worker"]) await home.record(["old", "sent"], agent)
  for (const file of ["list", "current"]) {
    const path = join(home.dir(), "index", file)
    const body = readFileSync(path)
    writeFileSync(path, "a b\n")
    for (const args of [["gc"], ["gc", "--yes"]]) {
      const ended = await ctxGc(home, args)
      t.equal(ended.code, 2)
      t.match(ended.stderr, new RegExp(`^ctx: EINVAL: agent/coder: index/${file} .+\\n$`))
      t.notMatch(ended.stdout, /\tcoder\t/)
      t.match(ended.stdout, /\tworker\t/)
    }
    writeFileSync(path, body)
  }
  t.strictSame(namesIn(home.dir()), ["index", "old", "sent"])
})

t.test("session.16 (archive) a session called list is archived like any other", async t => {
  const home = openHome(t)
  await home.record(["list", "by-cwd", "sent"])
  t.match(await ctxGc(home, ["archive", "coder", "list"]), {
    code: 0,
    stdout: `archived\tcoder\tlist\t${home.archive()}/list\n`,
  })
  t.strictSame(readIndex(home.dir()).list, ["sent", "by-cwd"])
})

t.test("residue whose run lock is free goes with --yes and only then; what is held stays", async t => {
  const home = openHome(t)
  await home.record(["sent"])
  const dir = home.dir()
  const residue = [".a.new-0011223344556677", ".b.import-01", ".c.del-0a", ".d.gc-1"]
  for (const name of [...residue, ".held.new-02"]) {
    mkdirSync(join(dir, name, "context"), { recursive: true })
    writeFileSync(join(dir, name, "messages.jsonl"), "{}\n")
    for (const path of [name, `${name}/context`, `${name}/messages.jsonl`]) chownSync(join(dir, path), OWNER, OWNER)
  }
  symlinkSync("sent", join(dir, ".e.del-03"))
  const lock = spawn("/usr/bin/flock", [join(dir, ".held.new-02"), "sh", "-c", "echo held; read x"], {
    stdio: ["pipe", "pipe", "pipe"],
  })
  t.teardown(() => lock.kill("SIGKILL"))
  await once(lock.stdout, "data")
  const before = takePicture(home.path)
  t.equal((await ctxGc(home, ["gc"])).code, 0)
  t.strictSame(takePicture(home.path), before)
  t.match(await ctxGc(home, ["gc", "--yes"]), { code: 0, stderr: "" })
  t.strictSame(namesIn(dir), [".held.new-02", "index", "sent"])
  chmodSync(join(dir, ".held.new-02"), 0o500)
  lock.stdin.end()
  await once(lock, "close")
  const stuck = await ctxGc(home, ["gc", "--yes"])
  t.equal(stuck.code, 13)
  t.match(stuck.stderr, /^ctx: EACCES: .+\n$/)
  t.match(stuck.stdout, /^protected\tcoder\tsent\tcurrent\n$/)
})
