// needs: root fuse
import { mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { installedPrefix, makeDir, makeStack, OWNER } from "../harness/product.js"
import { cleanEnv, runProgram } from "../harness/program.js"

const prefix = await installedPrefix()
const mount = (args: string[], options = {}) => runProgram([join(prefix, "bin/cortexfs-mount"), ...args], options)
const agent = (args: string[], options = {}) => runProgram([join(prefix, "bin/cortexfs-agent"), ...args], options)

t.test("a source that is no reference tree is EINVAL, exit 69, and nothing is written", async t => {
  const dir = makeDir()
  const plain = join(dir, "etc")
  const mountPoint = join(dir, "m")
  const run = join(dir, "run")
  mkdirSync(plain)
  mkdirSync(mountPoint)
  const refused = async (why: RegExp) => {
    const before = readdirSync(plain)
    for (const ended of [
      await mount(["--source", plain, mountPoint]),
      await mount(["--source", plain, "--run", run, "--agent", "coder", join(run, "mount/coder")]),
      await agent(["--source", plain, "--run", run, "--agent", "coder"]),
    ]) {
      t.equal(ended.code, 69)
      t.match(
        ended.stderr,
        /^cortexfs-(mount|agent): EINVAL: \S+ is no reference tree: .*: make one with ctx bootstrap/,
      )
      t.match(ended.stderr, why)
      t.equal(ended.stderr.split("\n").length, 2)
    }
    t.same(readdirSync(plain), before)
    t.same(readdirSync(dir).sort(), ["etc", "m"])
  }
  await refused(/it has no bin\/cortexfs\.bootstrap\.json/)
  mkdirSync(join(plain, "bin"))
  writeFileSync(join(plain, "bin/cortexfs.bootstrap.json"), "{}\n")
  await refused(/has the keys/)
  const state = { schema: 1, tree_version: 1, managed_agents: [], applied_migrations: [] }
  writeFileSync(join(plain, "bin/cortexfs.bootstrap.json"), JSON.stringify(state))
  await refused(/it has no directory agent/)
  mkdirSync(join(plain, "agent"))
  mkdirSync(join(plain, "model"))
  writeFileSync(join(plain, "tool"), "")
  await refused(/it has no directory tool/)
  rmSync(join(plain, "bin/cortexfs.bootstrap.json"))
  symlinkSync("/etc/hostname", join(plain, "bin/cortexfs.bootstrap.json"))
  await refused(/bin\/cortexfs\.bootstrap\.json is no plain file/)
  const gone = await mount(["--source", join(dir, "gone"), mountPoint])
  t.same([gone.code, gone.stderr.replaceAll(dir, "D")], [69, "cortexfs-mount: ENOENT: source D/gone does not exist\n"])
})

t.test("storage without current, and a mount point inside of storage or data, are EINVAL", async t => {
  const stack = await makeStack()
  t.teardown(() => stack.stop())
  const before = readdirSync(stack.storage).sort()
  const storage = await mount(["--source", stack.storage, stack.ctx])
  t.equal(storage.code, 69)
  t.match(storage.stderr, /EINVAL: \S+ is no reference tree: .*name STORAGE\/current\n$/)
  t.same(readdirSync(stack.storage).sort(), before)
  t.same(readdirSync(stack.ctx), [])
  const current = join(stack.storage, "current")
  for (const inside of [join(current, "agent"), stack.storage, join(stack.dataRoot, "shared")]) {
    const ended = await mount(["--source", current, inside])
    t.equal(ended.code, 69)
    t.match(ended.stderr, /^cortexfs-mount: EINVAL: mount point \S+ lies in \S+, which it would show: /)
  }
  const foreign = await agent(["--source", current, "--run", stack.run, "--agent", "coder"], { uid: OWNER })
  t.not(foreign.code, 0)
})

t.test("--abort does nothing on a directory without a mount, and names a place that is none", async t => {
  const dir = makeDir()
  writeFileSync(join(dir, "file"), "")
  t.same(await mount(["--abort", dir]), { code: 0, signal: null, stdout: "", stderr: "" })
  const missing = await mount(["--abort", join(dir, "gone")])
  t.same([missing.code, missing.stderr.slice(0, 24)], [69, "cortexfs-mount: ENOENT: "])
  const deep = await mount(["--abort", join(dir, "gone/gone")])
  t.same([deep.code, deep.stderr.slice(0, 24)], [69, "cortexfs-mount: ENOENT: "])
  const file = await mount(["--abort", join(dir, "file")])
  t.same([file.code, file.stderr.slice(0, 25)], [69, "cortexfs-mount: ENOTDIR: "])
  // A clean stop has removed it: what a unit runs after that must be silent.
  t.same(await mount(["--abort", "/run/cortexfs/mount/cx-none"]), { code: 0, signal: null, stdout: "", stderr: "" })
})

t.test("--help and --version of cortexfs-mount and cortexfs-agent print a line and exit 0", async t => {
  for (const program of [mount, agent]) {
    const help = await program(["--help"], { env: cleanEnv() })
    t.same([help.code, help.stderr], [0, ""])
    t.match(help.stdout, /^usage: cortexfs-(mount|agent) --source DIR [^\n]+\n$/)
    const version = await program(["--version"])
    t.same([version.code, version.stderr], [0, ""])
    t.match(version.stdout, /^cortexfs\/\d+\.\d+\.\d+\n$/)
  }
})
