// needs: root
import { execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import { chmodSync, existsSync, lstatSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import { applyBootstrap, planBootstrap } from "../../src/store/bootstrap.js"
import { ctxPath, differences, makeCurrent, makeStore, OWNER, picture, run, updateHere } from "../fixture/store/kit.js"
import { makeDir } from "../harness/product.js"

const owner = String(OWNER)
const bootstrap = async (...args: string[]) => run([await ctxPath(), "bootstrap", ...args])

/** A directory for a plain source. */
function makeSource(): string {
  const source = join(makeDir(), "tree")
  mkdirSync(source, { mode: 0o755 })
  return source
}

test("roll.22 check is exit 0 on a fresh tree and 69 on a stale one, and writes nothing", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  const link = join(store.storage, "current")
  let image = picture(store.dataRoot)
  const fresh = await bootstrap("--check", link)
  t.strictSame([fresh.code, fresh.stdout], [0, "ok bootstrap tree_version=1 migrations=initial-tree\n"])
  t.strictSame((await bootstrap("--dry-run", link)).stdout, "tree_version=1->1\n")
  t.strictSame(differences(image, picture(store.dataRoot)), [])
  writeFileSync(join(current, "shared/cortexfs-docs/man/ctx.old.md"), "")
  rmSync(join(current, "agent/coder.d/cwd"))
  writeFileSync(join(current, "tool/fs.read.d/cap"), "")
  image = picture(store.dataRoot)
  const stale = await bootstrap("--check", link)
  t.strictSame([stale.code, stale.stdout], [69, "stale bootstrap tree_version=1->1\n"])
  const dry = await bootstrap("--dry-run", link)
  t.equal(dry.code, 0)
  t.equal(
    dry.stdout,
    "tree_version=1->1\nwould_change tool/fs.read.d/cap\nwould_ensure agent/coder.d/cwd\nwould_remove shared/cortexfs-docs/man/ctx.old.md\n",
  )
  const json = JSON.parse((await bootstrap("--dry-run", "--json", link)).stdout)
  t.strictSame(json, {
    from: 1,
    to: 1,
    migrations: [],
    changes: [
      { action: "would_change", path: "tool/fs.read.d/cap" },
      { action: "would_ensure", path: "agent/coder.d/cwd" },
      { action: "would_remove", path: "shared/cortexfs-docs/man/ctx.old.md" },
    ],
    rejected: false,
  })
  t.strictSame(differences(image, picture(store.dataRoot)), [])
})

test("roll.22 plain mode on a published generation is EBUSY with the hint, through a link too", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  const link = join(store.dir, "innocent")
  symlinkSync(current, link)
  for (const source of [current, link, join(store.storage, "current")]) {
    const refused = await bootstrap(source)
    t.equal(refused.code, 69)
    t.match(refused.stderr, /^ctx: EBUSY: .* is a published generation: use ctx storage update\n$/)
  }
})

test("an ordinary user checks a generation that he may not list", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  const env = { PATH: "/usr/bin:/bin", HOME: "/nonexistent", SHELL: "/bin/sh" }
  const checked = await run([await ctxPath(), "bootstrap", "--check", current], { uid: OWNER, env })
  t.strictSame([checked.code, checked.stdout], [0, "ok bootstrap tree_version=1 migrations=initial-tree\n"])
})

test("bootstrap makes a plain source a tree that has the content of a generation, with homes beside it", async t => {
  const source = makeSource()
  t.equal((await bootstrap("--check", source)).stdout, "missing bootstrap\n")
  const made = await bootstrap("--owner", owner, source)
  t.strictSame([made.code, made.stdout, made.stderr], [0, "", ""])
  const store = await makeStore()
  const current = await makeCurrent(store)
  const plain = picture(source, { time: false })
  for (const path of [...plain.keys()]) if (path.startsWith("home")) plain.delete(path)
  t.strictSame(differences(plain, picture(current, { time: false })), [])
  t.ok(existsSync(join(source, `home/${owner}/agent/coder/session/index/by-cwd`)))
  t.equal((await bootstrap("--check", source)).code, 0)
  const image = picture(source)
  t.equal((await bootstrap("--owner", owner, source)).code, 0)
  t.strictSame(differences(image, picture(source)), [], "a second run writes nothing")
})

test("bootstrap keeps what a plain source has of a person: spaces, homes, his agents and edits", async t => {
  const source = makeSource()
  mkdirSync(join(source, "shared/lab"), { recursive: true })
  mkdirSync(join(source, "agent/mine.d"), { recursive: true })
  writeFileSync(join(source, "agent/mine.d/owner"), "1\n")
  applyBootstrap(source, { owner })
  writeFileSync(join(source, "agent/coder.d/model"), "debug/echo\n")
  rmSync(join(source, "bin/ctx"))
  const image = picture(source)
  applyBootstrap(source, { owner })
  t.strictSame(differences(image, picture(source)), ["bin/ctx"])
  t.equal(readFileSync(join(source, "agent/mine.d/owner"), "utf8"), "1\n")
})

test("bootstrap refuses a source that is in use, that others may write, or whose tree is in its way", async t => {
  const source = makeSource()
  const holder = spawn("/usr/bin/flock", ["-s", "-F", source, "/bin/sh", "-c", "echo held; read x"])
  await once(holder.stdout, "data")
  const busy = await bootstrap("--owner", owner, source)
  t.equal(busy.code, 69)
  t.match(busy.stderr, new RegExp(`^ctx: EBUSY: ${source} is in use by pid ${holder.pid} `))
  holder.stdin.end("\n")
  await once(holder, "exit")
  chmodSync(source, 0o777)
  t.equal((await bootstrap("--owner", owner, source)).code, 13)
  chmodSync(source, 0o755)
  writeFileSync(join(source, "agent"), "")
  const blocked = await bootstrap("--owner", owner, source)
  t.equal(blocked.code, 69)
  t.match(blocked.stderr, /^ctx: EINVAL: agent/)
  t.strictSame([...picture(source).keys()], ["agent"], "nothing was written")
  t.equal((await bootstrap(join(source, "nowhere"))).code, 1)
  t.equal((await bootstrap("--check", "--dry-run", source)).code, 2)
})

test("bootstrap follows no link that a control directory's owner has planted", async t => {
  const source = makeSource()
  applyBootstrap(source, { owner })
  const target = join(makeDir(), "target")
  mkdirSync(target)
  const dir = join(source, "agent/coder.d")
  rmSync(join(dir, "hooks"), { recursive: true })
  symlinkSync(target, join(dir, "hooks"))
  t.throws(() => applyBootstrap(source, { owner }), { code: "EINVAL", message: /^agent\/coder\.d\/hooks: / })
  rmSync(join(dir, "hooks"))
  // A link under the temporary name is removed as a link, and one in place of a control is replaced as one.
  symlinkSync(join(target, "temp"), join(dir, ".cortexfs-bootstrap"))
  rmSync(join(dir, "abi"))
  applyBootstrap(source, { owner })
  t.strictSame([...picture(target).keys()], [])
  t.ok(lstatSync(join(dir, "abi")).isFile())
  t.notOk(lstatSync(join(dir, ".cortexfs-bootstrap"), { throwIfNoEntry: false }))
})

test("a plain bootstrap killed after any number of system calls is completed by a second run", async t => {
  const wanted = makeSource()
  applyBootstrap(wanted, { owner })
  const rename = ["/usr/bin/strace", "-f", "-o", "/dev/null", "-e", "trace=renameat2,renameat,mkdirat,symlinkat"]
  for (const [call, count] of [
    ["renameat2", 3],
    ["renameat2", 20],
    ["renameat", 5],
    ["renameat", 70],
    ["mkdirat", 9],
    ["symlinkat", 2],
  ] as const) {
    const source = makeSource()
    const inject = ["-e", `inject=${call}:signal=SIGKILL:when=${count}`]
    const command = [await ctxPath(), "bootstrap", "--owner", owner, source]
    const killed = await run([...rename, ...inject, ...command])
    t.equal(killed.signal ?? killed.code, "SIGKILL", `${call} ${count}: ${killed.stderr}`)
    const again = await bootstrap("--owner", owner, source)
    t.equal(again.code, 0, again.stderr)
    t.strictSame(planBootstrap(source, { owner }).changes.length > 0, true, "the installed program has another prefix")
    const names = (dir: string) => [...picture(dir).keys()]
    t.strictSame(names(source), names(wanted), `${call} ${count}: no temporary is left`)
  }
})

test("the durable skeleton made by root in a home that was left half made is completed", async t => {
  const store = await makeStore()
  const home = join(store.dataRoot, "home", owner)
  mkdirSync(home, { recursive: true, mode: 0o700 })
  await updateHere(store)
  t.equal(lstatSync(home).uid, OWNER, "a home of root's is given to its owner")
  execFileSync("rm", ["-r", join(home, "agent/coder/session")])
  rmSync(join(store.current(), "bin/ctx"))
  await updateHere(store)
  t.equal(lstatSync(join(home, "agent/coder/session/index/by-hash")).uid, OWNER)
  t.equal(process.geteuid!(), 0)
})
