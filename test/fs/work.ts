// needs: root fuse git
// A day's work inside of an agent's data directory: clone, look, install, run, remove.
import { chmodSync, copyFileSync, mkdirSync, readdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { act1 } from "./fixture/actor.js"
import { makeBehind, makeFixture, OWNER } from "./fixture/stack.js"
import { makeProject, makeRepository, work } from "./fixture/work.js"

t.setTimeout(290_000)

const data = `home/${OWNER}/agent/coder/data`

t.test("fuse.42 npm ci of 300 packages, git clone, status and fsck, rm -rf", async t => {
  const f = await makeFixture({ timeoutMs: 280_000 })
  t.teardown(() => f.stack.stop())
  const { dir } = f.stack
  const home = join(dir, "worker")
  makeBehind(home, OWNER)
  makeRepository(join(dir, "repository"))
  makeProject(dir)
  const run = async (line: string, cwd = f.at(data)) => {
    const { code, stdout, stderr } = await work(line, cwd, home)
    t.equal(code, 0, `${line}: ${stderr}`)
    return stdout
  }

  await run(`git clone -q --local --no-hardlinks ${dir}/repository copy`)
  t.equal(await run("git -C copy fsck --strict"), "")
  t.equal(await run("git -C copy status --porcelain"), "")
  await run(`git clone -q --no-local ${dir}/repository clone`)
  t.equal(await run("git -C clone status --porcelain"), "")
  t.equal(await run("diff -r clone/src copy/src"), "")
  await run("echo more >> clone/src/abi/name.ts; mv clone/docs clone/papers; rm clone/native/addon.cc")
  const changed = await run("git -C clone status --porcelain")
  t.match(changed, / M src\/abi\/name\.ts\n/)
  t.match(changed, / D native\/addon\.cc\n/)
  t.match(changed, /\?\? papers\/\n/)
  await run("git -C clone add -A && git -C clone -c user.name=t -c user.email=t@localhost commit -qm all")
  await run("git -C clone gc -q")
  t.equal(await run("git -C clone fsck --strict"), "")
  t.equal(await run("git -C clone status --porcelain"), "")
  t.equal(await run(`diff -r clone/src ${f.behind(data)}/clone/src`), "")
  await run("rm -rf clone copy")

  await run(`cp -r ${dir}/project ${dir}/packages .`)
  await run("npm ci", f.at(`${data}/project`))
  const modules = readdirSync(f.behind(`${data}/project/node_modules`)).filter(name => !name.startsWith("."))
  const scoped = modules.flatMap(name =>
    name.startsWith("@") ? readdirSync(f.behind(`${data}/project/node_modules/${name}`)) : [name],
  )
  t.equal(scoped.length, 300)
  t.equal(await run(`diff -r project ${f.behind(data)}/project`), "")
  await run("rm -rf project packages")
  t.same(readdirSync(f.behind(data)), [])
  t.same(readdirSync(f.at(data)), [])
})

t.test("fuse.43 (script, ELF) both run in a home; without x they are EACCES", async t => {
  const f = await makeFixture()
  t.teardown(() => f.stack.stop())
  makeBehind(f.behind(`home/${OWNER}`), OWNER, 0o711)
  mkdirSync(f.at(`home/${OWNER}/bin`))
  const script = f.at(`home/${OWNER}/bin/script`)
  writeFileSync(script, '#!/bin/sh\necho "ran $1 as $(id -u)"\n', { mode: 0o755 })
  const elf = f.at(`home/${OWNER}/bin/elf`)
  copyFileSync("/usr/bin/id", elf)
  chmodSync(elf, 0o755)
  t.same(await act1(OWNER, "exec", script, "x"), { code: 0, stdout: `ran x as ${OWNER}\n` })
  t.same(await act1(OWNER, "exec", elf, "-u"), { code: 0, stdout: `${OWNER}\n` })
  for (const path of [script, elf]) {
    chmodSync(path, 0o644)
    t.equal(await act1(OWNER, "exec", path), "EACCES")
    t.equal(await act1(0, "exec", path), "EACCES")
  }
})
