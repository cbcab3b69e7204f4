// needs: root strace
import { execFileSync } from "node:child_process"
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
} from "node:fs"
import { basename, join } from "node:path"
import { type Test, test } from "tap"
import { MS_BIND, mount, umount2 } from "../../src/native/sys.js"
import { checkStorage } from "../../src/store/fsck.js"
import {
  ctxPath,
  differences,
  faultEnv,
  makeCurrent,
  makeStore,
  OTHER,
  picture,
  run,
  type Store,
  updateHere,
} from "../fixture/store/kit.js"
import { RELEASE_1, RELEASE_3 } from "../fixture/store/release.js"
import { makeDir } from "../harness/product.js"

/** `path reason` of each fault, paths relative to the storage, the generation as GEN. */
function faults(store: Store, generation = ""): string[] {
  return checkStorage(store.storage).map(({ path, reason }) => {
    const shown = path.toString().slice(store.storage.length + 1)
    return `${generation === "" ? shown : shown.replaceAll(basename(generation), "GEN")} ${reason}`
  })
}

const base = makeDir()
let count = 0

async function makeSound(t: Test): Promise<{ store: Store; current: string }> {
  const dir = join(base, String(count++))
  mkdirSync(dir)
  const store = await makeStore(dir)
  const current = await updateHere(store)
  t.strictSame(faults(store), [])
  return { store, current }
}

test("storage verify prints ok for a fresh storage and changes nothing", async t => {
  const store = await makeStore()
  await makeCurrent(store)
  const image = picture(store.dataRoot)
  const verify = async (...more: string[]) => run([await ctxPath(), "storage", "verify", store.storage, ...more])
  t.match(await verify(), { code: 0, stdout: "ok\n", stderr: "" })
  t.strictSame(JSON.parse((await verify("--json")).stdout), [{ action: "ok", path: store.storage }])
  t.strictSame(differences(image, picture(store.dataRoot)), [])
})

test("storage verify names each fault on a line, exits 1 with one line on stderr, and changes nothing", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  chmodSync(join(current, "tool/fs.read.d/schema"), 0o666)
  writeFileSync(join(current, "agent/coder.d/line\nfeed"), "")
  chownSync(join(current, "agent/coder.d/line\nfeed"), OTHER, OTHER)
  const image = picture(store.dataRoot)
  const ended = await run([await ctxPath(), "storage", "verify", store.storage])
  t.equal(ended.code, 1)
  t.strictSame(ended.stdout.split("\n").sort(), [
    "",
    `bad ${current}/agent/coder.d/line\\nfeed belongs to uid ${OTHER}`,
    `bad ${current}/tool/fs.read.d/schema mode 666: others may write it`,
  ])
  t.match(ended.stderr, /^ctx: EIO: \S+ has 2 faults: [^\n]+\n$/)
  t.strictSame(differences(image, picture(store.dataRoot)), [])
  t.match(await run([await ctxPath(), "storage", "verify", store.storage], { uid: OTHER }), { code: 13, stdout: "" })
})

test("storage verify tells what is wrong with current and the roots", async t => {
  const { store, current } = await makeSound(t)
  const link = join(store.storage, "current")
  const generations = join(store.storage, "generations")
  const gen = basename(current)
  const cases: [string, () => void, () => void][] = [
    ["current missing", () => unlinkSync(link), () => {}],
    ["current leads to nothing", () => symlinkSync("generations/v1-gone", link), () => unlinkSync(link)],
    [`current leads to "${current}", not to generations/GEN`, () => symlinkSync(current, link), () => unlinkSync(link)],
    [
      `current leads to "generations/../generations/${gen}", not to generations/GEN`,
      () => symlinkSync(`generations/../generations/${gen}`, link),
      () => unlinkSync(link),
    ],
    ["current no link", () => writeFileSync(link, ""), () => unlinkSync(link)],
    [
      "generations mode 0777: others may write it",
      () => {
        symlinkSync(`generations/${gen}`, link)
        chmodSync(generations, 0o777)
      },
      () => chmodSync(generations, 0o755),
    ],
    [
      `generations belongs to uid ${OTHER}`,
      () => chownSync(generations, OTHER, OTHER),
      () => chownSync(generations, 0, 0),
    ],
    [
      ".update.lock mode 0644, not 0600",
      () => chmodSync(join(store.storage, ".update.lock"), 0o644),
      () => chmodSync(join(store.storage, ".update.lock"), 0o600),
    ],
    [`generations/GEN mode 0755, not 0711`, () => chmodSync(current, 0o755), () => chmodSync(current, 0o711)],
    [
      "generations no real directory",
      () => {
        renameSync(generations, `${generations}.away`)
        symlinkSync("generations.away", generations)
      },
      () => {
        unlinkSync(generations)
        renameSync(`${generations}.away`, generations)
      },
    ],
  ]
  for (const [fault, harm, mend] of cases) {
    harm()
    const found = checkStorage(store.storage).map(
      ({ path, reason }) =>
        `${path
          .toString()
          .slice(store.storage.length + 1)
          .replace(gen, "GEN")} ${reason}`,
    )
    t.strictSame(found, [fault])
    mend()
  }
  t.strictSame(faults(store), [])
})

test("storage verify finds lost, cut and changed content of the selected generation", async t => {
  const harms: Record<string, (at: (path: string) => string) => void> = {
    "bin/cortexfs.bootstrap.json missing": at => unlinkSync(at("bin/cortexfs.bootstrap.json")),
    "bin/cortexfs.bootstrap.json not a JSON document": at => truncateSync(at("bin/cortexfs.bootstrap.json"), 20),
    "bin/cortexfs.bootstrap.json tree_version 9 is newer than 1 of this program": at => {
      const path = at("bin/cortexfs.bootstrap.json")
      writeFileSync(path, readFileSync(path, "utf8").replace('"tree_version": 1', '"tree_version": 9'))
    },
    "bin/ctx not as in this release (would change)": at => truncateSync(at("bin/ctx"), 0),
    "shared/cortexfs-docs/README.md not as in this release (would ensure)": at =>
      unlinkSync(at("shared/cortexfs-docs/README.md")),
    "shared/cortexfs-docs/more.md not as in this release (would remove)": at =>
      writeFileSync(at("shared/cortexfs-docs/more.md"), ""),
    "tool/fs.read.d/schema not as in this release (would change)": at =>
      writeFileSync(at("tool/fs.read.d/schema"), "{}"),
    "agent/coder.d/model is empty: one line is needed": at => truncateSync(at("agent/coder.d/model"), 0),
    "agent/coder no executable file": at => chmodSync(at("agent/coder"), 0o644),
    "model/main not an alias of a model": at => {
      unlinkSync(at("model/main"))
      symlinkSync("/etc/passwd", at("model/main"))
    },
    "home a generation has no home": at => mkdirSync(at("home")),
    "shared holds cortexfs-docs lab, not cortexfs-docs": at => mkdirSync(at("shared/lab")),
  }
  for (const [fault, harm] of Object.entries(harms)) {
    const { store, current } = await makeSound(t)
    harm(path => join(current, path))
    t.strictSame(
      faults(store, current).filter(line => line === `generations/GEN/${fault}`),
      [`generations/GEN/${fault}`],
      faults(store, current).join("; "),
    )
  }
})

test("storage verify accepts what people may change, a user's agent, and leftovers of a killed update", async t => {
  const { store, current } = await makeSound(t)
  writeFileSync(join(current, "agent/coder.d/policy"), "allow coder_t model:main use\n")
  writeFileSync(join(current, "agent/coder.d/system.md"), "Be brief.\n")
  execFileSync("cp", ["-a", join(current, "agent/coder.d"), join(current, "agent/mine.d")])
  execFileSync("cp", ["-a", join(current, "agent/coder"), join(current, "agent/mine")])
  writeFileSync(join(current, "agent/mine.d/owner"), `${OTHER}\n`)
  execFileSync("chown", ["-R", `${OTHER}:${OTHER}`, join(current, "agent/mine.d"), join(current, "agent/mine")])
  t.strictSame(faults(store), [])
  rmSync(join(current, "shared/cortexfs-docs/README.md"))
  const killed = await store.update([], { env: faultEnv("cloned", "kill") })
  t.equal(killed.signal, "SIGKILL")
  t.strictSame(faults(store, current), [
    "generations/GEN/shared/cortexfs-docs/README.md not as in this release (would ensure)",
  ])
})

test("storage verify holds a tree of an older release to its own state only", async t => {
  const store = await makeStore()
  const current = await updateHere(store, { release: RELEASE_1 })
  t.strictSame(checkStorage(store.storage, { release: RELEASE_3 }), [])
  unlinkSync(join(current, "agent/coder.d/model"))
  t.match(checkStorage(store.storage, { release: RELEASE_3 }), [{ reason: "missing" }])
})

test("storage verify takes no harm from a hostile tree and names what has no place in it", async t => {
  const { store, current } = await makeSound(t)
  const at = (path: string) => join(current, path)
  writeFileSync(join(store.dir, "secret"), "x", { mode: 0o600 })
  symlinkSync(join(store.dir, "secret"), at("agent/coder.d/note"))
  unlinkSync(at("agent/worker.d/policy"))
  symlinkSync("/etc/shadow", at("agent/worker.d/policy"))
  execFileSync("mkfifo", [at("agent/coder.d/pipe")])
  execFileSync("mknod", [at("agent/coder.d/null"), "c", "1", "3"])
  writeFileSync(at("tool/su"), "", { mode: 0o755 })
  chmodSync(at("tool/su"), 0o4755)
  writeFileSync(at("tool/foreign"), "")
  chownSync(at("tool/foreign"), OTHER, OTHER)
  symlinkSync("/", at("shared/cortexfs-docs/root"))
  execFileSync("bash", ["-c", 'cd "$1"; for i in {1..90}; do mkdir d && cd d; done', "-", at("agent/coder.d")])
  const odd = Buffer.concat([Buffer.from(`${at("agent/coder.d")}/`), Buffer.from([0xff, 0x0a])])
  writeFileSync(odd, "")
  const found = faults(store, current)
  for (const line of [
    "agent/coder.d/note a link where none belongs",
    "agent/worker.d/policy a link where none belongs",
    "agent/coder.d/pipe neither file, directory, link nor socket",
    "agent/coder.d/null neither file, directory, link nor socket",
    "tool/su has a set-id bit",
    `tool/foreign belongs to uid ${OTHER}`,
    "shared/cortexfs-docs/root a link where none belongs",
  ]) {
    t.ok(found.includes(`generations/GEN/${line}`), `${line} in ${found.join("; ")}`)
  }
  t.ok(
    found.some(line => /coder\.d(\/d){63} deeper than 64 directories$/.test(line)),
    found.join("; "),
  )
})

test("storage verify does not look into what is mounted in a generation", async t => {
  const { store, current } = await makeSound(t)
  const inside = join(current, "agent/coder.d/hooks")
  mkdirSync(join(store.dir, "elsewhere"))
  writeFileSync(join(store.dir, "elsewhere/tool"), "", { mode: 0o777 })
  mount(join(store.dir, "elsewhere"), inside, "", MS_BIND)
  t.teardown(() => existsSync(inside) && umount2(inside))
  t.strictSame(faults(store, current), ["generations/GEN something is mounted in it"])
})

test("storage verify opens nothing outside of the storage and nothing for writing", async t => {
  const store = await makeStore()
  const current = await makeCurrent(store)
  symlinkSync("../../../../home", join(current, "shared/away"))
  symlinkSync("/etc/shadow", join(current, "agent/coder.d/window2"))
  const file = join(store.dir, "trace")
  const strace = [
    "/usr/bin/strace",
    "-f",
    "-y",
    "-s",
    "256",
    "-e",
    "trace=%file,openat2,write,fchmod,fchown",
    "-o",
    file,
  ]
  const ended = await run([...strace, await ctxPath(), "storage", "verify", store.storage])
  t.equal(ended.code, 1)
  const calls = readFileSync(file, "utf8").split("\n")
  const opened = calls.filter(line => / open(at2?)?\(/.test(line) && / = \d+</.test(line))
  const paths = opened.map(line => / = \d+<([^>]*)>/.exec(line)![1]!)
  t.ok(paths.some(path => path.startsWith(`${current}/`)))
  t.strictSame(
    paths.filter(
      path => path.startsWith(store.dataRoot) && path !== store.storage && !path.startsWith(`${store.storage}/`),
    ),
    [],
  )
  t.notOk(paths.includes("/etc/shadow"))
  const writing = calls.filter(
    line =>
      line.includes(store.dataRoot) &&
      /O_WRONLY|O_RDWR|O_CREAT|^\d+ +(rename|unlink|mkdir|symlink|f?chmod|f?chown|utime)/.test(line),
  )
  t.strictSame(writing, [])
})
