import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import t from "tap"
import { checkConformance, parseCitations, parseTitles, readTitles } from "../../scripts/conformance.js"
import { ROOT } from "../harness/product.js"
import { runProgram } from "../harness/program.js"

const SCRIPT = join(ROOT, "scripts/conformance.js")
const runOn = (root: string, ...args: string[]) => runProgram([process.execPath, SCRIPT, "--root", root, ...args])

/** A copy of spec/ and test/ of this checkout, without its history. */
function copyCheckout(): string {
  const dir = mkdtempSync(join(tmpdir(), "cortexfs-conformance-"))
  for (const name of ["spec", "test"]) cpSync(join(ROOT, name), join(dir, name), { recursive: true })
  return dir
}

t.test("spec.4 conformance exits 0 here, and 1 with any one needed title removed or one of no item added", async t => {
  const here = await runOn(ROOT)
  t.equal(here.code, 0, here.stderr)

  const dir = copyCheckout()
  t.teardown(() => rmSync(dir, { recursive: true, force: true }))
  t.equal((await runOn(dir)).code, 0)

  // Every item that needs its one title: without that title the check has to fail and name the item.
  t.equal((await runOn(dir, "--unmark")).code, 0)
  const titles = readTitles(dir)
  const needed = checkConformance(dir, titles).documents.flatMap(({ prefix, items }) =>
    items
      .filter(item => item.mark === undefined && item.full.length + item.part.length === 1)
      .map(item => ({ citation: `${prefix}.${item.number}`, title: [...item.full, ...item.part][0]! })),
  )
  t.ok(needed.length > 0, `${needed.length} titles`)
  for (const { citation, title } of needed) {
    const rest = titles.filter(one => one.title !== title.title || one.file !== title.file || one.line !== title.line)
    t.ok(checkConformance(dir, rest).failures.includes(`${citation} has no test`), citation)
  }

  const { citation, title } = needed[0]!
  const path = join(dir, title.file)
  const text = readFileSync(path, "utf8")
  writeFileSync(path, text.replaceAll(citation, "x"))
  const less = await runOn(dir)
  t.equal(less.code, 1)
  t.match(less.stderr, `${citation} has no test`)
  writeFileSync(path, text)
  t.equal((await runOn(dir)).code, 0)

  const extra = join(dir, "test/conformance/extra.ts")
  writeFileSync(extra, 'import t from "tap"\nt.test("root.999 is nowhere", async () => {})\n')
  const added = await runOn(dir)
  t.equal(added.code, 1)
  t.match(added.stderr, /test\/conformance\/extra\.ts:2 names root\.999, which does not exist/)
})

t.test("a part stands in brackets behind its citation, and only whole words are citations", async t => {
  const prefixes = ["root", "session", "ctx"]
  t.same(parseCitations("session.14 (torn tail only) root.3 and x/root.4, ctx.5a root.6.1 ctx.7", prefixes), [
    { prefix: "session", number: 14, isPart: true },
    { prefix: "root", number: 3, isPart: false },
    { prefix: "ctx", number: 7, isPart: false },
  ])
})

t.test("titles are read from literals, templates and sums of them, and from test calls only", async t => {
  const text = [
    't.test("root.1 a", f)',
    "tap.test(`root.2 $" + "{x} b`, f)",
    'test("root." + "3", f)',
    'other("root.4")',
  ].join("\n")
  t.same(
    parseTitles(text, "x.ts").map(title => title.title),
    ["root.1 a", "root.2 … b", "root.3"],
  )
})

t.test("unmarking takes the mark off items with a full title and off no other", async t => {
  const dir = mkdtempSync(join(tmpdir(), "cortexfs-conformance-"))
  t.teardown(() => rmSync(dir, { recursive: true, force: true }))
  const write = (path: string, text: string) => {
    mkdirSync(dirname(join(dir, path)), { recursive: true })
    writeFileSync(join(dir, path), text)
  }
  write(
    "spec/README.md",
    "| 0 | `README.md` | x | `spec` |\n\n1. (later) not an item\n\n## Conformance\n\n1. (later) a\n2. (later) b\n3. (later) c\n",
  )
  write("test/x.ts", 't.test("spec.1 is so", f)\nt.test("spec.2 (half) is so", f)\n')
  t.equal((await runOn(dir, "--unmark")).code, 0)
  t.match(
    readFileSync(join(dir, "spec/README.md"), "utf8"),
    "1. (later) not an item\n\n## Conformance\n\n1. a\n2. (later) b\n3. (later) c\n",
  )
})
