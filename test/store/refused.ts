// needs: root
import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import { type Test, test } from "tap"
import { ctxPath, differences, makeCurrent, makeStore, OWNER, picture, run, type Store } from "../fixture/store/kit.js"

/** An update that must fail: exit code, errno, nothing changed. */
async function refuses(t: Test, store: Store, code: string, what: string, exit = 69): Promise<void> {
  const before = picture(store.dataRoot)
  const ended = await store.update()
  t.equal(ended.code, exit, `${what}: ${ended.stderr}`)
  t.match(ended.stderr, new RegExp(`^ctx: ${code}: [^\\n]+\\n$`), what)
  t.equal(ended.stdout, "", what)
  t.strictSame(differences(before, picture(store.dataRoot)), [], `${what}: nothing changed`)
}

const STATE = "bin/cortexfs.bootstrap.json"

test("roll.8 a state file of a newer or another form is refused and the tree stays as it is", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  const path = join(current, STATE)
  const good = readFileSync(path, "utf8")
  const bad: [string, string, string][] = [
    ["tree_version 9", good.replace('"tree_version": 1', '"tree_version": 9'), "EPROTO"],
    ["schema 2", good.replace('"schema": 1', '"schema": 2'), "EINVAL"],
    ["an extra key", good.replace("{", '{\n  "host": "a",'), "EINVAL"],
    ["a truncated file", good.slice(0, 40), "EINVAL"],
    ["a key twice", good.replace("{", '{\n  "schema": 1,'), "EINVAL"],
  ]
  for (const [what, text, code] of bad) {
    writeFileSync(path, text)
    await refuses(t, store, code, what)
    if (code === "EPROTO") {
      const dry = await run([await ctxPath(), "bootstrap", "--dry-run", current])
      t.equal(dry.stdout, "reject tree_version=9\n")
      t.match(dry.stderr, /^ctx: EPROTO: [^\n]+\n$/)
      t.equal(dry.code, 69)
    }
  }
})

test("roll.9 a current that is not exactly a link to a generation is refused", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  const link = join(store.storage, "current")
  const name = current.slice(current.lastIndexOf("/") + 1)
  const outside = join(store.dir, "outside")
  mkdirSync(outside)
  symlinkSync(outside, join(store.storage, "generations/elsewhere"))
  for (const text of [current, `generations/../generations/${name}`, "generations/v1-gone", `generations/${name}/`]) {
    unlinkSync(link)
    symlinkSync(text, link)
    await refuses(t, store, "EINVAL", text)
  }
  unlinkSync(link)
  symlinkSync("generations/elsewhere", link)
  await refuses(t, store, "EINVAL", "a link in generations that leads outside")
  unlinkSync(link)
  writeFileSync(link, `generations/${name}\n`)
  await refuses(t, store, "EINVAL", "a plain file")
})

test("roll.9 storage or generations that is a link is ELOOP, one that others may write is EACCES", async t => {
  for (const name of ["storage", "storage/generations"]) {
    const store = await makeStore()
    const elsewhere = join(store.dir, "elsewhere")
    mkdirSync(elsewhere)
    if (name !== "storage") mkdirSync(store.storage)
    symlinkSync(elsewhere, join(store.dataRoot, name))
    await refuses(t, store, "ELOOP", name)
    rmSync(join(store.dataRoot, name))
    mkdirSync(join(store.dataRoot, name))
    chmodSync(join(store.dataRoot, name), 0o775)
    await refuses(t, store, "EACCES", `${name} group-writable`, 13)
    chmodSync(join(store.dataRoot, name), 0o755)
    chownSync(join(store.dataRoot, name), OWNER, OWNER)
    await refuses(t, store, "EACCES", `${name} of another uid`, 13)
  }
})

test("a lock file that is a link or a FIFO is refused", async t => {
  const store = await makeStore()
  mkdirSync(store.storage)
  mkdirSync(join(store.storage, "generations"))
  symlinkSync("/etc/passwd", join(store.storage, ".update.lock"))
  await refuses(t, store, "ELOOP", "a link")
  unlinkSync(join(store.storage, ".update.lock"))
  await run(["/usr/bin/mkfifo", join(store.storage, ".update.lock")])
  await refuses(t, store, "EINVAL", "a FIFO")
})

test("a path that is relative, unclean or not called storage is EINVAL and exit 2", async t => {
  const store = await makeStore()
  const ctx = await ctxPath()
  for (const path of ["data/storage", `${store.dataRoot}/../data/storage`, `${store.dataRoot}/tree`, "/"]) {
    const ended = await run([ctx, "storage", "update", "--owner", String(OWNER), path], { cwd: store.dir })
    t.equal(ended.code, 2, path)
    t.match(ended.stderr, /^ctx: EINVAL: /, path)
  }
  t.strictSame([...picture(store.dataRoot).keys()], [])
  const missing = await run([ctx, "storage", "update", "--owner", String(OWNER), `${store.dir}/no/such/storage`])
  t.equal(missing.code, 69)
  t.match(missing.stderr, /^ctx: ENOENT: .*\/no: make this directory/)
})

/** A script that runs `ctx storage update` where /etc is a copy of its own, with these lines added to its files. */
async function updateWithEtc(store: Store, etc: Record<string, string>, args: string[] = []) {
  const dir = join(store.dir, "etc")
  rmSync(dir, { recursive: true, force: true })
  mkdirSync(join(dir, "cortexfs"), { recursive: true })
  writeFileSync(join(dir, "passwd"), "root:x:0:0::/root:/bin/sh\nann:x:12077:12078::/home/ann:/bin/sh\n")
  writeFileSync(join(dir, "nsswitch.conf"), "passwd: files\ngroup: files\n")
  for (const [name, text] of Object.entries(etc)) {
    const path = join(dir, name)
    const old = lstatSync(path, { throwIfNoEntry: false }) ? readFileSync(path, "utf8") : ""
    writeFileSync(path, old + text, { mode: 0o644 })
  }
  const command = [await ctxPath(), "storage", "update", ...args, store.storage]
  return run(["/usr/bin/unshare", "-m", "/bin/sh", "-c", `mount --bind ${dir} /etc && exec "$@"`, "sh", ...command])
}

const owner = (store: Store, agent: string) => readFileSync(join(store.current(), `agent/${agent}.d/owner`), "utf8")

test("roll.25 owner 0 is EINVAL, and so is an owner that nobody names, with the hint to write the file", async t => {
  const store = await makeStore()
  for (const name of ["0", "root", "nobody-like-this", "-1"]) {
    const ended = await store.update([`--owner=${name}`])
    t.equal(ended.code, 2, name)
    t.match(ended.stderr, /^ctx: EINVAL: /, name)
  }
  t.strictSame([...picture(store.dataRoot).keys()], [], "nothing was made")
  const none = await updateWithEtc(store, {})
  t.equal(none.code, 69)
  t.match(none.stderr, /^ctx: EINVAL: no owner for the managed agents: write .*\/etc\/cortexfs\/owner/)
  t.notOk(lstatSync(join(store.storage, "current"), { throwIfNoEntry: false }))
})

test("roll.25 the owner file decides for new agents and changes no existing one", async t => {
  const store = await makeStore()
  const first = await updateWithEtc(store, { "cortexfs/owner": "ann\n" })
  t.equal(first.code, 0, first.stderr)
  for (const agent of ["coder", "reviewer", "worker"]) t.equal(owner(store, agent), "12077\n")
  t.equal(readFileSync(join(store.current(), "agent/coder.d/gid"), "utf8"), "12078\n", "the account's group")
  t.equal(lstatSync(join(store.current(), "agent/coder.d/policy")).gid, 12078)
  rmSync(join(store.current(), "agent/worker"))
  rmSync(join(store.current(), "agent/worker.d"), { recursive: true })
  const second = await updateWithEtc(store, { "cortexfs/owner": "12099\n" })
  t.equal(second.code, 0, second.stderr)
  t.strictSame(
    ["coder", "reviewer", "worker"].map(agent => owner(store, agent)),
    ["12077\n", "12077\n", "12099\n"],
  )
  const option = await makeStore()
  t.equal((await updateWithEtc(option, { "cortexfs/owner": "ann\n" }, ["--owner", "12088"])).code, 0)
  t.equal(owner(option, "coder"), "12088\n", "the option comes first")
})

test("roll.25 the user cortexfs owns the agents when no file names anybody, and a bad file is refused", async t => {
  const account = "cortexfs:x:990:991::/var/lib/cortexfs:/usr/sbin/nologin\n"
  const store = await makeStore()
  t.equal((await updateWithEtc(store, { passwd: account })).code, 0)
  t.equal(owner(store, "coder"), "990\n")
  for (const [text, what] of [
    ["ann", "no final LF"],
    ["0\n", "uid 0"],
    ["ann\nbob\n", "two lines"],
  ] as const) {
    const bad = await makeStore()
    const ended = await updateWithEtc(bad, { passwd: account, "cortexfs/owner": text })
    t.equal(ended.code, 69, what)
    t.match(ended.stderr, /^ctx: EINVAL: /, what)
  }
})
