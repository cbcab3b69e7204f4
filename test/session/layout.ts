// needs: root
import { spawnSync } from "node:child_process"
import {
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs"
import { createServer } from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import { cwdKey } from "../../src/abi/hash.js"
import { verifyNamed } from "../../src/session/reader.js"
import {
  CWD,
  linesOf,
  makePlace,
  OWNER,
  recordRun,
  rowsOf,
  runChild,
  runId,
  Sessions,
  startOf,
  takePicture,
} from "../fixture/session/place.js"

t.test(
  "session.13 every event has its line number as seq, every row a TS, and old files are byte prefixes over five turns",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    const dir = join(place.dir, "s")
    let messages = ""
    let events = ""
    for (let n = 1; n <= 5; n++) {
      await recordRun(sessions, "s", startOf(n))
      const nextMessages = readFileSync(join(dir, "messages.jsonl"), "utf8")
      const nextEvents = readFileSync(join(dir, "events.jsonl"), "utf8")
      t.ok(nextMessages.length > messages.length && nextMessages.startsWith(messages), `messages of turn ${n}`)
      t.ok(nextEvents.length > events.length && nextEvents.startsWith(events), `events of turn ${n}`)
      messages = nextMessages
      events = nextEvents
    }
    const ts = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
    rowsOf(join(dir, "events.jsonl")).forEach((row, i) => {
      t.equal(row.seq, i + 1)
      t.match(row.ts, ts)
    })
    const rows = rowsOf(join(dir, "messages.jsonl"))
    t.equal(rows.length, 10)
    for (const row of rows) t.match(row.ts, ts)
  },
)

t.test("rows keep the key order of the tables, and the bytes returned are the bytes stored", async t => {
  const place = makePlace()
  const lines = await recordRun(new Sessions(place), "s", startOf(1, { window: "0".repeat(32) }))
  const stored = readFileSync(join(place.dir, "s/events.jsonl"), "utf8")
  const first = stored.slice(0, stored.indexOf("\n") + 1)
  t.equal(stored, first + lines.join(""))
  t.match(first, /^\{"seq":1,"ts":"[^"]+","type":"session_created","session":"s","scope":"private","uid":12001\}\n$/)
  const keys = lines.map(line => Object.keys(JSON.parse(line)).join(" "))
  t.strictSame(keys, [
    "seq ts type id run client_id scope cwd model window",
    "seq ts type run model step input_tokens output_tokens",
    "seq ts type run role content",
    "seq ts type run status",
  ])
  const rows = rowsOf(join(place.dir, "s/messages.jsonl")).map(row => Object.keys(row).join(" "))
  t.strictSame(rows, ["role ts run client_id scope cwd content", "role ts run content"])
})

t.test(
  "a new session has the files, modes and owner of session-abi 7, made by root or by the owner himself",
  async t => {
    for (const uid of [0, OWNER]) {
      const place = makePlace()
      const ended = await runChild(place, { session: "s", id: "m-1", run: runId(1), content: "hi" }, { uid })
      t.equal(ended.code, 0, ended.stdout)
      const dir = join(place.dir, "s")
      const names = [
        "context",
        "created_at",
        "cwd",
        "events.jsonl",
        "latest.md",
        "messages.jsonl",
        "meta.json",
        "state",
        "updated_at",
      ]
      t.strictSame(readdirSync(dir).sort(), names)
      for (const [path, facts] of Object.entries(takePicture(place.dir))) {
        t.match(facts, path.endsWith("/") ? /^40700 12001:12001 / : /^100600 12001:12001 /, path)
      }
      t.equal(readFileSync(join(dir, "state"), "utf8"), "done\n")
      t.equal(readFileSync(join(dir, "cwd"), "utf8"), `${CWD}\n`)
      t.equal(readFileSync(join(dir, "latest.md"), "utf8"), "answer to hi\n")
      t.match(readFileSync(join(dir, "created_at"), "utf8"), /^\d+\n$/)
      t.equal(
        readFileSync(join(dir, "meta.json"), "utf8"),
        '{"client":"ctx","scope":"private","model":"debug/echo","lifetime":"keep"}\n',
      )
    }
  },
)

t.test("a session of a space has modes 2770 and 0660 and the group of the space", async t => {
  const base = makePlace().dir.replace(/home\/.*/, "")
  const space = join(base, "shared/lab")
  mkdirSync(space, { recursive: true })
  const { chmodSync, chownSync } = await import("node:fs")
  chownSync(space, 0, 12077)
  chmodSync(space, 0o2770)
  const place = {
    dir: join(space, "agent/coder/session"),
    scope: "shared" as const,
    shared: "lab",
    uid: OWNER,
    gid: OWNER,
  }
  await recordRun(new Sessions(place), "s", startOf(1, { scope: "shared", shared: "lab" }))
  for (const [path, facts] of Object.entries(takePicture(place.dir))) {
    t.match(facts, path.endsWith("/") ? /^42770 12001:12077 / : /^100660 12001:12077 /, path)
  }
  t.match(linesOf(join(place.dir, "s/messages.jsonl"))[0], /"scope":"shared","shared":"lab","cwd"/)
})

t.test(
  "session.16 (FNV table and file kinds only) by-cwd keys are those of the table and by-* entries regular files",
  async t => {
    const table: [string, string][] = [
      ["/", "cwd-af63a24c860189fe"],
      ["/workspace", "cwd-990e10b3394addcf"],
      ["/workspace/api", "cwd-b01b17a03e5d31d0"],
      ["/home/agent", "cwd-79799fb65de2e6ef"],
      ["/workspace/专案", "cwd-26b7ecce6e020218"],
    ]
    const place = makePlace()
    const sessions = new Sessions(place)
    const uuid = "01234567-89ab-cdef-0123-456789abcdef"
    for (const [i, [cwd, key]] of table.entries()) {
      t.equal(cwdKey(cwd), key)
      await recordRun(sessions, "s", startOf(i + 1, { cwd, hash: "key-1", uuid }))
      const path = join(place.dir, "index/by-cwd", key)
      t.ok(lstatSync(path).isFile())
      t.equal(readFileSync(path, "utf8"), "s\n")
    }
    for (const path of ["by-hash/key-1", `by-uuid/${uuid}`]) {
      t.ok(lstatSync(join(place.dir, "index", path)).isFile())
      t.equal(readFileSync(join(place.dir, "index", path), "utf8"), "s\n")
    }
  },
)

t.test(
  "session.16 (creation and listing only) sessions named list, current and by-cwd can be created and listed",
  async t => {
    const place = makePlace()
    const sessions = new Sessions(place)
    for (const [i, name] of ["list", "current", "by-cwd"].entries()) await recordRun(sessions, name, startOf(i + 1))
    t.strictSame(sessions.list(), ["by-cwd", "current", "list"])
    t.throws(() => sessions.find("index"), { code: "EINVAL" })
    await t.rejects(sessions.create("index", { cwd: CWD }), { code: "EINVAL" })
  },
)

t.test("session.19 (creation only) lifetime and origin follow the name prefix", async t => {
  const place = makePlace()
  const sessions = new Sessions(place)
  const expected: Record<string, { lifetime: string; origin?: string }> = {
    "temp-a": { lifetime: "idle:1800", origin: "temp" },
    "chat-b": { lifetime: "keep", origin: "chat" },
    plain: { lifetime: "keep" },
  }
  for (const [i, name] of Object.keys(expected).entries()) {
    await recordRun(sessions, name, startOf(i + 1))
    const meta = JSON.parse(readFileSync(join(place.dir, name, "meta.json"), "utf8"))
    t.equal(meta.lifetime, expected[name]!.lifetime)
    t.equal(meta.origin, expected[name]!.origin)
    t.equal(rowsOf(join(place.dir, name, "events.jsonl"))[0]!.origin, expected[name]!.origin)
  }
})

const FILES = [
  ...["messages.jsonl", "events.jsonl", "latest.md", "state", "cwd", "created_at", "updated_at", "meta.json"],
  ...["AGENTS.md", "SKILLS.md", "messages.jsonl.torn-1", "events.jsonl.torn-12"],
]
const DIRECTORIES = ["context", "pending", "snapshot", "terminal"]

async function placeSpecial(kind: string, path: string): Promise<() => void> {
  if (kind === "file") writeFileSync(path, "x\n")
  else if (kind === "symlink") symlinkSync(`${path}.aside`, path)
  else if (kind === "directory") mkdirSync(path)
  else if (kind === "fifo") spawnSync("mkfifo", [path])
  else {
    const server = createServer()
    // The path of a socket is short; one that is moved keeps its inode.
    const bound = join(tmpdir(), `cortexfs-${process.pid}.sock`)
    await new Promise<void>(done => server.listen(bound, done))
    linkSync(bound, path)
    return () => server.close()
  }
  return () => {}
}

t.test("a symlink or special file where a plain one belongs gives EIO at once and stays as it is", async t => {
  const cases = [
    ...FILES.flatMap(name => ["symlink", "directory", "fifo", "socket"].map(kind => ({ name, kind }))),
    ...DIRECTORIES.flatMap(name => ["symlink", "file", "fifo", "socket"].map(kind => ({ name, kind }))),
  ]
  for (const { name, kind } of cases) {
    const place = makePlace()
    const sessions = new Sessions(place)
    await recordRun(sessions, "s", startOf(1))
    const path = join(place.dir, "s", name)
    const isThere = existsSync(path)
    if (isThere) renameSync(path, `${path}.aside`)
    else if (DIRECTORIES.includes(name)) mkdirSync(`${path}.aside`)
    else writeFileSync(`${path}.aside`, "")
    const remove = await placeSpecial(kind, path)
    const before = takePicture(place.dir)
    // The process that recorded it, and one that has never opened it.
    for (const opener of [sessions, new Sessions(place)]) {
      const session = opener.find("s")!
      await t.rejects(session.open(), { code: "EIO" }, `${kind} ${name}`)
      await t.rejects(session.inspect(), { code: "EIO" })
    }
    await t.rejects(verifyNamed(place.dir, "s"), { code: "EIO", path: name }, `verify names ${kind} ${name}`)
    t.strictSame(takePicture(place.dir), before)
    remove()
  }
  const place = makePlace()
  await recordRun(new Sessions(place), "s", startOf(1))
  symlinkSync("s", join(place.dir, "other"))
  t.throws(() => new Sessions(place).find("other"), { code: "EIO" })
  writeFileSync(join(place.dir, "plain"), "")
  t.throws(() => new Sessions(place).find("plain"), { code: "EIO" })
})

t.test("terminal/main.sock may be a symlink, and other names are no matter", async t => {
  const place = makePlace()
  await recordRun(new Sessions(place), "s", startOf(1))
  mkdirSync(join(place.dir, "s/terminal"))
  symlinkSync("/run/nowhere.sock", join(place.dir, "s/terminal/main.sock"))
  symlinkSync("state", join(place.dir, "s/notes"))
  await new Sessions(place).find("s")!.open()
  t.strictSame(
    (await verifyNamed(place.dir, "s")).map(({ damage }) => damage),
    [undefined, undefined],
  )
})

t.test("meta.json and latest.md of 20 GB are not read: the first counts as {}, the second is rewritten", async t => {
  const place = makePlace()
  await recordRun(new Sessions(place), "s", startOf(1))
  const size = 20 * 1024 ** 3
  const path = (name: string) => join(place.dir, "s", name)
  for (const name of ["meta.json", "latest.md"]) truncateSync(path(name), size)
  const meta = lstatSync(path("meta.json"), { bigint: true })
  const readBytes = () => Number(/rchar: (\d+)/.exec(readFileSync("/proc/self/io", "utf8"))![1])
  const start = readBytes()
  await recordRun(new Sessions(place), "s", startOf(2, { model: "main" }))
  const read = readBytes() - start
  t.ok(read < 1 << 20, `${read} bytes were read`)
  const now = lstatSync(path("meta.json"), { bigint: true })
  t.strictSame([now.ino, now.size, now.mtimeNs], [meta.ino, meta.size, meta.mtimeNs], "meta.json is left as it is")
  t.equal(readFileSync(path("latest.md"), "utf8"), "answer to input 2\n")
  truncateSync(path("latest.md"), size)
  await new Sessions(place).find("s")!.open()
  t.equal(readFileSync(path("latest.md"), "utf8"), "answer to input 2\n", "rewritten by the next opening")
})

t.test("a creation that fails removes what it made and nothing else", async t => {
  const place = makePlace()
  const home = place.dir.replace("/agent/coder/session", "")
  const before = Object.keys(takePicture(home))
  const ended = await runChild(
    place,
    { session: "s", id: "m-1", run: runId(1), content: "hi" },
    { fault: "session.rename:1:EIO" },
  )
  t.equal(ended.code, 1)
  t.match(ended.stdout, /"code":"EIO"/)
  t.strictSame(Object.keys(takePicture(home)), before)
  t.equal(statSync(home).uid, OWNER)
})
