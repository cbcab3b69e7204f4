// needs: root strace
// A machine that loses power, or a process that is killed, after any system call of an update.
import { execFileSync } from "node:child_process"
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { type Test, test } from "tap"
import { checkStorage } from "../../src/store/fsck.js"
import { sweepLeftovers } from "../../src/store/prune.js"
import { closeRoots, openRoots } from "../../src/store/root.js"
import { updateStorage } from "../../src/store/update.js"
import { Canvas, type Choice, Disk, type Image } from "../fixture/store/disk.js"
import {
  differences,
  leftovers,
  makeCurrent,
  makeStore,
  OWNER,
  picture,
  run,
  type Store,
} from "../fixture/store/kit.js"
import { parseTrace, type Step } from "../fixture/store/replay.js"
import { installedPrefix, makeDir } from "../harness/product.js"

/** What is on the disk after the cut, besides what was synced. */
const KINDS: Record<string, Choice> = {
  "all that was done: the process was killed": () => "now",
  "only what was synced": () => "synced",
  "all names, but only synced content": (_, kind) => (kind === "dir" ? "now" : "synced"),
  "all content, but only synced names": (_, kind) => (kind === "dir" ? "synced" : "now"),
  "the names in storage, else what was synced": path => (path === "storage" ? "now" : "synced"),
  "the names in generations, else what was synced": path => (path === "storage/generations" ? "now" : "synced"),
}

const LEFTOVER = /^storage\/(?:generations\/\.(?:stage|gone)-|\.current-)/

/** Records the update that an installation of the product makes, with prune. */
async function record(store: Store, prefix: string): Promise<Step[]> {
  const dir = makeDir()
  const strace = ["/usr/bin/strace", "-ff", "-y", "-s", "1000000", "-e", "trace=%file,%desc", "-o", join(dir, "trace")]
  const command = [join(prefix, "bin/ctx"), "storage", "update", "--prune", "--owner", String(OWNER), store.storage]
  const ended = await run([...strace, ...command])
  if (ended.code !== 0) throw new Error(ended.stderr)
  const texts = readdirSync(dir).map(name => readFileSync(join(dir, name), "utf8"))
  // All work of an update is done on one thread; the others are the pool's.
  return parseTrace(texts.find(text => text.includes(".update.lock")) ?? "", store.dataRoot)
}

const ids = new Map<Buffer, number>()

/** Equal texts are equal trees, but for what a sweep removes. */
function signature(image: Image, isHomeSeen: boolean): string {
  const idOf = (data: Buffer) => ids.get(data) ?? ids.set(data, ids.size).get(data)!
  return [...image]
    .filter(([path]) => !LEFTOVER.test(path) && (isHomeSeen || !path.startsWith("home/")))
    .map(([path, { kind, mode, uid, gid, data }]) => `${path} ${kind} ${mode} ${uid} ${gid} ${idOf(data)}`)
    .sort()
    .join("\n")
}

/** A file system without a journal of its own: only what is replayed counts. */
function makeMemoryDir(t: Test): string {
  const dir = makeDir()
  execFileSync("mount", ["-t", "tmpfs", "-o", "mode=755", "none", dir])
  t.teardown(() => execFileSync("umount", ["-l", dir]))
  return dir
}

/**
 * Shows each image of each prefix on a real disk: what is selected there passes the check of `storage verify`, a sweep
 * takes all leftovers away, and from each tree that is left then an update makes a sound storage.
 */
async function proveEvery(t: Test, store: Store, disk: Disk, steps: Step[], libRoots: string[]): Promise<void> {
  const base = makeMemoryDir(t)
  const history = [...disk.image(() => "now")].filter(([path, { kind }]) => path.startsWith("home/") && kind === "file")
  const faults: string[] = []
  const swept = new Map<string, string>()
  let images = 0
  const canvases = Object.entries(KINDS).map(([kind, choice], i) => {
    mkdirSync(join(base, `k${i}`))
    return { kind, choice, canvas: new Canvas(join(base, `k${i}`)) }
  })
  const look = (step: string) => {
    for (const { kind, choice, canvas } of canvases) {
      const image = disk.image(choice)
      if (!canvas.show(image)) continue
      images++
      const storage = join(canvas.dir, "storage")
      const isSelected = image.has("storage/current")
      const found = isSelected && libRoots.map(libRoot => checkStorage(storage, { libRoot }))
      if (found && !found.some(list => list.length === 0)) {
        faults.push(`${kind}, after ${step}: ${found[0]!.map(({ path, reason }) => `${path} ${reason}`).join("; ")}`)
      }
      if (image.has("storage/generations")) {
        const roots = openRoots(storage)
        sweepLeftovers(roots)
        closeRoots(roots)
        canvas.forget(path => LEFTOVER.test(path))
        const left = [...readdirSync(storage), ...readdirSync(join(storage, "generations"))]
        if (left.some(name => /^\.(?:stage|gone|current)-/.test(name))) faults.push(`${kind}, after ${step}: no sweep`)
      }
      const key = signature(image, choice("", "dir") === "now")
      if (swept.has(key)) continue
      const copy = join(base, `s${swept.size}`)
      execFileSync("cp", ["-a", canvas.dir, copy])
      swept.set(key, copy)
    }
  }
  look("nothing")
  for (const step of steps) {
    step.make(disk)
    look(step.text)
  }
  t.strictSame(faults, [], `${images} images of ${steps.length} changes`)
  t.comment(`${images} images of ${steps.length} changes, ${swept.size} trees without leftovers`)
  for (const copy of swept.values()) {
    const storage = join(copy, "storage")
    await updateStorage(storage, { owner: String(OWNER), libRoot: libRoots[0]!, prune: true })
    t.strictSame(checkStorage(storage, { libRoot: libRoots[0]! }), [])
    t.strictSame(leftovers({ storage } as Store), [])
    for (const [path, { data }] of history) t.ok(readFileSync(join(copy, path)).equals(data), path)
  }
  // The model has missed no change of the traced tree.
  const dir = join(base, "all")
  mkdirSync(dir)
  new Canvas(dir).show(disk.image(() => "now"))
  t.strictSame(differences(picture(dir, { time: false }), picture(store.dataRoot, { time: false })), [])
}

function writeHistory(store: Store): void {
  const dir = join(store.dataRoot, `home/${OWNER}/agent/coder/session/default`)
  mkdirSync(dir, { recursive: true })
  writeFileSync(join(dir, "messages.jsonl"), '{"role":"user"}\n')
}

const libOf = (prefix: string) => join(prefix, "lib/cortexfs")

test("roll.16 roll.20 power lost or the process killed after any change of a roll with prune: current is the old tree or the new one, verified whole, and the next run works", async t => {
  const first = await installedPrefix()
  const second = join(makeDir(), "prefix")
  execFileSync("cp", ["-a", first, second])
  const store = await makeStore()
  const old = await makeCurrent(store)
  writeHistory(store)
  const disk = Disk.read(store.dataRoot)
  const steps = await record(store, second)
  t.ok(steps.length > 600, `${steps.length} changes were recorded`)
  t.not(store.current(), old)
  await proveEvery(t, store, disk, steps, [first, second].map(libOf))
  rmSync(second, { recursive: true })
})

test("roll.16 (first installation) power lost or the process killed after any change: no current or a whole one, and the next run works", async t => {
  const prefix = await installedPrefix()
  const store = await makeStore()
  writeHistory(store)
  const disk = Disk.read(store.dataRoot)
  const steps = await record(store, prefix)
  t.ok(steps.length > 400, `${steps.length} changes were recorded`)
  await proveEvery(t, store, disk, steps, [libOf(prefix)])
})
