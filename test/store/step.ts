// needs: root
// What meets an update at each of its steps: a consumer, another update, a signal, a file system without a block or an
// inode left. An update gives way to others before each entry it clones and between its parts; these are the steps.
import { readdirSync, readlinkSync, statfsSync } from "node:fs"
import { join } from "node:path"
import { type Test, test } from "tap"
import { codeOf } from "../../src/abi/error.js"
import { mount, umount2 } from "../../src/native/sys.js"
import { checkStorage } from "../../src/store/fsck.js"
import { pinSource, unpinSource } from "../../src/store/generation.js"
import { updateStorage } from "../../src/store/update.js"
import { leftovers, makeStore, OWNER, type Store } from "../fixture/store/kit.js"
import { makeDir } from "../harness/product.js"

const MS_REMOUNT = 32
const PAGE = 4096
const OLD = "/opt/old/lib/cortexfs"
const NEW = "/opt/new/lib/cortexfs"

const update = (store: Store, libRoot: string) => updateStorage(store.storage, { owner: String(OWNER), libRoot })
const faults = (store: Store, libRoot: string) =>
  checkStorage(store.storage, { libRoot }).map(({ path, reason }) => `${path} ${reason}`)

/** A storage on a tmpfs of its own, with a generation of the old installation. */
async function makeOld(t: Test): Promise<Store> {
  const dir = makeDir()
  mount("none", dir, "tmpfs", 0, "mode=755")
  t.teardown(() => umount2(dir, 2))
  const store = await makeStore(dir)
  await update(store, OLD)
  return store
}

/** Runs `work` and calls `onStep` before each of its steps; gives their number. */
async function runSteps(work: () => Promise<unknown>, onStep: (step: number) => void): Promise<number> {
  let step = 0
  let isOver = false
  const next = () => {
    if (isOver) return
    onStep(step++)
    setImmediate(next)
  }
  setImmediate(next)
  try {
    await work()
  } finally {
    isOver = true
  }
  return step
}

/** Nothing of a failed roll is left and the old generation is selected and whole. */
function unchanged(store: Store, old: string): string[] {
  const wrong = [...leftovers(store), ...faults(store, OLD)]
  if (store.current() !== old) wrong.push(`current leads to ${store.current()}`)
  if (readdirSync(join(store.storage, "generations")).length !== 1) wrong.push("another generation is left")
  return wrong
}

test("a consumer that tries to pin at each step of a roll is refused, or holds what current names", async t => {
  const store = await makeOld(t)
  const link = join(store.storage, "current")
  const old = store.current()
  const tries: Promise<string>[] = []
  const isQuiesced = () => leftovers(store).length > 0
  const steps = await runSteps(
    () => update(store, NEW),
    () => {
      if (!isQuiesced()) return
      tries.push(
        pinSource(link, 0).then(
          source => {
            const selected = readlinkSync(link).slice("generations/".length)
            unpinSource(source)
            return source.generation === selected && source.dir !== old ? "pinned" : `pinned ${source.dir}`
          },
          error => codeOf(error) ?? String(error),
        ),
      )
    },
  )
  const seen = await Promise.all(tries)
  t.ok(seen.length > 100 && steps > seen.length, `${seen.length} tries in ${steps} steps`)
  t.strictSame([...new Set(seen)], ["EBUSY"])
  t.strictSame(faults(store, NEW), [])
  const source = await pinSource(link, 0)
  t.equal(source.dir, store.current())
  unpinSource(source)
})

test("a second update at each step of a roll is EBUSY at once and does not disturb the first", async t => {
  const store = await makeOld(t)
  const tries: Promise<string>[] = []
  const steps = await runSteps(
    () => update(store, NEW),
    () => {
      const second = update(store, NEW)
      tries.push(
        second.then(
          () => "done",
          error => codeOf(error) ?? String(error),
        ),
      )
    },
  )
  t.ok(steps > 100, `${steps} steps`)
  t.strictSame([...new Set(await Promise.all(tries))], ["EBUSY"])
  t.strictSame(faults(store, NEW), [])
  t.strictSame(leftovers(store), [])
})

test("SIGTERM at each step of a roll ends it with EINTR, removes the stage and leaves current as it was", async t => {
  const store = await makeOld(t)
  const old = store.current()
  const wrong: string[] = []
  let steps = 0
  for (let isDone = false; !isDone; steps++) {
    const at = steps
    const work = () =>
      update(store, NEW).then(
        () => (isDone = true),
        error => codeOf(error) === "EINTR" || wrong.push(`${at}: ${error}`),
      )
    await runSteps(work, step => step === at && process.kill(process.pid, "SIGTERM"))
    if (!isDone) wrong.push(...unchanged(store, old).map(fault => `${at}: ${fault}`))
  }
  t.strictSame(wrong, [])
  t.ok(steps > 100, `${steps} steps`)
  t.strictSame(faults(store, NEW), [], "a signal after the last step comes too late")
})

/** Blocks or inodes in use, in the unit of the mount option that bounds them. */
const LIMITS = {
  block: { option: "size", unit: PAGE, used: (dir: string) => statfsSync(dir).blocks - statfsSync(dir).bfree },
  inode: { option: "nr_inodes", unit: 1, used: (dir: string) => statfsSync(dir).files - statfsSync(dir).ffree },
}

for (const [what, { option, unit, used }] of Object.entries(LIMITS)) {
  test(`roll.15 a file system that runs out of ${what}s at any write of a roll: ENOSPC, no stage, current as it was`, async t => {
    const store = await makeOld(t)
    const old = store.current()
    const start = used(store.dir)
    const wrong: string[] = []
    let free = 0
    for (let isDone = false; !isDone; free++) {
      mount("none", store.dir, "tmpfs", MS_REMOUNT, `${option}=${(start + free) * unit}`)
      try {
        await update(store, NEW)
        isDone = true
      } catch (error) {
        if (codeOf(error) !== "ENOSPC") wrong.push(`${free}: ${error}`)
        wrong.push(...unchanged(store, old).map(fault => `${free}: ${fault}`))
      }
      if (free > 2000) break
    }
    t.strictSame(wrong, [])
    t.ok(free > 60 && free < 2000, `with ${free} free ${what}s it works`)
    t.not(store.current(), old)
    t.strictSame(faults(store, NEW), [])
  })
}
