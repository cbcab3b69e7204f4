// needs: root strace
import { execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import { ctxPath, makeCurrent, makeStore, OWNER, picture, run, type Store } from "../fixture/store/kit.js"

const prune = (store: Store) => store.update(["--prune", "--owner", String(OWNER)])
const name = (path: string) => path.slice(path.lastIndexOf("/") + 1)

/** A storage with `count` generations, the last one selected. */
async function makeMany(count: number): Promise<{ store: Store; generations: string[] }> {
  const store = await makeStore()
  const generations = [await makeCurrent(store)]
  for (let i = 1; i < count; i++) {
    rmSync(join(store.current(), "shared/cortexfs-docs/README.md"))
    generations.push(await makeCurrent(store))
  }
  return { store, generations }
}

test("roll.17 prune removes what is not selected, keeps what is pinned or no generation, and says so", async t => {
  const { store, generations } = await makeMany(3)
  const [first, second, third] = generations as [string, string, string]
  const dir = join(store.storage, "generations")
  writeFileSync(join(dir, "notes.txt"), "mine")
  symlinkSync(first, join(dir, "old"))
  mkdirSync(join(dir, "_odd"))
  const holder = spawn("/usr/bin/flock", ["-s", "-F", first, "/bin/sh", "-c", "echo held; read x"])
  await once(holder.stdout, "data")
  const pruned = await prune(store)
  t.equal(pruned.code, 0, pruned.stderr)
  // Made in one second, the two differ in their random part: either may come first by name.
  const lines = [`kept ${name(first)} pinned pid=${holder.pid}`, `pruned ${name(second)}`]
  t.strictSame(pruned.stdout.trimEnd().split("\n"), [
    third,
    "kept _odd not a generation",
    "kept notes.txt not a generation",
    "kept old not a generation",
    ...(name(first) < name(second) ? lines : lines.reverse()),
  ])
  t.strictSame(readdirSync(dir).sort(), ["_odd", name(first), name(third), "notes.txt", "old"].sort())
  const json = JSON.parse(
    (await run([await ctxPath(), "storage", "update", "--prune", "--json", store.storage])).stdout,
  )
  t.strictSame(Object.keys(json), ["path", "generation", "changed", "tree_version", "entries"])
  t.equal(json.changed, false)
  t.strictSame(json.entries.at(-1), { action: "kept", name: name(first), pids: [holder.pid] })
  holder.stdin.end("\n")
  await once(holder, "exit")
  const later = await prune(store)
  t.match(later.stdout, new RegExp(`^pruned ${name(first)}$`, "m"))
  t.notOk(existsSync(first))
  t.ok(existsSync(join(third, "bin/ctx")))
})

test("roll.18 prune looks at nothing beside generations and removes a link as a link", async t => {
  const { store, generations } = await makeMany(2)
  for (const path of [`home/${OWNER}/notes`, "shared/lab", "cache/x", "secrets/provider/y"]) {
    mkdirSync(join(store.dataRoot, path), { recursive: true })
    writeFileSync(join(store.dataRoot, path, "f"), "kept\n")
  }
  symlinkSync("../../../home", join(generations[0]!, "home"))
  const before = ["home", "shared", "cache", "secrets"].map(dir => [...picture(join(store.dataRoot, dir))])
  const trace = join(store.dir, "trace")
  const strace = ["/usr/bin/strace", "-f", "-y", "-e", "trace=%file,openat2,unlinkat,getdents64", "-o", trace]
  const pruned = await run([...strace, await ctxPath(), "storage", "update", "--prune", store.storage])
  t.equal(pruned.code, 0, pruned.stderr)
  t.match(pruned.stdout, new RegExp(`^pruned ${name(generations[0]!)}$`, "m"))
  const touched = readFileSync(trace, "utf8")
    .split("\n")
    .filter(line => new RegExp(`${store.dataRoot}/(?:home|shared|cache|secrets)`).test(line))
  t.strictSame(touched, [])
  t.strictSame(
    ["home", "shared", "cache", "secrets"].map(dir => [...picture(join(store.dataRoot, dir))]),
    before,
  )
})

test("a generation with a mount in it is kept whole", async t => {
  const { store, generations } = await makeMany(2)
  const point = join(generations[0]!, "shared/cortexfs-docs/man")
  const before = [...picture(generations[0]!).keys()]
  // A bind of the same file system: the device number alone would not show it.
  execFileSync("mount", ["--bind", join(store.dataRoot, "home"), point])
  t.teardown(() => execFileSync("umount", [point]))
  const pruned = await prune(store)
  t.equal(pruned.code, 0, pruned.stderr)
  t.match(pruned.stdout, new RegExp(`^kept ${name(generations[0]!)} foreign mount$`, "m"))
  t.ok(before.every(path => path.startsWith("shared/cortexfs-docs/man/") || lstatSync(join(generations[0]!, path))))
  t.ok(existsSync(join(store.dataRoot, "home", String(OWNER), "agent/coder")))
})

test("nothing is pruned without --prune, and never the selected generation", async t => {
  const { store, generations } = await makeMany(2)
  t.equal((await store.update()).stdout, `${generations[1]}\n`)
  t.ok(generations.every(path => existsSync(path)))
  await prune(store)
  t.strictSame(readdirSync(join(store.storage, "generations")), [name(generations[1]!)])
  t.equal((await prune(store)).stdout, `${generations[1]}\n`)
})

test("a leftover with a mount in it is not swept, and what is mounted there is not touched", async t => {
  const { store } = await makeMany(1)
  const leftover = join(store.storage, "generations/.gone-v1-old")
  const point = join(leftover, "agent")
  mkdirSync(point, { recursive: true })
  execFileSync("mount", ["--bind", join(store.dataRoot, "home"), point])
  const refused = await store.update()
  execFileSync("umount", [point])
  t.equal(refused.code, 69)
  t.match(refused.stderr, /^ctx: EXDEV: \.gone-v1-old: something is mounted in it: /)
  t.ok(existsSync(join(store.dataRoot, "home", String(OWNER), "agent/coder/session")))
  t.equal((await store.update()).code, 0)
  t.notOk(existsSync(leftover))
})
