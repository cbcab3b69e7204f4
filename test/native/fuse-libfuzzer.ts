// needs: root clang cmake
// The engine without a mount under libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
import t from "tap"
import { runFuzz } from "../../scripts/fuzz.js"

t.setTimeout(900_000)

const REQUESTS = 1_000_000
const ROUNDS_MAX = 6

t.test("fuse.40 a million mutated requests crash nothing under the sanitizers and get one reply each", async t => {
  let requests = 0
  for (let round = 0; round < ROUNDS_MAX && requests < REQUESTS; round++) {
    const ended = runFuzz(["-runs=40000"])
    if (!t.equal(ended.code, 0, "the target ends without a finding")) return t.fail(ended.stderr.slice(-4000))
    requests += Number(/^requests (\d+)$/m.exec(ended.stdout)?.[1])
  }
  t.ok(requests >= REQUESTS, `${requests} requests`)
})
