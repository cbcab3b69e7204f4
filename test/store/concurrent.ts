// needs: root
import { spawn } from "node:child_process"
import { once } from "node:events"
import {
  existsSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import { test } from "tap"
import { openSource, pinSource, unpinSource } from "../../src/store/generation.js"
import { updateStorage } from "../../src/store/update.js"
import {
  differences,
  leftovers,
  makeCurrent,
  makeStore,
  OWNER,
  picture,
  run,
  updateHere,
} from "../fixture/store/kit.js"

const OWN = { owner: String(OWNER) }

/** A process of its own that holds a shared lock on a directory, under the name of a consumer. */
async function holdShared(dir: string) {
  const child = spawn("/usr/bin/flock", ["-s", "-F", dir, "/bin/sh", "-c", "echo held; read x", "cortexfs-mount"], {
    stdio: ["pipe", "pipe", "inherit"],
  })
  await once(child.stdout!, "data")
  return {
    pid: child.pid!,
    async stop() {
      child.stdin!.end("\n")
      if (child.exitCode === null) await once(child, "exit")
    },
  }
}

test("roll.10 of two updates at once exactly one works, 50 rounds", async t => {
  const store = await makeStore()
  await updateHere(store)
  const counts = { done: 0, busy: 0, other: 0 }
  for (let round = 0; round < 50; round++) {
    rmSync(join(store.current(), "shared/cortexfs-docs/README.md"))
    const started = Date.now()
    const results = await Promise.allSettled([0, 1].map(() => updateStorage(store.storage, OWN)))
    const failed = results.find(result => result.status === "rejected")
    const done = results.filter(result => result.status === "fulfilled").length
    if (done === 1) counts.done++
    if (failed?.status === "rejected" && failed.reason.code === "EBUSY") counts.busy++
    else counts.other++
    if (Date.now() - started > 5000) t.fail(`round ${round} took ${Date.now() - started} ms`)
  }
  t.strictSame(counts, { done: 50, busy: 50, other: 0 })
  t.strictSame(leftovers(store), [])
})

test("roll.10 two commands at once: one prints its path, the other is exit 69 with EBUSY within 1 s", async t => {
  const store = await makeStore()
  await makeCurrent(store)
  let busy = 0
  for (let round = 0; round < 5; round++) {
    rmSync(join(store.current(), "shared/cortexfs-docs/README.md"))
    // The first one stands still with the lock held, so that the second surely meets it.
    const first = spawn("/usr/bin/flock", [
      "-x",
      "-F",
      join(store.storage, ".update.lock"),
      "/bin/sh",
      "-c",
      "echo held; read x",
    ])
    await once(first.stdout, "data")
    const started = Date.now()
    const second = await store.update()
    if (second.code === 69 && second.stderr.startsWith("ctx: EBUSY: an update is running: ")) busy++
    t.ok(Date.now() - started < 5000, "within 1 s and the start of the program")
    first.stdin.end("\n")
    await once(first, "exit")
    t.equal((await store.update()).code, 0)
  }
  t.equal(busy, 5)
})

test("roll.11 a pinned generation stops a roll, names the holder, and stops no fast path", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  const holder = await holdShared(current)
  t.teardown(() => holder.stop())
  t.equal((await store.update()).stdout, `${current}\n`, "no roll is needed")
  rmSync(join(current, "shared/cortexfs-docs/README.md"))
  const before = picture(store.dataRoot)
  const refused = await store.update()
  t.equal(refused.code, 69)
  t.match(
    refused.stderr,
    new RegExp(`^ctx: EBUSY: generation ${current.split("/").at(-1)} pinned by pid ${holder.pid} `),
  )
  t.match(refused.stderr, /: stop its unit, then run again\n$/)
  t.strictSame(differences(before, picture(store.dataRoot)), [])
  await holder.stop()
  t.equal((await store.update()).code, 0)
})

test("roll.12 consumers that start beside rolls pin only what current names at that moment", async t => {
  const store = await makeStore()
  await updateHere(store)
  const link = join(store.storage, "current")
  let pins = 0
  let waits = 0
  let isRolling = true
  const consume = async () => {
    while (isRolling || pins < 200) {
      const started = Date.now()
      const source = await pinSource(link)
      if (Date.now() - started > 45) waits++
      if (source.generation !== readlinkSync(link).slice("generations/".length)) t.fail(`pinned ${source.generation}`)
      if (!existsSync(join(source.dir, "bin/ctx"))) t.fail("a pinned generation lost its files")
      unpinSource(source)
      pins++
      await sleep(1)
    }
  }
  const consumers = [consume(), consume()]
  for (let i = 0; i < 20; i++) {
    rmSync(join(store.current(), "shared/cortexfs-docs/README.md"))
    await updateHere(store, { prune: true })
  }
  isRolling = false
  await Promise.all(consumers)
  t.ok(pins >= 200, `${pins} pins, ${waits} of them waited`)
})

test("roll.12 a consumer that starts while an update is quiescing waits and pins the new generation", async t => {
  const store = await makeStore()
  const old = await updateHere(store)
  const link = join(store.storage, "current")
  // The update's own lock, held for as long as the test likes.
  const holder = spawn("/usr/bin/flock", ["-x", "-F", old, "/bin/sh", "-c", "echo held; read x"])
  await once(holder.stdout, "data")
  let isPinned = false
  const pinned = pinSource(link).then(source => {
    isPinned = true
    return source
  })
  await sleep(200)
  t.equal(isPinned, false)
  const next = join(store.storage, "generations/next")
  await run(["/bin/cp", "-a", old, next])
  symlinkSync("generations/next", `${link}.new`)
  renameSync(`${link}.new`, link)
  await sleep(100)
  holder.stdin.end("\n")
  await once(holder, "exit")
  const source = await pinned
  t.equal(source.dir, next)
  t.equal(source.generation, "next")
  t.equal(source.dataRoot, store.dataRoot)
  unpinSource(source)
  const again = spawn("/usr/bin/flock", ["-x", "-F", next, "/bin/sh", "-c", "echo held; read x"])
  await once(again.stdout, "data")
  await t.rejects(pinSource(link, 150), { code: "EBUSY" })
  again.stdin.end("\n")
  await once(again, "exit")
})

test("a generation of another tree version is not pinned, a plain directory is", async t => {
  const store = await makeStore()
  const current = await updateHere(store)
  const path = join(current, "bin/cortexfs.bootstrap.json")
  const good = readFileSync(path, "utf8")
  writeFileSync(path, good.replace('"tree_version": 1', '"tree_version": 2'))
  await t.rejects(pinSource(join(store.storage, "current")), { code: "EPROTO", hint: "run ctx storage update" })
  const seen = openSource(join(store.storage, "current"))
  t.match(seen, { dir: current, dataRoot: store.dataRoot, treeVersion: 2 })
  unpinSource(seen)
  const plain = await pinSource(store.dir)
  t.match(plain, { dir: store.dir, generation: "-", dataRoot: store.dir, treeVersion: 0 })
  unpinSource(plain)
  const fds = readdirSync("/proc/self/fd").length
  for (let i = 0; i < 20; i++) {
    await t.rejects(pinSource(join(store.storage, "current")), { code: "EPROTO" })
    t.throws(() => openSource(join(store.dir, "nowhere")), { code: "ENOENT" })
  }
  t.equal(readdirSync("/proc/self/fd").length, fds, "a refused pin leaves no descriptor open")
})

test("SIGTERM during a roll is the failure of its step and is not lost", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  rmSync(join(current, "shared/cortexfs-docs/README.md"))
  const holder = await holdShared(current)
  const command = `("$@" & pid=$!; sleep 1; kill -TERM $pid; wait $pid)`
  const ended = await run(["/bin/sh", "-c", command, "sh", ...(await words(store.storage))])
  await holder.stop()
  t.equal(ended.code, 69, ended.stderr)
  t.match(ended.stderr, /^ctx: EINTR: ended by SIGTERM: /)
  t.equal(store.current(), current)
  t.strictSame(leftovers(store), [])
})

async function words(storage: string): Promise<string[]> {
  const { ctxPath } = await import("../fixture/store/kit.js")
  return [await ctxPath(), "storage", "update", "--owner", String(OWNER), storage]
}

test("an update leaves no descriptor open, whether it works or fails", async t => {
  const store = await makeStore()
  const current = await updateHere(store)
  const count = () => readdirSync("/proc/self/fd").length
  const before = count()
  await updateHere(store)
  rmSync(join(current, "bin/ctx"))
  const holder = await holdShared(current)
  await t.rejects(updateHere(store), { code: "EBUSY" })
  await holder.stop()
  for (const point of ["swept", "cloned", "validated", "published", "linked", "confirmed"]) {
    process.env.CORTEXFS_FAULT = `storage.${point}:EIO`
    await t.rejects(updateHere(store), { code: "EIO" }, point)
    delete process.env.CORTEXFS_FAULT
  }
  await updateHere(store, { prune: true })
  t.ok(count() <= before + 3, `${count()} descriptors, ${before} before (the holder's pipes among them)`)
})
