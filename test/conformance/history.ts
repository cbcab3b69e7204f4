// needs: git
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import { ROOT } from "../harness/product.js"
import { cleanEnv, runProgram } from "../harness/program.js"

const SCRIPT = join(ROOT, "scripts/conformance.js")
const AUTHOR = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]

/** A checkout of one document with these items, committed. */
async function makeCheckout(items: string[]) {
  const dir = mkdtempSync(join(tmpdir(), "cortexfs-conformance-"))
  mkdirSync(join(dir, "spec"))
  const git = async (...args: string[]) => {
    const run = await runProgram(["git", "-C", dir, ...AUTHOR, ...args], { env: cleanEnv({ HOME: dir }) })
    if (run.code !== 0) throw new Error(run.stderr)
  }
  const write = (list: string[]) => {
    const text = list.map(item => `${item}\n`).join("")
    writeFileSync(join(dir, "spec/README.md"), `| 0 | \`README.md\` | x | \`spec\` |\n\n## Conformance\n\n${text}`)
  }
  const commit = async () => {
    await git("add", "-A")
    await git("commit", "-qm", "x")
  }
  write(items)
  await git("init", "-q")
  await commit()
  return { dir, write, commit, check: () => runProgram([process.execPath, SCRIPT, "--root", dir]) }
}

const FIRST = ["1. (later) one", "2. (later) two", "3. (dropped)", "4. (later) four"]

const CHANGES: { what: string; items: string[]; fault: RegExp | undefined }[] = [
  {
    what: "an item put between others",
    items: ["1. (later) one", "2. (later) new", "3. (dropped)", "4. (later) two", "5. (later) four"],
    fault: /spec\.2 has become spec\.4/,
  },
  {
    what: "two items exchanged",
    items: ["1. (later) two", "2. (later) one", "3. (dropped)", "4. (later) four"],
    fault: /spec\.1 has become spec\.2/,
  },
  {
    what: "a dropped item reused",
    items: ["1. (later) one", "2. (later) two", "3. (later) three", "4. (later) four"],
    fault: /spec\.3 reuses a dropped item/,
  },
  {
    what: "the last item removed",
    items: ["1. (later) one", "2. (later) two", "3. (dropped)"],
    fault: /spec\.4 is gone/,
  },
  {
    what: "an item reworded, one dropped, one added at the end",
    items: ["1. (later) one, said better", "2. (dropped)", "3. (dropped)", "4. (later) four", "5. (later) five"],
    fault: undefined,
  },
]

for (const { what, items, fault } of CHANGES) {
  const verdict = fault === undefined ? "passes" : "fails"
  t.test(`spec.8 ${what} ${verdict}, before the commit and just after it`, async t => {
    const checkout = await makeCheckout(FIRST)
    t.teardown(() => rmSync(checkout.dir, { recursive: true, force: true }))
    t.equal((await checkout.check()).code, 0)
    checkout.write(items)
    for (const moment of ["before the commit", "just after it"]) {
      const run = await checkout.check()
      t.equal(run.code, fault === undefined ? 0 : 1, moment)
      if (fault !== undefined) t.match(run.stderr, fault, moment)
      if (moment === "before the commit") await checkout.commit()
    }
  })
}
