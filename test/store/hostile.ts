// needs: root
// Trees that somebody has prepared against an update: in the generation that is migrated, in the durable directories
// beside it, in the storage itself, among the leftovers. Whatever an update says to it, nothing outside is touched and
// `current` leads to a whole tree.
import { execFileSync } from "node:child_process"
import {
  chownSync,
  lchownSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import { type Test, test } from "tap"
import { isErrnoName } from "../../src/abi/errno.js"
import { codeOf } from "../../src/abi/error.js"
import { mount, umount2 } from "../../src/native/sys.js"
import { checkStorage } from "../../src/store/fsck.js"
import { updateStorage } from "../../src/store/update.js"
import { differences, leftovers, makeStore, OTHER, OWNER, picture, type Store } from "../fixture/store/kit.js"
import { makeDir } from "../harness/product.js"

const OLD = "/opt/old/lib/cortexfs"
const NEW = "/opt/new/lib/cortexfs"

/** A storage on a tmpfs of its own with a generation of the old installation, and a victim beside the data root. */
async function makeOld(t: Test): Promise<Store & { victim: string }> {
  const dir = makeDir()
  mount("none", dir, "tmpfs", 0, "mode=755")
  t.teardown(() => umount2(dir, 2))
  const store = await makeStore(dir)
  await updateStorage(store.storage, { owner: String(OWNER), libRoot: OLD })
  const victim = join(dir, "victim")
  for (const name of ["d", "d/e"]) mkdirSync(join(victim, name), { recursive: true })
  for (const name of ["f", "d/f", "d/e/f"]) writeFileSync(join(victim, name), "precious\n", { mode: 0o640 })
  for (const name of ["agent", "model", "tool", "bin", "shared", "coder", "default"]) mkdirSync(join(victim, "d", name))
  return { ...store, victim }
}

/** What an update says: its errno, or nothing when it works. Anything but an errno is a fault of the update. */
async function trial(store: Store, prune = false): Promise<string> {
  try {
    await updateStorage(store.storage, { owner: String(OWNER), libRoot: NEW, prune })
    return "done"
  } catch (error) {
    const code = codeOf(error) ?? ""
    const message = error instanceof Error ? error.message : ""
    return isErrnoName(code) && message !== "" ? code : `no errno: ${error}`
  }
}

const mknod = (path: string, ...kind: string[]) => execFileSync("mknod", [path, ...kind])

/** What an attacker puts in the place of a node. */
const PLANTS: Record<string, (path: string, victim: string) => void> = {
  "a link to a file": (path, victim) => symlinkSync(join(victim, "f"), path),
  "a link to a directory": (path, victim) => symlinkSync(join(victim, "d"), path),
  "a link to itself": path => symlinkSync(path, path),
  "a hard link": (path, victim) => linkSync(join(victim, "f"), path),
  "a FIFO": path => mknod(path, "p"),
  "a device": path => mknod(path, "c", "1", "3"),
  "a file of another user": path => {
    writeFileSync(path, "x\n")
    chownSync(path, OTHER, OTHER)
  },
  "an empty directory of another user": path => {
    mkdirSync(path, { mode: 0o777 })
    chownSync(path, OTHER, OTHER)
  },
}

/** A node of each kind that a reference tree has, by what reads or replaces it. */
const TARGETS = [
  ...["agent", "bin", "model", "shared", "tool", "agent/coder", "agent/coder.d", "tool/fs.read", "tool/fs.read.d"],
  ...["agent/coder.d/owner", "agent/coder.d/abi", "agent/coder.d/policy", "agent/coder.d/meta.json"],
  ...["tool/fs.read.d/schema", "tool/fs.read.d/policy", "model/main", "bin/ctx", "bin/cortexfs.bootstrap.json"],
  ...["shared/cortexfs-docs", "shared/cortexfs-docs/README.md"],
]

test("whatever stands in the place of a node of the current generation, an update makes a whole tree or changes nothing, and touches nothing outside", async t => {
  const store = await makeOld(t)
  const pristine = join(store.dir, "pristine")
  execFileSync("cp", ["-a", store.dataRoot, pristine])
  const name = readlinkSync(join(store.storage, "current"))
  const victim = picture(store.victim)
  const wrong: string[] = []
  const seen = new Set<string>()
  for (const [what, plant] of Object.entries(PLANTS)) {
    for (const target of TARGETS) {
      rmSync(store.dataRoot, { recursive: true })
      execFileSync("cp", ["-a", pristine, store.dataRoot])
      const path = join(store.storage, name, target)
      rmSync(path, { recursive: true })
      plant(path, store.victim)
      const before = picture(join(store.storage, name))
      const said = await trial(store)
      seen.add(said)
      const add = (fault: string) => wrong.push(`${target} is ${what}: ${said}: ${fault}`)
      if (said.startsWith("no errno")) add("")
      const outside = differences(victim, picture(store.victim))
      if (outside.length > 0) add(`outside: ${outside}`)
      if (leftovers(store).length > 0) add(`left: ${leftovers(store)}`)
      if (differences(before, picture(join(store.storage, name))).length > 0) add("the old generation was changed")
      const isSelected = readlinkSync(join(store.storage, "current")) === name
      if (isSelected !== (said !== "done")) add("current")
    }
  }
  t.strictSame(wrong, [])
  t.ok(seen.has("done") && seen.has("EINVAL"), [...seen].join(" "))
  t.comment(`${TARGETS.length * Object.keys(PLANTS).length} trees: ${[...seen].join(" ")}`)
})

test("names of any bytes, ten thousand levels, foreign owners and hard links in a control directory stop no update for others, or are named", async t => {
  const store = await makeOld(t)
  const current = store.current()
  const dir = join(current, "agent/coder.d")
  for (const name of ["line\nfeed", "\x1b[31m", "-rf", "*", "\xff\xfe\n", "a".repeat(255)]) {
    const path = Buffer.concat([Buffer.from(`${dir}/`), Buffer.from(name, "latin1")])
    writeFileSync(path, "mine\n")
    lchownSync(path, OTHER, OTHER)
  }
  linkSync(join(store.victim, "f"), join(dir, "hard"))
  const before = picture(current)
  t.equal(await trial(store), "done")
  const carried = picture(store.current())
  t.strictSame(
    [...before].filter(([path, line]) => path.startsWith("agent/coder.d/") && carried.get(path) !== line),
    [],
    "all of it was carried, owners too",
  )
  t.equal(lstatSync(join(store.victim, "f")).nlink, 2, "the copy is a file of its own")
  const script = "import os, sys\nos.chdir(sys.argv[1])\nfor i in range(10000): os.mkdir('d'); os.chdir('d')"
  execFileSync("python3", ["-c", script, join(store.current(), "agent/coder.d")])
  const deep = store.current()
  rmSync(join(deep, "bin/ctx"))
  const refused = updateStorage(store.storage, { owner: String(OWNER), libRoot: OLD })
  await t.rejects(refused, { code: "EINVAL", message: /^agent\/coder\.d(\/d)+: deeper than 64 directories$/ })
  t.equal(store.current(), deep)
  t.strictSame(leftovers(store), [])
  renameSync(deep, join(store.storage, "generations/.gone-deep"))
  rmSync(join(store.storage, "current"))
  t.equal(await trial(store), "done", "a sweep removes them all the same")
  t.strictSame(leftovers(store), [])
})

test("whatever stands in the place of durable directories, an update follows no link, waits for nothing and touches nothing outside", async t => {
  const store = await makeOld(t)
  const pristine = join(store.dir, "pristine")
  execFileSync("cp", ["-a", store.dataRoot, pristine])
  const home = `home/${OWNER}`
  const targets = ["home", "shared", home, `${home}/agent`, `${home}/tool`, `${home}/agent/coder`]
  targets.push(`${home}/agent/coder/session`, `${home}/agent/coder/session/index/by-cwd`)
  const victim = picture(store.victim)
  const wrong: string[] = []
  const seen: Record<string, Set<string>> = {}
  for (const [what, plant] of Object.entries(PLANTS)) {
    for (const target of targets) {
      rmSync(store.dataRoot, { recursive: true })
      execFileSync("cp", ["-a", pristine, store.dataRoot])
      const path = join(store.dataRoot, target)
      rmSync(path, { recursive: true })
      plant(path, store.victim)
      const facts = lstatSync(path)
      const old = store.current()
      const said = await trial(store)
      const place = target.split("/").length <= 2 ? target : "below"
      seen[place] = (seen[place] ?? new Set()).add(said)
      const add = (fault: string) => wrong.push(`${target} is ${what}: ${said}: ${fault}`)
      if (said.startsWith("no errno")) add("")
      if (place === "below" && said !== "done") add("an owner stopped everybody's update")
      const outside = differences(victim, picture(store.victim))
      if (outside.length > 0) add(`outside: ${outside}`)
      if (lstatSync(path).ino !== facts.ino || lstatSync(path).uid !== facts.uid) add("it was replaced")
      if (leftovers(store).length > 0) add(`left: ${leftovers(store)}`)
      if ((store.current() === old) !== (said !== "done")) add("current")
      const found = checkStorage(store.storage, { libRoot: said === "done" ? NEW : OLD })
      if (found.length > 0) add(`${found[0]!.path} ${found[0]!.reason}`)
    }
  }
  t.strictSame(wrong, [])
  for (const [place, said] of Object.entries(seen)) t.comment(`${place}: ${[...said].join(" ")}`)
})

test("whatever stands in the place of current, a generation, the lock or generations, an update works on a real one or changes nothing", async t => {
  const store = await makeOld(t)
  const pristine = join(store.dir, "pristine")
  execFileSync("cp", ["-a", store.dataRoot, pristine])
  const name = readlinkSync(join(store.storage, "current"))
  const targets = ["storage", "storage/generations", `storage/${name}`, "storage/current", "storage/.update.lock"]
  const victim = picture(store.victim)
  const wrong: string[] = []
  const plants: typeof PLANTS = {
    ...PLANTS,
    "a link with a path out": path => symlinkSync("../../victim/d", path),
    "a link to the link": path => symlinkSync("current", path),
    "an absolute link to the generation": path => symlinkSync(join(store.storage, name), path),
  }
  for (const [what, plant] of Object.entries(plants)) {
    for (const target of targets) {
      rmSync(store.dataRoot, { recursive: true })
      execFileSync("cp", ["-a", pristine, store.dataRoot])
      const path = join(store.dataRoot, target)
      rmSync(path, { recursive: true })
      plant(path, store.victim)
      const before = picture(store.dataRoot)
      const said = await trial(store)
      const add = (fault: string) => wrong.push(`${target} is ${what}: ${said}: ${fault}`)
      if (said.startsWith("no errno")) add("")
      const outside = differences(victim, picture(store.victim))
      if (outside.length > 0) add(`outside: ${outside}`)
      if (said === "done") {
        // A plain file is a lock, whosever it is; all else is refused.
        if (target !== "storage/.update.lock" || lstatSync(path).isDirectory()) add("accepted")
      } else if (differences(before, picture(store.dataRoot)).length > 0) {
        add(`changed: ${differences(before, picture(store.dataRoot))}`)
      }
    }
  }
  t.strictSame(wrong, [])
})

test("leftovers of another uid with links and devices in them are swept, and what they lead to stays", async t => {
  const store = await makeOld(t)
  const generations = join(store.storage, "generations")
  const stage = join(generations, ".stage-v1-20260101T000000Z-00000000")
  mkdirSync(join(stage, "agent/coder.d"), { recursive: true })
  for (const [what, plant] of Object.entries(PLANTS)) plant(join(stage, "agent", what), store.victim)
  linkSync(join(store.victim, "f"), join(stage, "hard"))
  execFileSync("chown", ["-hR", `${OTHER}:${OTHER}`, join(stage, "agent/coder.d")])
  chownSync(stage, OTHER, OTHER)
  symlinkSync(store.victim, join(generations, ".gone-link"))
  mknod(join(generations, ".gone-pipe"), "p")
  symlinkSync("generations/.gone-link", join(store.storage, ".current-00000000"))
  mkdirSync(join(store.storage, ".current-dir"))
  symlinkSync(store.victim, join(store.storage, ".current-dir/away"))
  const victim = picture(store.victim)
  t.equal(await trial(store, true), "done")
  t.strictSame(leftovers(store), [])
  t.strictSame(differences(victim, picture(store.victim)), [])
})

test("a user's storage with a leftover of root's is refused by its path and errno, and current stays", async t => {
  const store = await makeOld(t)
  rmSync(store.dataRoot, { recursive: true })
  mkdirSync(store.dataRoot, { mode: 0o700 })
  chownSync(store.dataRoot, OWNER, OWNER)
  const update = () => store.update([], { uid: OWNER })
  t.equal((await update()).code, 0)
  const current = store.current()
  const stage = join(store.storage, "generations/.stage-v1-20260101T000000Z-00000000")
  mkdirSync(join(stage, "agent"), { recursive: true })
  writeFileSync(join(stage, "agent/x"), "")
  const refused = await update()
  t.equal(refused.code, 13)
  t.match(refused.stderr, /^ctx: EACCES: [^\n]*\.stage-v1-20260101T000000Z-00000000[^\n]*\n$/)
  t.equal(store.current(), current)
  rmSync(stage, { recursive: true })
  t.equal((await update()).stdout, `${current}\n`)
})
