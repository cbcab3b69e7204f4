// needs: root fuse
import { execFileSync } from "node:child_process"
import { readFileSync, renameSync, rmSync, symlinkSync } from "node:fs"
import { basename, join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import { test } from "tap"
import { OWNER, run } from "../fixture/store/kit.js"
import { currentGeneration, makeStack } from "../harness/product.js"

const status = (ctx: string) =>
  new Map(
    execFileSync("/bin/cat", [join(ctx, "status")], { encoding: "utf8" })
      .trimEnd()
      .split("\n")
      .map(line => line.split("=", 2) as [string, string]),
  )

test("roll.13 a mount serves the generation it pinned until it exits, whatever current leads to meanwhile", async t => {
  const stack = await makeStack()
  t.teardown(() => stack.stop())
  const first = currentGeneration(stack)
  const mount = await stack.startHost()
  t.equal(status(stack.ctx).get("generation"), basename(first))
  const second = join(stack.storage, "generations/v1-by-hand")
  execFileSync("cp", ["-a", first, second])
  execFileSync("chmod", ["711", second])
  rmSync(join(second, "shared/cortexfs-docs/README.md"))
  symlinkSync("generations/v1-by-hand", join(stack.storage, "next"))
  renameSync(join(stack.storage, "next"), join(stack.storage, "current"))
  // More than a second, so that the next access checks the sources of every generated node anew.
  await sleep(1200)
  t.equal(status(stack.ctx).get("generation"), basename(first))
  const cat = (path: string) => execFileSync("/bin/cat", [join(stack.ctx, path)], { encoding: "utf8" })
  t.equal(cat("shared/cortexfs-docs/README.md"), readFileSync(join(first, "shared/cortexfs-docs/README.md"), "utf8"))
  await mount.stop()
  await stack.startHost()
  t.equal(status(stack.ctx).get("generation"), "v1-by-hand", "a new one takes what current names now")
})

test("roll.11 (a mount as the consumer) a served generation is not rolled, and its program is named", async t => {
  const stack = await makeStack()
  t.teardown(() => stack.stop())
  const mount = await stack.startHost()
  rmSync(join(currentGeneration(stack), "bin/ctx"))
  const update = () =>
    run([join(stack.prefix, "bin/ctx"), "storage", "update", "--prune", "--owner", String(OWNER), stack.storage])
  const refused = await update()
  t.equal(refused.code, 69)
  t.match(
    refused.stderr,
    /^ctx: EBUSY: generation \S+ pinned by pid \d+ cortexfs-mount: stop its unit, then run again\n$/,
  )
  await mount.stop()
  const rolled = await update()
  t.equal(rolled.code, 0, rolled.stderr)
  t.match(rolled.stdout, /^\/\S+\npruned v1-\S+\n$/)
})
