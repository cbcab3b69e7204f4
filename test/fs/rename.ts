// needs: root fuse
// The rename matrix of fuse.md 5.5 but for what lies in agent/ (agent.ts).
import { createHash } from "node:crypto"
import { lchownSync, lstatSync, readdirSync, readFileSync, readlinkSync, symlinkSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { act, type Call } from "./fixture/actor.js"
import { type Fixture, makeBehind, makeFixture, makeSession, OWNER, writeBehind } from "./fixture/stack.js"

const N = 1
const X = 2
let f: Fixture
const home = `home/${OWNER}`

t.before(async () => {
  f = await makeFixture()
})
t.after(() => f.stack.stop())

/** A hash of all names, types, texts and contents below the durable data. */
function hashTree(dir: string): string {
  const sum = createHash("sha256")
  for (const name of readdirSync(dir, { recursive: true, encoding: "utf8" }).sort()) {
    const path = join(dir, name)
    const stat = lstatSync(path)
    const content = stat.isSymbolicLink() ? readlinkSync(path) : stat.isFile() ? readFileSync(path) : ""
    sum.update(`${name}\0${stat.mode}\0`).update(content)
  }
  return sum.digest("hex")
}

const calls = (from: string, to: string, flags: number[]): Call[] =>
  flags.map(flag => ["rename", f.at(from), f.at(to), flag])

t.test("fuse.10 (rows outside of agent/) refused renames leave the tree as it was", async t => {
  const put = (rel: string, text = rel) => writeBehind(f.behind(`${home}/${rel}`), text, OWNER)
  for (const dir of ["dir", "dir/sub", "full", "agent/rev", "agent/rev/data"])
    makeBehind(f.behind(`${home}/${dir}`), OWNER)
  for (const file of ["a", "b", "full/one", "tool/x"]) put(file)
  writeBehind(f.behind("shared/lab/data/there"), "there", OWNER, 0o666)
  makeSession(f.behind(`${home}/agent/coder/session/s`), OWNER)
  makeBehind(f.behind(`${home}/agent/rev/session`), OWNER)
  const session = `${home}/agent/coder/session/s`
  await act(OWNER, [["symlink", "/ctx/model/debug/echo", f.at(`${home}/model/fast`)]])
  await act(OWNER, [["symlink", "a", f.at(`${home}/link`)]])
  // One that came in behind the mount moves nowhere either.
  symlinkSync("x", f.behind(`${home}/tool/behind`))
  lchownSync(f.behind(`${home}/tool/behind`), OWNER, OWNER)
  const before = hashTree(f.stack.dataRoot)

  const rows: [from: string, to: string, flags: number[], result: string, uid?: number][] = [
    [`${home}/a`, `${home}/b`, [N], "EEXIST"],
    [`${home}/a`, `${home}/none`, [X], "ENOENT"],
    [`${home}/dir`, `${home}/full`, [0], "ENOTEMPTY"],
    [`${home}/a`, `${home}/dir`, [0], "EISDIR"],
    [`${home}/dir`, `${home}/a`, [0], "ENOTDIR"],
    [`${home}/dir`, `${home}/dir/sub/x`, [0], "EINVAL"],
    [`${home}/a`, `${home}/b`, [4, 8, 3], "EINVAL"],
    [`${home}/a`, "shared/lab/data/a", [0, N], "EXDEV"],
    [`${home}/a`, "shared/lab/data/there", [X], "EXDEV"],
    [`${home}/a`, `${session}/new`, [0, N], "EROFS"],
    [`${home}/a`, `${session}/state`, [0, X], "EROFS"],
    [`${session}/state`, `${home}/new`, [0, N], "EROFS"],
    [`${session}/state`, `${session}/cwd`, [0, X], "EROFS"],
    [`${home}/model/fast`, `${home}/model/other`, [0, N], "EROFS"],
    [`${home}/model/fast`, `${home}/elsewhere`, [0, N], "EROFS"],
    [`${home}/a`, `${home}/model/main`, [0, N], "EROFS"],
    [`${home}/a`, `${home}/model/fast`, [0, X], "EROFS"],
    [`${home}/link`, `${home}/tool/link`, [0, N], "EROFS"],
    [`${home}/tool/behind`, `${home}/tool/other`, [0, N], "EROFS"],
    [`${home}/tool/x`, `${home}/tool/behind`, [X], "EROFS"],
    ["shared/lab", "shared/other", [0, N], "EROFS", 0],
    ["shared/lab/agent", "shared/lab/data/agent", [0, N], "EROFS"],
    [`${home}`, "home/77", [0, N], "EROFS", 0],
    [`${home}/agent`, `${home}/other`, [0, N], "EROFS"],
    [`${home}/agent/rev`, `${home}/agent/new`, [0, N], "EROFS"],
    [`${home}/dir`, `${home}/agent/new`, [0, N], "EROFS"],
    [`${home}/agent/rev/session`, `${home}/agent/rev/data/s`, [0, N], "EROFS"],
    [`${home}/dir`, `${home}/agent/rev/session`, [0], "EROFS"],
    ["bin/ctx", "bin/other", [0, N], "EROFS", 0],
    [`${home}/a`, "bin/ctx", [0, X], "EROFS", 0],
    ["tool/fs.read", `${home}/new`, [0, N], "EROFS", 0],
    [`${home}/a`, "tool/new", [0, N], "EROFS", 0],
    ["shared/cortexfs-docs", "shared/docs", [0, N], "EROFS", 0],
    ["agent/coder.sock", "agent/x", [0], "EPERM"],
    ["agent/coder.sock", "agent/x", [0], "EROFS", 0],
  ]
  for (const [from, to, flags, result, uid = OWNER] of rows) {
    t.same(
      await act(uid, calls(from, to, flags)),
      flags.map(() => result),
      `${from} -> ${to}`,
    )
    t.equal(hashTree(f.stack.dataRoot), before, `${from} -> ${to} changed nothing`)
  }
})

t.test("fuse.10 (rows outside of agent/) allowed renames do what they say in one step", async t => {
  const text = (rel: string) => readFileSync(f.behind(`${home}/${rel}`), "utf8")
  t.same(await act(OWNER, calls(`${home}/a`, `${home}/b`, [X])), ["ok"])
  t.same([text("a"), text("b")], ["b", "a"])
  t.same(await act(OWNER, calls(`${home}/dir`, `${home}/full`, [X])), ["ok"])
  t.ok(readdirSync(f.behind(`${home}/dir`)).includes("one"))
  t.same(await act(OWNER, calls(`${home}/a`, `${home}/b`, [0])), ["ok"])
  t.equal(text("b"), "b")
  t.same(await act(OWNER, calls(`${home}/b`, `${home}/agent/rev/data/moved`, [N])), ["ok"])
  t.equal(text("agent/rev/data/moved"), "b")
  const write = (rel: string): Call => ["write", f.at(`${home}/${rel}`), rel]
  t.same(
    await act(OWNER, [
      write("tool/.x.tmp-1-a-0"),
      ...calls(`${home}/tool/.x.tmp-1-a-0`, `${home}/tool/x`, [0]),
      write("p"),
      ...calls(`${home}/p`, `${home}/tool/p`, [N]),
      ...calls(`${home}/tool/p`, `${home}/p`, [0]),
      ...calls(`${home}/p`, `${home}/tool/x`, [X]),
    ]),
    Array(6).fill("ok"),
  )
  t.equal(text("tool/x"), "p")
  const alias = (name: string, model: string): Call => [
    "symlink",
    `/ctx/model/debug/${model}`,
    f.at(`${home}/model/${name}`),
  ]
  t.same(
    await act(OWNER, [
      alias(".main.tmp-1-a-0", "script"),
      ...calls(`${home}/model/.main.tmp-1-a-0`, `${home}/model/main`, [N]),
      ...calls(`${home}/model/fast`, `${home}/model/main`, [X]),
      ...calls(`${home}/model/fast`, `${home}/model/main`, [0]),
      ["readlink", f.at(`${home}/model/main`)],
    ]),
    ["ok", "ok", "ok", "ok", "/ctx/model/debug/script"],
  )
  const session = `${home}/agent/coder/session/s`
  t.same(
    await act(OWNER, [
      ["mkdir", f.at(`${session}/context`), 0o700],
      ["mkdir", f.at(`${session}/terminal`), 0o700],
      ["write", f.at(`${session}/context/a`), "a"],
      ["write", f.at(`${session}/terminal/b`), "b"],
      ...calls(`${session}/context/a`, `${session}/terminal/b`, [X]),
      ...calls(`${session}/context/a`, `${session}/context/c`, [N]),
      ...calls(`${session}/context/c`, `${home}/c`, [0]),
      ...calls(`${session}/terminal/b`, `${home}/tool/b`, [0]),
      ...calls(`${session}/context`, `${home}/context`, [0]),
    ]),
    ["ok", "ok", "ok", "ok", "ok", "ok", "ok", "EROFS", "EROFS"],
  )
  t.equal(text("c"), "b")
})
