// needs: root
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import { listGenerations } from "../../src/store/census.js"
import { pinSource, unpinSource } from "../../src/store/generation.js"
import { ctxPath, differences, makeCurrent, makeStore, OTHER, OWNER, picture, run } from "../fixture/store/kit.js"

test("storage list prints each generation with its version, the selected one and its holders, and changes nothing", async t => {
  const store = await makeStore()
  const first = await makeCurrent(store)
  writeFileSync(join(first, "shared/cortexfs-docs/stale.md"), "")
  const second = await makeCurrent(store)
  const generations = join(store.storage, "generations")
  mkdirSync(join(generations, ".stage-v1-20260101T000000Z-00000000"))
  symlinkSync("/etc", join(generations, "v1-20260101T000000Z-00000001"))
  writeFileSync(join(generations, "v1-20260101T000000Z-00000002"), "")
  const source = await pinSource(join(store.storage, "current"))
  t.teardown(() => unpinSource(source))
  const image = picture(store.dataRoot)
  const [one, two] = [first, second].map(path => path.slice(generations.length + 1)) as [string, string]
  const rows = [`${one}\t1\t-\t-\n`, `${two}\t1\tcurrent\t${process.pid}\n`].sort()
  const listed = await run([await ctxPath(), "storage", "list", store.storage])
  t.match(listed, { code: 0, stderr: "", stdout: rows.join("") })
  const json = await run([await ctxPath(), "storage", "list", store.storage, "--json"])
  t.strictSame(
    JSON.parse(json.stdout).find((row: { gen: string }) => row.gen === two),
    { gen: two, tree_version: 1, current: "current", pids: String(process.pid) },
  )
  t.strictSame(differences(image, picture(store.dataRoot)), [])
})

test("storage list as an ordinary user shows the versions, which need no right to list a generation", async t => {
  const store = await makeStore()
  await makeCurrent(store)
  const listed = await run([await ctxPath(), "storage", "list", store.storage], { uid: OTHER })
  t.equal(listed.code, 0, listed.stderr)
  t.match(listed.stdout, /^v1-\S+\t1\tcurrent\t-\n$/)
})

test("storage list shows a malformed state file as no version and a strange current as none selected", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  writeFileSync(join(current, "bin/cortexfs.bootstrap.json"), "{")
  t.match(listGenerations(store.storage), [{ treeVersion: undefined, isCurrent: true, pids: [] }])
})

test("storage list of no storage, of a link and of a path that is none is an error and no row", async t => {
  const store = await makeStore()
  const list = async (path: string) => run([await ctxPath(), "storage", "list", path], { uid: OWNER })
  t.match(await list(store.storage), { code: 1, stdout: "", stderr: /^ctx: ENOENT: .*: run ctx storage update/ })
  symlinkSync("/etc", store.storage)
  t.match(await list(store.storage), { code: 1, stdout: "", stderr: /^ctx: (ELOOP|ENOTDIR): / })
  t.match(await list("/tmp/../storage"), { code: 2, stdout: "" })
  t.match(await list("/tmp/other"), { code: 2, stdout: "" })
})
