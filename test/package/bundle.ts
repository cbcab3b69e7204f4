// needs: root
// The programs of an installation run from their bundles.
import { mkdirSync, readdirSync, readFileSync, renameSync } from "node:fs"
import { join } from "node:path"
import { pathToFileURL } from "node:url"
import t from "tap"
import { makeDir, ROOT } from "../harness/product.js"
import { runProgram } from "../harness/program.js"

interface Installer {
  installProduct(options: { prefix: string; from: string }): { bin: string; libRoot: string }
}

const { installProduct }: Installer = await import(pathToFileURL(`${ROOT}/scripts/install.js`).href)
const prefix = makeDir("cortexfs-bundle")
const { bin, libRoot } = installProduct({ prefix, from: ROOT })
const programs = join(libRoot, "dist/bin")
const BUNDLES = ["agent.cjs", "mount.cjs", "step.cjs", "tool.cjs"]
/** Something that exists and is no reference tree, so that a program comes as far as the addon and an error. */
const empty = join(prefix, "empty")
mkdirSync(empty)

t.test("a program of an installation is one strict file of ASCII that names no other module", async t => {
  for (const bundle of BUNDLES) {
    const name = bundle.slice(0, -4)
    t.match(readFileSync(join(bin, `cortexfs-${name}`), "utf8"), `\nrequire("../dist/bin/${bundle}")\n`)
    const text = readFileSync(join(programs, bundle), "latin1")
    t.match(text.slice(0, 13), '"use strict";', name)
    t.notMatch(text, /[^\0-\x7f]/, name)
    t.notMatch(text, /(require|import)\("\.{1,2}\//, name)
  }
})

t.test("the runtime and the mount say the same when none of their modules is there", async t => {
  const run = async () => [
    await runProgram([join(bin, "cortexfs-agent"), "--source", empty, "--agent", "coder"], { uid: 12001 }),
    await runProgram([join(bin, "cortexfs-mount"), "--source", empty, join(prefix, "point")], { uid: 12001 }),
  ]
  mkdirSync(join(prefix, "point"))
  const before = await run()
  for (const { code, stderr } of before) {
    t.equal(code, 69)
    t.match(stderr, /EINVAL: .* is no reference tree/)
  }
  const folders = readdirSync(join(libRoot, "dist")).filter(name => name !== "bin")
  for (const name of folders) renameSync(join(libRoot, "dist", name), join(libRoot, "dist", `${name}.away`))
  t.teardown(() => {
    for (const name of folders) renameSync(join(libRoot, "dist", `${name}.away`), join(libRoot, "dist", name))
  })
  t.same(await run(), before)
})

t.test("a build leaves no file but those of its sources and bundles", async t => {
  const modules = readdirSync(join(ROOT, "src/bin")).map(name => name.replace(/\.ts$/, ".js"))
  const expected = [...modules, ...BUNDLES].sort()
  t.same(readdirSync(join(ROOT, "dist/bin")).sort(), expected)
  t.same(readdirSync(programs).sort(), expected)
})
