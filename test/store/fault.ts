// needs: root
import { existsSync, readdirSync, readFileSync, readlinkSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { type Test, test } from "tap"
import { FAULT_POINTS } from "../../src/store/fault.js"
import {
  differences,
  faultEnv,
  leftovers,
  makeCurrent,
  makeStore,
  OWNER,
  picture,
  type Store,
} from "../fixture/store/kit.js"

/** A storage with a generation, a session of the owner's, and a reason for a roll. */
async function makeStale(): Promise<Store> {
  const store = await makeStore()
  const current = await makeCurrent(store)
  const session = join(store.dataRoot, `home/${OWNER}/agent/coder/session/default`)
  writeFileSync(`${session}.jsonl`, '{"role":"user"}\n')
  rmSync(join(current, "shared/cortexfs-docs/README.md"))
  return store
}

const sessions = (store: Store) => picture(join(store.dataRoot, "home"))
const link = (store: Store) => readlinkSync(join(store.storage, "current"))

/** A plain run after a fault: it works, leaves nothing behind, and keeps every session. */
async function recovers(t: Test, store: Store, before: Map<string, string>): Promise<void> {
  const again = await store.update()
  t.equal(again.code, 0, again.stderr)
  t.strictSame(leftovers(store), [])
  t.ok(existsSync(join(store.current(), "shared/cortexfs-docs/README.md")))
  t.strictSame(differences(before, sessions(store)), [], "sessions are as before")
}

for (const point of FAULT_POINTS) {
  const args = point === "pruning" ? ["--prune", "--owner", String(OWNER)] : undefined

  test(`roll.14 killed at ${point} the next run selects a valid generation and leaves nothing behind`, async t => {
    const store = await makeStale()
    const before = sessions(store)
    const old = link(store)
    const killed = await store.update(args, { env: faultEnv(point, "kill") })
    t.equal(killed.signal ?? killed.code, "SIGKILL", killed.stderr)
    if (FAULT_POINTS.indexOf(point) <= FAULT_POINTS.indexOf("linked")) t.equal(link(store), old)
    else t.not(link(store), old)
    await recovers(t, store, before)
  })

  test(`roll.14 EIO at ${point} is exit 69 and the next run selects a valid generation`, async t => {
    const store = await makeStale()
    const before = sessions(store)
    const old = link(store)
    const failed = await store.update(args, { env: faultEnv(point, "EIO") })
    t.equal(failed.code, 69, failed.stderr)
    t.match(failed.stderr, new RegExp(`^ctx: EIO: storage ${point}: [^\\n]+\\n$`))
    t.equal(failed.stdout, "")
    if (FAULT_POINTS.indexOf(point) <= FAULT_POINTS.indexOf("linked")) t.equal(link(store), old, "current is unchanged")
    else t.not(link(store), old, "the new generation stays selected")
    if (point !== "pruning") t.strictSame(leftovers(store), [], "the stage is gone")
    await recovers(t, store, before)
  })
}

for (const point of ["cloned", "synced"]) {
  test(`an injected ENOSPC at ${point} fails the step and removes the stage`, async t => {
    const store = await makeStale()
    const old = link(store)
    const failed = await store.update(undefined, { env: faultEnv(point, "ENOSPC") })
    t.equal(failed.code, 69)
    t.match(failed.stderr, /^ctx: ENOSPC: /)
    t.equal(link(store), old)
    t.strictSame(readdirSync(join(store.storage, "generations")), [old.slice("generations/".length)])
  })
}

test("a fault that names no point or no errno changes nothing", async t => {
  const store = await makeStore()
  for (const [point, what] of [
    ["nowhere", "kill"],
    ["locked", "NOTHING"],
  ] as const) {
    const made = await store.update(undefined, { env: faultEnv(point, what) })
    t.equal(made.code, 0, made.stderr)
  }
  t.match(readFileSync(join(store.current(), "bin/ctx"), "utf8"), /^#!/)
})
