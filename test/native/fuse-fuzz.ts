// needs: root fuse
// Malformed requests to the parser by the test transport.
import t from "tap"
import { runFuzz } from "../fixture/native/fusemount.js"

t.setTimeout(240_000)

t.test("fuse.40 (100,000 requests, no sanitizer) mutated requests crash nothing and get one reply each", async t => {
  const seed = Date.now()
  const result = await runFuzz(100_000, seed)
  t.same(result.faults, [], `seed ${seed}`)
  t.ok(result.answered > 60_000, `${result.answered} replies`)
})
