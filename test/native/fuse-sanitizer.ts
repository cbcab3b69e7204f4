// needs: root fuse cmake
// The engine on a kernel mount under AddressSanitizer and UndefinedBehaviorSanitizer.
import { mkdirSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import t from "tap"
import { buildSanitized } from "../../scripts/sanitize.js"
import { startFixture } from "../fixture/native/fusemount.js"
import { runProgram } from "../harness/program.js"

t.setTimeout(900_000)

t.before(() => Object.assign(process.env, buildSanitized()))

t.test("every call on plain nodes of a kernel mount comes out as on the backing side under the sanitizers", async t => {
  for (const passthrough of [true, false]) {
    const m = await startFixture({ passthrough, freshMs: 50 })
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
