// needs: root
import { execFileSync } from "node:child_process"
import {
  accessSync,
  chmodSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import { ctxPath, makeCurrent, makeStore, OTHER, OWNER, picture, run } from "../fixture/store/kit.js"

const mode = (path: string) => (lstatSync(path).mode & 0o7777).toString(8)
const facts = (path: string) => {
  const stat = lstatSync(path)
  return `${(stat.mode & 0o7777).toString(8)} ${stat.uid}:${stat.gid}`
}

const STATE = `{
  "schema": 1,
  "tree_version": 1,
  "managed_agents": [
    "coder",
    "reviewer",
    "worker"
  ],
  "applied_migrations": [
    "initial-tree"
  ]
}
`

test("roll.1 an update of an empty directory makes the layout, modes and state of section 3 and 5", async t => {
  const store = await makeStore()
  const made = await store.update()
  t.equal(made.code, 0, made.stderr)
  const text = readlinkSync(join(store.storage, "current"))
  t.match(text, /^generations\/v1-\d{8}T\d{6}Z-[0-9a-f]{8}$/)
  t.equal(made.stdout, `${store.current()}\n`)
  t.equal(made.stderr, "")
  t.strictSame(readdirSync(store.storage).sort(), [".update.lock", "current", "generations"])
  t.strictSame(readdirSync(join(store.storage, "generations")), [text.slice("generations/".length)])
  t.strictSame(
    ["", "storage", "storage/.update.lock", "storage/generations", `storage/${text}`, "home", "shared"].map(path =>
      facts(join(store.dataRoot, path)),
    ),
    ["755 0:0", "755 0:0", "600 0:0", "755 0:0", "711 0:0", "755 0:0", "755 0:0"],
  )
  t.strictSame(readdirSync(store.current()).sort(), ["agent", "bin", "model", "shared", "tool"])
  t.strictSame(readdirSync(join(store.current(), "shared")), ["cortexfs-docs"])
  t.equal(readFileSync(join(store.current(), "bin/cortexfs.bootstrap.json"), "utf8"), STATE)
})

test("roll.1 (umask) the modes do not depend on the caller's umask", async t => {
  const store = await makeStore()
  const made = await run(["/bin/sh", "-c", `umask 077; exec "$@"`, "sh", ...(await command(store))])
  t.equal(made.code, 0, made.stderr)
  t.equal(mode(store.storage), "755")
  t.equal(mode(join(store.current(), "agent/coder.d/policy")), "644")
  t.equal(mode(join(store.current(), "agent/coder.d")), "755")
})

async function command(store: { storage: string }): Promise<string[]> {
  return [await ctxPath(), "storage", "update", "--owner", String(OWNER), store.storage]
}

test("roll.2 a second update selects the same generation and writes nothing below generations", async t => {
  const store = await makeStore()
  const first = await makeCurrent(store)
  const generations = join(store.storage, "generations")
  const before = newestCtime(generations)
  const trace = join(store.dir, "trace")
  const again = await run([
    "/usr/bin/strace",
    "-f",
    "-e",
    "trace=openat,openat2,creat",
    "-o",
    trace,
    ...(await command(store)),
  ])
  t.equal(again.code, 0, again.stderr)
  t.equal(again.stdout, `${first}\n`)
  t.strictSame(readdirSync(generations).length, 1)
  t.equal(newestCtime(generations), before)
  const opened = readFileSync(trace, "utf8")
    .split("\n")
    .filter(line => /O_WRONLY|O_RDWR|O_CREAT/.test(line))
  const written = opened.filter(line => !/\/dev\/null|\.update\.lock|\/proc\/|eventfd/.test(line))
  t.strictSame(written, [], "nothing but the lock is opened for writing")
})

function newestCtime(dir: string): string {
  return execFileSync("find", [dir, "-printf", "%C@\n"], { encoding: "utf8" }).trim().split("\n").sort().at(-1) ?? ""
}

test("roll.27 a first update makes the owner's home and leaves what is in it", async t => {
  const store = await makeStore()
  const home = join(store.dataRoot, "home", String(OWNER))
  mkdirSync(home, { recursive: true, mode: 0o755 })
  chmodSync(home, 0o700)
  execFileSync("chown", [`${OWNER}:${OWNER}`, home])
  mkdirSync(join(home, "tool"), { mode: 0o750 })
  writeFileSync(join(home, "notes"), "mine\n")
  await makeCurrent(store)
  for (const name of ["", "agent", "model", "agent/coder", "agent/coder/session/index/by-uuid", "agent/worker/data"]) {
    t.equal(facts(join(home, name)), `700 ${OWNER}:${OWNER}`, name)
  }
  t.equal(mode(join(home, "tool")), "750", "what is there keeps its mode")
  t.equal(readFileSync(join(home, "notes"), "utf8"), "mine\n")
})

test("a link that the owner planted in his home leads an update nowhere", async t => {
  const store = await makeStore()
  const home = join(store.dataRoot, "home", String(OWNER))
  const target = join(store.dir, "target")
  mkdirSync(target)
  mkdirSync(home, { recursive: true })
  execFileSync("ln", ["-s", target, join(home, "agent")])
  execFileSync("chown", ["-hR", `${OWNER}:${OWNER}`, home])
  await makeCurrent(store)
  t.strictSame(readdirSync(target), [])
  t.equal(readlinkSync(join(home, "agent")), target)
  t.equal(facts(join(home, "tool")), `700 ${OWNER}:${OWNER}`, "the rest is made")
})

test("roll.21 an ordinary user cannot open a generation but reads and executes what he knows by name", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  const as = (...words: string[]) => run(words, { uid: OTHER })
  t.match((await as("/bin/ls", current)).stderr, /Permission denied/)
  t.match((await as("/usr/bin/flock", "-sn", current, "true")).stderr, /Permission denied/)
  const read = await as("/bin/cat", join(store.storage, "current/agent/coder.d/policy"))
  t.match(read.stdout, /^allow coder_t tool:fs\.read execute\n/)
  t.equal((await as("/usr/bin/test", "-x", join(store.storage, "current/tool/fs.read"))).code, 0)
  t.equal((await as(join(store.storage, "current/bin/ctx"), "abi")).stdout.split("\n")[0], "abi=1")
})

test("root.13 (backing tree) every node has the mode and owner of section 5", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  const rows: [string, string][] = [
    ["agent", "755 0:0"],
    ["model", "755 0:0"],
    ["tool", "755 0:0"],
    ["shared/cortexfs-docs", "755 0:0"],
    ["shared/cortexfs-docs/README.md", "444 0:0"],
    ["bin/cortexfs.bootstrap.json", "444 0:0"],
    ["bin/ctx", "555 0:0"],
    ["tool/fs.read", "555 0:0"],
    ["tool/fs.read.d", "755 0:0"],
    ["tool/fs.read.d/schema", "444 0:0"],
    ["tool/fs.read.d/policy", "644 0:0"],
    ["model/main", "777 0:0"],
    ["agent/coder", `755 ${OWNER}:${OWNER}`],
    ["agent/coder.d", `755 ${OWNER}:${OWNER}`],
    ["agent/coder.d/hooks/pre.d", `755 ${OWNER}:${OWNER}`],
    ...readdirSync(join(current, "agent/coder.d"))
      .filter(name => name !== "hooks")
      .map((name): [string, string] => [`agent/coder.d/${name}`, `644 ${OWNER}:${OWNER}`]),
  ]
  for (const [path, wanted] of rows) t.equal(facts(join(current, path)), wanted, path)
})

test("a per-user update belongs to the caller and is closed to everybody else", async t => {
  const store = await makeStore()
  execFileSync("chown", [`${OWNER}:${OWNER}`, store.dataRoot])
  chmodSync(store.dataRoot, 0o700)
  const made = await store.update([], { uid: OWNER, groups: [OTHER] })
  t.equal(made.code, 0, made.stderr)
  const current = store.current()
  for (const line of picture(store.dataRoot).values()) {
    t.equal(line.split(" ").slice(1, 3).join(":"), `${OWNER}:${OWNER}`)
    if (line.startsWith("4")) t.match(line, /^40700 /)
  }
  t.equal(readFileSync(join(current, "agent/coder.d/owner"), "utf8"), `${OWNER}\n`)
  t.equal(readFileSync(join(current, "agent/coder.d/groups"), "utf8"), `${OTHER}\n`, "the caller's groups are written")
  const other = await store.update(["--owner", String(OTHER)], { uid: OWNER })
  t.equal(other.code, 13)
  t.match(other.stderr, /^ctx: EPERM: --owner/)
})

test("an executable of the tree names the installed program", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  for (const [path, program] of [
    ["agent/coder", "cortexfs-step coder"],
    ["tool/fs.list", "cortexfs-tool fs.list"],
    ["bin/ctx", "cortexfs-exec ctx"],
  ]) {
    const line = readFileSync(join(current, path!), "utf8")
    t.match(line, new RegExp(`^#!/.*/lib/cortexfs/bin/${program}\\n$`), String(path))
    t.doesNotThrow(() => accessSync(line.slice(2).split(" ")[0]!), "and it is there")
  }
})

test("without PATH a user's storage is made below his state directory", async t => {
  const store = await makeStore()
  const state = join(store.dir, "state")
  mkdirSync(state, { mode: 0o700 })
  execFileSync("chown", [`${OWNER}:${OWNER}`, state])
  const env = { PATH: "/usr/bin:/bin", HOME: "/nonexistent", XDG_STATE_HOME: join(state, "deep/er") }
  const made = await run([await ctxPath(), "storage", "update"], { uid: OWNER, env })
  t.equal(made.code, 0, made.stderr)
  t.match(made.stdout, new RegExp(`^${state}/deep/er/cortexfs/storage/generations/v1-`))
  t.equal(facts(join(state, "deep/er/cortexfs/storage")), `700 ${OWNER}:${OWNER}`)
  const checked = await run([await ctxPath(), "bootstrap", "--check"], { uid: OWNER, env })
  t.strictSame([checked.code, checked.stdout], [0, "ok bootstrap tree_version=1 migrations=initial-tree\n"])
  const other = await run([await ctxPath(), "storage", "update", join(state, "deep/er/cortexfs/storage")])
  t.equal(other.code, 13, "root does not work in a tree that somebody else can change")
})
