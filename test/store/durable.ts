// needs: root strace
import { execFileSync } from "node:child_process"
import { mkdirSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import {
  ctxPath,
  leftovers,
  makeCurrent,
  makeStore,
  OWNER,
  picture,
  run,
  type Store,
  updateHere,
} from "../fixture/store/kit.js"
import { makeDir } from "../harness/product.js"

const isRename = (line: string) => /^renameat2?\(/.test(line)

/** Runs an update under a tracer and gives its calls with the paths of the descriptors. */
async function trace(store: Store, calls: string, args: string[] = []): Promise<string[]> {
  const file = join(store.dir, "trace")
  const strace = ["/usr/bin/strace", "-f", "-y", "-s", "256", "-e", `trace=${calls}`, "-o", file]
  const command = [await ctxPath(), "storage", "update", "--owner", String(OWNER), ...args, store.storage]
  const ended = await run([...strace, ...command])
  if (ended.code !== 0) throw new Error(ended.stderr)
  return readFileSync(file, "utf8")
    .split("\n")
    .map(line => line.replace(/^\d+ +/, ""))
    .filter(line => line.includes(store.dataRoot))
}

test("roll.16 (order of system calls) every node of a stage is synced before it is published, and that before it is selected", async t => {
  const store = await makeStore()
  const old = await makeCurrent(store)
  rmSync(join(old, "shared/cortexfs-docs/README.md"))
  const calls = await trace(store, "fsync,fdatasync,syncfs,renameat2,renameat", ["--prune"])
  const current = store.current()
  const generations = join(store.storage, "generations")
  const stage = `${generations}/.stage-${current.slice(generations.length + 1)}`
  const at = (test: (line: string) => boolean, from = 0) => calls.findIndex((line, i) => i >= from && test(line))
  const published = at(line => isRename(line) && line.includes(`".stage-`))
  const synced = new Set(calls.slice(0, published).flatMap(line => /^fsync\(\d+<([^>]+)>\) += 0/.exec(line)?.[1] ?? []))
  for (const [path, line] of picture(current)) {
    if (/^1[02]0|^40/.test(line) && !line.startsWith("120")) t.ok(synced.has(join(stage, path)), path)
  }
  t.ok(synced.has(stage), "the stage itself")
  const isSync = (path: string) => (line: string) => line.startsWith("fsync(") && line.includes(`<${path}>`)
  const visible = at(isSync(generations), published)
  const linked = at(isSync(store.storage), visible)
  const switched = at(line => isRename(line) && line.includes(`"current"`), linked)
  const durable = at(isSync(store.storage), switched)
  const gone = at(line => isRename(line) && line.includes(`".gone-`), 0)
  t.ok(published > 0 && visible > published && linked > visible && switched > linked && durable > switched)
  t.ok(gone > durable, "roll.20 the last valid generation is not removed before another one is durable")
})

test("roll.20 (order of system calls) the first prune comes after the switch has reached the disk", async t => {
  const store = await makeStore()
  const old = await makeCurrent(store)
  rmSync(join(old, "bin/ctx"))
  const calls = await trace(store, "fsync,renameat2,renameat", ["--prune"])
  const last = (text: RegExp) => calls.map(line => text.test(line)).lastIndexOf(true)
  const durable = last(new RegExp(`^fsync\\(\\d+<${store.storage}>\\) += 0`))
  const switched = last(/^renameat2?\(.*"current"\)/)
  t.ok(switched > 0 && switched < durable)
  t.ok(calls.findIndex(line => /^renameat2\(.*"\.gone-/.test(line)) > durable)
})

/** Sessions of the owner's, sparse files that are `sizeBytes` long together. */
function writeSessions(store: Store, count: number, sizeBytes: number): void {
  const sessions = join(store.dataRoot, `home/${OWNER}/agent/coder/session`)
  for (let i = 0; i < count; i++) {
    mkdirSync(join(sessions, `s${i}`))
    const path = join(sessions, `s${i}/messages.jsonl`)
    writeFileSync(path, "")
    truncateSync(path, Math.ceil(sizeBytes / count))
  }
  execFileSync("chown", ["-R", `${OWNER}:${OWNER}`, sessions])
}

test("roll.19 with 1 GiB in 10,000 sessions a roll opens nothing of them and makes the system calls it makes with an empty home", async t => {
  const counts: Record<string, number>[] = []
  for (const sessions of [0, 10_000]) {
    const store = await makeStore()
    await makeCurrent(store)
    if (sessions > 0) writeSessions(store, sessions, 1024 ** 3)
    rmSync(join(store.current(), "bin/ctx"))
    const calls = await trace(store, "%file,%desc", ["--prune"])
    const touched = calls.filter(line => line.includes(`${store.dataRoot}/home`))
    t.ok(touched.length > 0 && touched.length < 400, `${touched.length} calls below home`)
    t.strictSame(
      touched.filter(line => /messages|session\/s\d|getdents/.test(line)),
      [],
    )
    const count: Record<string, number> = {}
    for (const line of calls) {
      const name = /^\w+/.exec(line)?.[0]
      if (name !== undefined) count[name] = (count[name] ?? 0) + 1
    }
    counts.push(count)
  }
  t.ok(counts[0]!.fsync! > 100)
  t.strictSame(counts[1], counts[0])
})

test("roll.15 a full file system fails the roll, removes the stage and leaves current as it was", async t => {
  const dir = makeDir()
  execFileSync("mount", ["-t", "tmpfs", "-o", "size=1536k,mode=755", "none", dir])
  t.teardown(() => execFileSync("umount", ["-l", dir]))
  const store = await makeStore(dir)
  const current = await makeCurrent(store)
  rmSync(join(current, "shared/cortexfs-docs/README.md"))
  const filler = join(dir, "filler")
  for (let freeKib = Number.MAX_SAFE_INTEGER; freeKib > 120; ) {
    writeFileSync(filler, Buffer.alloc(16384), { flag: "a" })
    freeKib = Number(execFileSync("df", ["--output=avail", "-k", dir], { encoding: "utf8" }).trim().split("\n").at(-1))
  }
  const before = readdirSync(join(store.storage, "generations"))
  const failed = await store.update()
  t.equal(failed.code, 69, failed.stderr)
  t.match(failed.stderr, /^ctx: ENOSPC: /)
  t.equal(store.current(), current)
  t.strictSame(leftovers(store), [])
  t.strictSame(readdirSync(join(store.storage, "generations")), before)
  rmSync(filler)
  const again = await store.update()
  t.equal(again.code, 0, again.stderr)
  t.not(store.current(), current)
})

test("a roll that the current generation's reader watches never shows a current without a state file", async t => {
  const store = await makeStore()
  await updateHere(store)
  let looks = 0
  let isRolling = true
  const look = async () => {
    while (isRolling) {
      const state = JSON.parse(readFileSync(join(store.storage, "current/bin/cortexfs.bootstrap.json"), "utf8"))
      if (state.tree_version !== 1) t.fail("another version was seen")
      looks++
      await new Promise(resolve => setImmediate(resolve))
    }
  }
  const looking = look()
  for (let i = 0; i < 5; i++) {
    rmSync(join(store.current(), "shared/cortexfs-docs/README.md"))
    await updateHere(store)
  }
  isRolling = false
  await looking
  t.ok(looks > 20, `${looks} looks`)
})
