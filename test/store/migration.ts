// needs: root
import { mkdirSync, readdirSync, readFileSync, readlinkSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import { checkBootstrap, formatPlan, planBootstrap } from "../../src/store/bootstrap.js"
import { openSource, unpinSource } from "../../src/store/generation.js"
import { pendingMigrations } from "../../src/store/plan.js"
import type { Release } from "../../src/store/release.js"
import { readSetting } from "../../src/store/setting.js"
import { applyChanges, DiskTree, ShadowTree } from "../../src/store/tree.js"
import { differences, leftovers, makeStore, OWNER, picture, updateHere } from "../fixture/store/kit.js"
import { RELEASE_1, RELEASE_2, RELEASE_3 } from "../fixture/store/release.js"

const owner = String(OWNER)
const contents = (dir: string) => picture(dir, { time: false })

for (const [old, release] of [
  [1, RELEASE_1],
  [2, RELEASE_2],
] as [number, Release][]) {
  test(`roll.3 from version ${old} one new generation of version 3 is made, with exactly the planned changes`, async t => {
    const store = await makeStore()
    const before = await updateHere(store, { release })
    t.match(before, new RegExp(`/v${old}-`))
    const plan = planBootstrap(before, { owner, release: RELEASE_3 })
    const planned = plan.changes.filter(change => !["apply", "keep"].includes(change.action)).map(change => change.path)
    t.strictSame(
      plan.migrations,
      RELEASE_3.migrations.slice(old).map(({ id }) => id),
    )
    const after = await updateHere(store, { release: RELEASE_3 })
    t.strictSame(readdirSync(join(store.storage, "generations")).length, 2)
    t.strictSame(differences(contents(before), contents(after)), [...new Set(planned)].sort())
    t.equal(await updateHere(store, { release: RELEASE_3 }), after, "running it again makes nothing")
    const again = planBootstrap(after, { owner, release: RELEASE_3 })
    t.strictSame(again, { from: 3, to: 3, migrations: [], changes: [] })
    t.equal(
      readFileSync(join(after, "bin/cortexfs.bootstrap.json"), "utf8").replace(/\s+/g, ""),
      '{"schema":1,"tree_version":3,"managed_agents":["coder","reviewer","worker"],"applied_migrations":["initial-tree","model-aliases","agent-path"]}',
    )
  })
}

test("roll.3 each migration plans nothing on its own result", async t => {
  const store = await makeStore()
  const source = openSource(await updateHere(store, { release: RELEASE_1 }))
  const tree = new ShadowTree(new DiskTree(source.dirFd, readSetting({ owner })))
  for (const migration of pendingMigrations(RELEASE_3, 1)) {
    const changes = migration.plan(tree)
    t.ok(changes.length > 0, migration.id)
    applyChanges(tree, changes)
    t.strictSame(migration.plan(tree), [], migration.id)
  }
  unpinSource(source)
})

test("a first installation of version 3 equals one that was migrated to it", async t => {
  const [fresh, migrated] = [await makeStore(), await makeStore()]
  await updateHere(migrated, { release: RELEASE_1 })
  const trees = [await updateHere(fresh, { release: RELEASE_3 }), await updateHere(migrated, { release: RELEASE_3 })]
  t.strictSame(differences(contents(trees[0]!), contents(trees[1]!)), [])
})

test("roll.4 agent-path makes two lines of a colon list for every agent and refuses a relative element", async t => {
  const store = await makeStore()
  const before = await updateHere(store, { release: RELEASE_2 })
  const path = (generation: string, agent: string) => join(generation, `agent/${agent}.d/path`)
  mkdirSync(join(before, "agent/mine.d"))
  writeFileSync(path(before, "mine"), "/ctx/tool:/ctx/home/1000/tool\n", { mode: 0o600 })
  writeFileSync(path(before, "worker"), "a:/b\n")
  const image = picture(store.storage)
  await t.rejects(updateHere(store, { release: RELEASE_3 }), {
    code: "EINVAL",
    message: /^agent\/worker\.d\/path: /,
  })
  t.strictSame(differences(image, picture(store.storage)), [], "current and the old generation are as they were")
  writeFileSync(path(before, "worker"), "/only\n")
  const after = await updateHere(store, { release: RELEASE_3 })
  t.equal(readFileSync(path(after, "mine"), "utf8"), "/ctx/tool\n/ctx/home/1000/tool\n")
  t.equal(readFileSync(path(after, "worker"), "utf8"), "/only\n")
  t.equal(contents(after).get("agent/mine.d/path")?.split(" ")[0], "100600", "the mode is the person's")
})

test("a person's own alias is reported and kept by a migration, a directory under its name is EINVAL", async t => {
  const store = await makeStore()
  const before = await updateHere(store, { release: RELEASE_1 })
  symlinkSync("/ctx/model/acme/quick", join(before, "model/fast"))
  const text = formatPlan(planBootstrap(before, { owner, release: RELEASE_3 }))
  t.match(text, /^tree_version=1->3\nmigrations=model-aliases,agent-path\nwould_apply migration v2 model-aliases\n/)
  t.match(text, /^would_keep model\/fast$/m)
  t.match(text, /\nwould_write bin\/cortexfs\.bootstrap\.json\n$/)
  const after = await updateHere(store, { release: RELEASE_3 })
  t.equal(readlinkSync(join(after, "model/fast")), "/ctx/model/acme/quick")
  const other = await makeStore()
  const old = await updateHere(other, { release: RELEASE_1 })
  mkdirSync(join(old, "model/code"))
  await t.rejects(updateHere(other, { release: RELEASE_3 }), { code: "EINVAL", message: /^model\/code: / })
  t.equal(other.current(), old)
  t.strictSame(leftovers(other), [])
  unlinkSync(join(old, "model/main"))
  mkdirSync(join(old, "model/main"))
  await t.rejects(updateHere(other, { release: RELEASE_3 }), { code: "EINVAL", message: /^model\/main: / })
})

test("roll.22 (in process) check says stale on the version 2 fixture and a preview equals what the update makes", async t => {
  const store = await makeStore()
  const before = await updateHere(store, { release: RELEASE_2 })
  const image = picture(store.dataRoot)
  const checked = checkBootstrap(before, { owner, release: RELEASE_3 })
  t.strictSame(checked, { state: "stale", line: "stale bootstrap tree_version=2->3" })
  const plan = formatPlan(planBootstrap(before, { owner, release: RELEASE_3 }))
  t.strictSame(differences(image, picture(store.dataRoot)), [], "nothing is written")
  const after = await updateHere(store, { release: RELEASE_3 })
  const changed = differences(contents(before), contents(after))
  const previewed = [...plan.matchAll(/^would_(?:change|ensure|remove|write) (.+)$/gm)].map(match => match[1]).sort()
  t.strictSame(previewed, changed)
  t.strictSame(checkBootstrap(after, { owner, release: RELEASE_3 }), {
    state: "ok",
    line: "ok bootstrap tree_version=3 migrations=initial-tree,model-aliases,agent-path",
  })
})

test("a tree of a newer version is refused before anything is written", async t => {
  const store = await makeStore()
  const current = await updateHere(store, { release: RELEASE_3 })
  const image = picture(store.dataRoot)
  await t.rejects(updateHere(store, { release: RELEASE_2 }), { code: "EPROTO" })
  t.strictSame(differences(image, picture(store.dataRoot)), [])
  t.equal(store.current(), current)
})
