// needs: root
// `ctx storage` as a person meets it: odd arguments, places that are not there or not his, a disk that takes no write.
import { execFileSync } from "node:child_process"
import { chmodSync, chownSync, mkdirSync, readdirSync } from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import { mount, umount2 } from "../../src/native/sys.js"
import { ctxPath, differences, makeCurrent, makeStore, OTHER, OWNER, picture, run } from "../fixture/store/kit.js"
import { makeDir } from "../harness/product.js"

const VERBS = ["update", "list", "verify"]
const MS_REMOUNT_RO = 32 | 1

async function storage(words: string[], options = {}) {
  return run([await ctxPath(), "storage", ...words], options)
}

test("a path of another form is exit 2 with what is wrong with it, for each verb, and makes nothing", async t => {
  const dir = makeDir()
  const cases: [string, string][] = [
    ["", "an empty path names no storage"],
    ["storage", "storage: not an absolute path"],
    [`${dir}/storage/`, `${dir}/storage/: ends in a slash`],
    [`${dir}//storage`, `${dir}//storage: not a clean path (no // . or ..)`],
    [`${dir}/x/../storage`, `${dir}/x/../storage: not a clean path (no // . or ..)`],
    [`${dir}/store`, `${dir}/store: a storage directory is called storage`],
  ]
  for (const verb of VERBS) {
    for (const [path, why] of cases) {
      const ended = await storage([verb, path], { cwd: dir })
      t.match(ended, { code: 2, stdout: "" }, `${verb} ${path}`)
      t.equal(
        ended.stderr.startsWith(`ctx: EINVAL: ${why}: name the directory by its absolute path`),
        true,
        ended.stderr,
      )
    }
    const two = await storage([verb, `${dir}/storage`, `${dir}/storage`])
    t.match(two, { code: 2, stdout: "", stderr: /^ctx: usage: [^\n]+\n$/ })
  }
  t.strictSame(readdirSync(dir), [])
})

test("blanks and line feeds in a path are worked with, and shown on one line", async t => {
  const store = await makeStore(join(makeDirIn("a b\nc")))
  const made = await store.update()
  t.equal(made.code, 0, made.stderr)
  t.match(made.stdout, /^\/[^\n]+a b\\nc\/data\/storage\/generations\/v1-[^\n]+\n$/)
  t.match(await storage(["verify", store.storage]), { code: 0, stdout: "ok\n" })
  t.match(await storage(["list", store.storage]), { code: 0, stdout: /\tcurrent\t-\n$/ })
})

function makeDirIn(name: string): string {
  const dir = join(makeDir(), name)
  mkdirSync(dir)
  return dir
}

test("a storage that the caller may not enter is exit 13, one that is not there exit 1 or 69, each with one line", async t => {
  const store = await makeStore()
  await makeCurrent(store)
  const before = picture(store.dataRoot)
  chmodSync(store.dataRoot, 0o700)
  chownSync(store.dataRoot, OWNER, OWNER)
  for (const verb of VERBS) {
    const closed = await storage([verb, store.storage], { uid: OTHER })
    t.match(closed, { code: 13, stdout: "", stderr: /^ctx: EACCES: [^\n]+\n$/ }, verb)
    const none = await storage([verb, `${store.dir}/no/such/storage`])
    t.match(none, { code: verb === "update" ? 69 : 1, stdout: "", stderr: /^ctx: ENOENT: [^\n]+\n$/ }, verb)
    const json = await storage([verb, `${store.dir}/no/such/storage`, "--json"])
    t.strictSame(Object.keys(JSON.parse(json.stdout).error), ["code", "what", "hint", "exit"], verb)
  }
  t.strictSame(differences(before, picture(store.dataRoot)), [])
})

test("on a file system that is read-only an update is EROFS and changes nothing; list and verify work", async t => {
  const dir = makeDir()
  mount("none", dir, "tmpfs", 0, "mode=755")
  t.teardown(() => umount2(dir, 2))
  const store = await makeStore(dir)
  const current = await makeCurrent(store)
  for (const isStale of [false, true]) {
    if (isStale) execFileSync("rm", [join(current, "bin/ctx")])
    const before = picture(store.dataRoot)
    mount("none", dir, "tmpfs", MS_REMOUNT_RO)
    t.match(await store.update(), { code: 69, stdout: "", stderr: /^ctx: EROFS: [^\n]+\n$/ })
    t.match(await storage(["list", store.storage]), { code: 0, stdout: /\tcurrent\t-\n$/ })
    t.match(await storage(["verify", store.storage]), { code: isStale ? 1 : 0 })
    mount("none", dir, "tmpfs", 32)
    t.strictSame(differences(before, picture(store.dataRoot)), [])
  }
  t.equal((await store.update()).code, 0)
})
