// needs: root
// An update that finds no `current`: nothing that was published is thrown away for it.
import { appendFileSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, unlinkSync } from "node:fs"
import { basename, join } from "node:path"
import { test } from "tap"
import { differences, makeCurrent, makeStore, OWNER, picture } from "../fixture/store/kit.js"

const PRUNE = ["--prune", "--owner", String(OWNER)]

test("the only generation is selected again when its link was lost, with all that was changed in it", async t => {
  const store = await makeStore()
  const dir = await makeCurrent(store)
  appendFileSync(join(dir, "agent/coder.d/policy"), "allow coder_t shared:lab read\n")
  const before = picture(dir)
  unlinkSync(join(store.storage, "current"))
  const ended = await store.update(PRUNE)
  t.equal(ended.code, 0, ended.stderr)
  t.equal(ended.stdout, `${dir}\n`)
  t.equal(store.current(), dir)
  t.strictSame(differences(before, picture(dir)), [])
  t.strictSame(readdirSync(join(store.storage, "generations")), [basename(dir)])
})

test("a lost link of a generation that has a fault leads to a roll of that one", async t => {
  const store = await makeStore()
  const dir = await makeCurrent(store)
  appendFileSync(join(dir, "agent/coder.d/policy"), "allow coder_t shared:lab read\n")
  rmSync(join(dir, "tool/fs.read"))
  unlinkSync(join(store.storage, "current"))
  const ended = await store.update(PRUNE)
  t.equal(ended.code, 0, ended.stderr)
  t.not(store.current(), dir)
  t.notOk(existsSync(dir))
  t.match(readFileSync(join(store.current(), "agent/coder.d/policy"), "utf8"), "allow coder_t shared:lab read")
  t.ok(existsSync(join(store.current(), "tool/fs.read")))
})

test("several generations without a link are EINVAL, named, and nothing changes", async t => {
  const store = await makeStore()
  const dir = await makeCurrent(store)
  const other = join(store.storage, "generations/v1-20200101T000000Z-00000001")
  cpSync(dir, other, { recursive: true })
  unlinkSync(join(store.storage, "current"))
  const before = picture(store.storage)
  const ended = await store.update(PRUNE)
  t.equal(ended.code, 69)
  t.match(
    ended.stderr,
    `ctx: EINVAL: ${store.storage}/current: missing, beside ${basename(other)} ${basename(dir)}: ln -s`,
  )
  t.strictSame(differences(before, picture(store.storage)), [])
})

test("a file or an empty directory under a generation's name is no generation to go on with", async t => {
  const store = await makeStore()
  const dir = await makeCurrent(store)
  unlinkSync(join(store.storage, "current"))
  rmSync(dir, { recursive: true })
  appendFileSync(dir, "")
  const file = await store.update(PRUNE)
  t.equal(file.code, 69)
  t.match(file.stderr, /^ctx: ENOTDIR: /)
  unlinkSync(dir)
  mkdirSync(dir, { mode: 0o711 })
  const empty = await store.update(PRUNE)
  t.equal(empty.code, 0, empty.stderr)
  t.not(store.current(), dir)
})
