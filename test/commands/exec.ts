import { join } from "node:path"
import t from "tap"
import { ctx, run } from "../fixture/commands/cli.js"
import { ROOT } from "../harness/product.js"

const exec = (...words: string[]) => run([process.execPath, join(ROOT, "dist/bin/exec.js"), ...words])

t.test("cortexfs-exec becomes the program its script names, with the words behind the script", async t => {
  const own = await ctx(["which", "tool", "a b"])
  const through = await exec("ctx", "/ctx/bin/ctx", "which", "tool", "a b")
  t.same([through.code, through.stdout, through.stderr], [own.code, own.stdout, own.stderr])
  t.equal((await exec("ctx", "/ctx/bin/ctx", "abi")).stdout, (await ctx(["abi"])).stdout)
})

t.test("cortexfs-exec refuses a program that is not of the tree", async t => {
  for (const words of [[], ["sh", "/x"], ["__proto__", "/x"], ["toString"]]) {
    const ended = await exec(...words)
    t.equal(ended.code, 1)
    t.match(ended.stderr, /^cortexfs-exec: ENOENT: program [^\n]+: one of ctx\n$/)
  }
})
