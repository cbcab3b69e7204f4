// needs: root fuse cmake
// The engine under AddressSanitizer and UndefinedBehaviorSanitizer: the parser by mutated requests, then a kernel mount.
import { execFileSync } from "node:child_process"
import { mkdirSync, realpathSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import t from "tap"
import { runFuzz, startFixture } from "../fixture/native/fusemount.js"
import { cleanEnv, runProgram } from "../harness/program.js"

t.setTimeout(900_000)

const ROOT = fileURLToPath(new URL("../..", import.meta.url))
const ADDON = join(ROOT, "build-asan/Release/cortexfs.node")
const PRELOAD = realpathSync(execFileSync("g++", ["-print-file-name=libasan.so"], { encoding: "utf8" }).trim())
const SANITIZE = {
  CORTEXFS_ADDON: ADDON,
  ASAN_OPTIONS: "detect_leaks=0:abort_on_error=1",
  UBSAN_OPTIONS: "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
}

t.before(async () => {
  const built = await runProgram(
    [
      process.execPath,
      join(ROOT, "node_modules/.bin/cmake-js"),
      "-d",
      ROOT,
      "-O",
      join(ROOT, "build-asan"),
      "--CDSAN=ON",
    ],
    { cwd: ROOT, timeoutMs: 600_000, env: cleanEnv() },
  )
  if (built.code !== 0) throw new Error(built.stdout + built.stderr)
})

t.test(
  "fuse.40 (200,000 requests) mutated requests to the parser under the sanitizers crash nothing and get one reply each",
  async t => {
    const seed = Date.now()
    const result = await runFuzz(200_000, seed, { ...cleanEnv(), ...SANITIZE, LD_PRELOAD: PRELOAD })
    t.same(result.faults, [], `seed ${seed}`)
    t.ok(result.answered > 120_000, `${result.answered} replies`)
  },
)

t.test("every call on plain nodes of a kernel mount comes out as on the backing side under the sanitizers", async t => {
  for (const passthrough of [true, false]) {
    const m = await startFixture({ passthrough, freshMs: 50, env: { ...SANITIZE, LD_PRELOAD: PRELOAD } })
    try {
      for (const dir of ["plain", "data/plain"]) mkdirSync(join(m.backing, dir))
      const script = fileURLToPath(new URL("../fixture/native/posix.py", import.meta.url))
      const run = (dir: string) => runProgram(["/usr/bin/env", "python3", script, dir], { timeoutMs: 120_000 })
      const [backing, mounted] = [await run(join(m.backing, "plain")), await run(join(m.mountPoint, "data/plain"))]
      t.equal(mounted.code, 0, mounted.stderr)
      t.same(JSON.parse(mounted.stdout), JSON.parse(backing.stdout))
      await m.sh("for i in 1 2 3; do ls -lR . > /dev/null; cat hello status link > /dev/null; sleep 0.1; done")
      await m.ask("stop")
      t.equal(await m.ended, "unmounted")
    } finally {
      await m.stop()
    }
  }
})
