// needs: root strace
import { execFileSync } from "node:child_process"
import { closeSync, openSync, readdirSync, readFileSync, readlinkSync, rmSync } from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import { RELEASE } from "../../src/store/release.js"
import { readSetting } from "../../src/store/setting.js"
import { DiskTree } from "../../src/store/tree.js"
import { verifyTree } from "../../src/store/verify.js"
import { differences, makeCurrent, makeStore, OWNER, picture, run, type Store } from "../fixture/store/kit.js"
import { parseTrace } from "../fixture/store/replay.js"
import { installedPrefix, makeDir } from "../harness/product.js"

/** Whether `current` of a storage leads to a tree that the product of one of these prefixes calls valid. */
function isValid(storage: string, prefixes: string[]): boolean {
  const text = readlinkSync(join(storage, "current"))
  const dirFd = openSync(join(storage, text), "r")
  try {
    return prefixes.some(prefix => {
      try {
        const setting = readSetting({ owner: String(OWNER), libRoot: join(prefix, "lib/cortexfs") })
        verifyTree(new DiskTree(dirFd, setting), RELEASE, { isGeneration: true })
        return true
      } catch {
        return false
      }
    })
  } finally {
    closeSync(dirFd)
  }
}

/** Records the roll that another installation of the product makes, with prune. */
async function record(store: Store, prefix: string): Promise<string> {
  const dir = makeDir()
  const strace = ["/usr/bin/strace", "-ff", "-y", "-s", "1000000", "-e", "trace=%file,%desc", "-o", join(dir, "trace")]
  const command = [join(prefix, "bin/ctx"), "storage", "update", "--prune", "--owner", String(OWNER), store.storage]
  const ended = await run([...strace, ...command])
  if (ended.code !== 0) throw new Error(ended.stderr)
  const texts = readdirSync(dir).map(name => readFileSync(join(dir, name), "utf8"))
  // All work of an update is done on one thread; the others are the pool's.
  return texts.find(text => text.includes(".update.lock")) ?? ""
}

test("roll.16 roll.20 every prefix of the recorded writes of a roll with prune leaves a valid current", async t => {
  const first = await installedPrefix()
  const second = join(makeDir(), "prefix")
  execFileSync("cp", ["-a", first, second])
  const store = await makeStore()
  const old = await makeCurrent(store)
  const copy = join(makeDir(), "copy")
  execFileSync("cp", ["-a", store.dataRoot, copy])
  const steps = parseTrace(await record(store, second), store.dataRoot)
  t.ok(steps.length > 300, `${steps.length} changes were recorded`)
  const move = (path: string) => copy + path.slice(store.dataRoot.length)
  const storage = join(copy, "storage")
  const faults: string[] = []
  const seen = new Set([readlinkSync(join(storage, "current"))])
  for (const step of steps) {
    step.make(move)
    seen.add(readlinkSync(join(storage, "current")))
    if (!isValid(storage, [first, second])) faults.push(step.text)
  }
  t.strictSame(faults, [], "after each change current is valid")
  t.strictSame(
    [...seen].map(text => join(store.storage, text)),
    [old, store.current()],
    "the old one, then the new one",
  )
  const plain = (dir: string) => {
    const image = picture(dir, { time: false })
    for (const [path, line] of image) image.set(path, line.replace(/ \d+ \d+ /, " "))
    return image
  }
  t.strictSame(differences(plain(join(copy, "storage")), plain(store.storage)), [], "all of it was recorded")
  rmSync(second, { recursive: true })
})
