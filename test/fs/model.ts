// needs: root fuse
// Random operations on plain nodes and on a model file system: the same results, the same errno.
import fc from "fast-check"
import t from "tap"
import { act, type Call, type Facts } from "./fixture/actor.js"
import { ModelFs, type Op } from "./fixture/model.js"
import { makeFixture, O, OWNER, type Stack } from "./fixture/stack.js"

t.setTimeout(250_000)

const name = fc.constantFrom("a", "b", "c")
const path = fc.array(name, { minLength: 1, maxLength: 3 }).map(names => names.join("/"))
const text = fc.string({ minLength: 1, maxLength: 20, unit: "grapheme-ascii" })
const ops: fc.Arbitrary<Op> = fc.oneof(
  { weight: 4, arbitrary: fc.tuple(fc.constantFrom("write", "create", "append"), path, text) },
  { weight: 4, arbitrary: fc.tuple(fc.constant("mkdir"), path) },
  { weight: 4, arbitrary: fc.tuple(fc.constantFrom("read", "lstat", "list", "readlink"), path) },
  { weight: 2, arbitrary: fc.tuple(fc.constantFrom("rmdir", "unlink"), path) },
  { weight: 4, arbitrary: fc.tuple(fc.constant("rename"), path, path, fc.constantFrom(0, 0, 1, 2)) },
  { weight: 2, arbitrary: fc.tuple(fc.constant("link"), path, path) },
  { weight: 2, arbitrary: fc.tuple(fc.constant("symlink"), path, path) },
  { weight: 1, arbitrary: fc.tuple(fc.constant("truncate"), path, fc.nat(40)) },
)

/** The call of actor.py for an operation below `dir`. */
function callOf(dir: string, op: Op): Call {
  const at = (rel: string) => `${dir}/${rel}`
  switch (op[0]) {
    case "write":
      return ["write", at(op[1]), op[2]]
    case "create":
      return ["write", at(op[1]), op[2], O.WRONLY | O.CREAT | O.EXCL]
    case "rename":
      return ["rename", at(op[1]), at(op[2]), op[3]]
    case "link":
      return ["link", at(op[1]), at(op[2])]
    case "symlink":
      return ["symlink", op[1], at(op[2])]
    case "append":
    case "truncate":
      return [op[0], at(op[1]), op[2]]
    default:
      return [op[0], at(op[1])]
  }
}

/** What the model says of it too. */
function shown(op: Op, result: unknown): unknown {
  if (Array.isArray(result)) return [...result].sort()
  if (op[0] !== "lstat" || typeof result !== "object") return result
  const { type, nlink, size } = result as Facts
  return type === "dir" ? { type, nlink } : { type, nlink, size }
}

let next = 0

async function compare(top: string, list: Op[]): Promise<void> {
  const dir = `${top}/${next++}`
  const model = new ModelFs()
  const expected = list.map(op => model.apply(op))
  const [made, ...seen] = await act(OWNER, [["mkdir", dir], ...list.map(op => callOf(dir, op))])
  if (made !== "ok") throw new Error(`${dir}: ${made}`)
  for (const [i, op] of list.entries()) {
    const [is, must] = [JSON.stringify(shown(op, seen[i])), JSON.stringify(expected[i])]
    if (is !== must) throw new Error(`call ${i} ${JSON.stringify(op)} gave ${is}, not ${must}`)
  }
}

t.test("fuse.41 a thousand random operations agree with a model file system in result and errno", async t => {
  const f = await makeFixture({ timeoutMs: 240_000 })
  const stack: Stack = f.stack
  t.teardown(() => stack.stop())
  const seed = Number(process.env.CORTEXFS_SEED ?? Date.now() % 1_000_000_000)
  const data = `home/${OWNER}/agent/coder/data`
  // First the model itself against the backing file system, then the mount.
  for (const top of [f.behind(data), f.at(data)]) {
    let calls = 0
    const lists = fc.array(ops, { minLength: 1, maxLength: 100, size: "max" })
    const property = fc.asyncProperty(lists, async list => {
      calls += list.length
      await compare(top, list)
    })
    const { failed, errorInstance, counterexample } = await fc.check(property, { numRuns: 60, seed })
    t.notOk(failed, `${top}, seed ${seed}: ${errorInstance} in ${JSON.stringify(counterexample)}`)
    t.ok(calls >= 1000, `${calls} calls`)
  }
})
