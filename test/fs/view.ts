// needs: root fuse
// An agent's view: the vector of fuse.md 9 and what a change of its controls does to it.
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { act, act1, type Call } from "./fixture/actor.js"
import { type Fixture, makeBehind, makeFixture, makeSession, OWNER, writeBehind } from "./fixture/stack.js"

let f: Fixture
let view: string
const home = `home/${OWNER}`
const sleep = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))
const at = (rel: string) => join(view, rel)
const controls = () => join(f.generation, "agent/coder.d")
const list = (rel: string) => readdirSync(at(rel)).sort()

const POLICY = [
  "tool:fs.read execute",
  "tool:tsh execute",
  "tool:fs.write execute",
  "shared:lab read",
  "shared:pub write",
  "agent:rev start",
]
const formatPolicy = (rules: string[]) => rules.map(rule => `allow coder_t ${rule}\n`).join("")

/** A tool made by hand in a tool directory of the backing side. */
function makeTool(dir: string, name: string, policy: string, uid: number): void {
  writeBehind(join(dir, name), "#!/bin/true\n", uid, 0o755)
  makeBehind(join(dir, `${name}.d`), uid)
  writeBehind(join(dir, `${name}.d/description`), `Tool ${name}\n`, uid)
  writeBehind(join(dir, `${name}.d/cap`), "text\nread\n", uid)
  writeBehind(join(dir, `${name}.d/policy`), policy, uid)
}

t.before(async () => {
  f = await makeFixture()
  const tools = join(f.generation, "tool")
  makeTool(tools, "tsh", "allow coder_t tool:tsh execute\n", 0)
  makeTool(tools, "fs.write", "allow other_t tool:fs.write execute\n", 0)
  makeTool(tools, "shell.exec", "allow coder_t tool:shell.exec execute\n", 0)
  const rev = join(f.generation, "agent/rev.d")
  makeBehind(rev, OWNER)
  writeBehind(join(rev, "owner"), `${OWNER}\n`, OWNER)
  writeBehind(join(f.generation, "agent/rev"), "#!/bin/true\n", OWNER, 0o755)
  writeBehind(join(controls(), "policy"), formatPolicy(POLICY), OWNER)
  writeBehind(join(controls(), "path"), "/ctx/tool\n", OWNER)
  for (const dir of [`${home}/agent/rev`, `${home}/agent/coder/data`, `${home}/archived_sessions`, "home/12999"])
    makeBehind(f.behind(dir), OWNER, 0o700)
  writeBehind(f.behind(`${home}/notes.txt`), "n\n", OWNER)
  makeSession(f.behind(`${home}/agent/coder/session/default`), OWNER)
  makeBehind(f.behind(`${home}/agent/coder/session/default/context`), OWNER, 0o700)
  writeBehind(f.behind(`${home}/agent/coder/session/default/messages.jsonl`), '{"seq":1}\n', OWNER, 0o600)
  view = (await f.stack.startView("coder")).mountPoint
})
t.after(() => f.stack.stop())

t.test("fuse.36 every row of the view's vector gives its result", async t => {
  t.same(list("").sort(), ["agent", "bin", "home", "model", "shared", "status", "tool"])
  t.same(list("tool"), ["fs.read", "fs.read.d", "tsh", "tsh.d"])
  t.same(list("home"), [String(OWNER)])
  const asOwner = (...calls: Call[]) => act(OWNER, calls)
  t.same(await asOwner(["list", at(home)], ["list", at(`${home}/agent`)]), [["agent", "model", "tool"], ["coder"]])
  const absent = ["tool/fs.write", "tool/fs.write.d", "tool/shell.exec.d/policy", "home/12999", `${home}/notes.txt`]
  absent.push(
    `${home}/archived_sessions`,
    `${home}/agent/rev`,
    "shared/cortexfs-docs",
    "agent/worker",
    "agent/worker.d",
  )
  absent.push("agent/worker.sock", "home/12001x", "shared/other")
  t.same(
    await asOwner(...absent.map((path): Call => ["stat", at(path)])),
    absent.map(() => "ENOENT"),
  )
  t.same(list("shared"), ["lab", "pub"])
  t.same(list("agent"), ["coder", "coder.d", "coder.sock", "rev", "rev.d", "rev.sock"])
  t.same(
    await asOwner(
      ["write", at(`${home}/agent/coder/data/x`), "x"],
      ["write", at(`${home}/agent/coder/.bashrc`), "x"],
      ["write", at("shared/pub/data/x"), "x"],
      ["write", at("shared/lab/data/x"), "x"],
      ["write", at(`${home}/agent/coder/session/default/context/x`), "x"],
      ["symlink", "/ctx/model/debug/echo", at(`${home}/model/fast`)],
      ["write", at("agent/.coder.tmp-1-a-0"), "x"],
      ["open", at("agent/coder.d/cwd"), 1],
      ["read", at(`${home}/agent/coder/session/default/messages.jsonl`)],
      ["mkdir", at("home/12003")],
      ["mkdir", at("shared/lab/data/dir")],
      ["mkdir", at(`${home}/agent/other`)],
    ),
    ["ok", "ok", "ok", "EROFS", "EROFS", "EROFS", "EROFS", "EROFS", '{"seq":1}\n', "EACCES", "EROFS", "EROFS"],
  )
  t.equal(readFileSync(f.behind("shared/pub/data/x"), "utf8"), "x")
  t.equal(statSync(f.behind(`${home}/agent/coder/data/x`)).uid, OWNER)
  t.equal(await act1(0, "mkdir", at("home/12003")), "EROFS")
  t.equal(await act1(12_555, "stat", at("home/12555")), "ENOENT")
  t.notOk(readdirSync(f.behind("home")).includes("12555"), "a view makes no home")

  writeFileSync(join(controls(), "policy"), formatPolicy(POLICY.slice(1)))
  await sleep(1100)
  t.equal(await act1(OWNER, "stat", at("tool/fs.read")), "ENOENT")
  t.same(list("tool"), ["tsh", "tsh.d"])
  t.same(list("shared"), ["lab", "pub"])
  writeFileSync(join(controls(), "policy"), `${formatPolicy(POLICY)}deny x\n`)
  await sleep(1100)
  t.same([list("tool"), list("shared"), list("agent")], [[], [], ["coder", "coder.d", "coder.sock"]])
  t.same(await asOwner(["list", at(`${home}/agent`)]), [["coder"]])
  writeFileSync(join(controls(), "policy"), formatPolicy(POLICY))
  await sleep(1100)
  t.same(list("tool"), ["fs.read", "fs.read.d", "tsh", "tsh.d"])
})

t.test("fuse.50 (label and path) a malformed label or path shows no tool, space or other agent", async t => {
  for (const [name, text] of [
    ["label", "user_u:agent_r\n"],
    ["label", "user_u:agent_r:coder_t:s0"],
    ["path", "tool\n"],
    ["path", "/ctx/tool"],
  ] as const) {
    const file = join(controls(), name)
    const good = readFileSync(file)
    writeFileSync(file, text)
    await sleep(1100)
    t.same([list("tool"), list("shared"), list("agent")], [[], [], ["coder", "coder.d", "coder.sock"]], text)
    t.equal(await act1(OWNER, "read", at(`${home}/agent/coder/session/default/messages.jsonl`)), '{"seq":1}\n')
    writeFileSync(file, good)
  }
  await sleep(1100)
  t.same(list("shared"), ["lab", "pub"])
})

t.test("fuse.37 neither view of two agents of one owner shows the other's home or sessions", async t => {
  makeSession(f.behind(`${home}/agent/reviewer/session/default`), OWNER)
  const started = await f.stack.startView("reviewer")
  const other = started.mountPoint
  t.same(
    await act(OWNER, [
      ["list", join(other, home, "agent")],
      ["stat", join(other, home, "agent/coder")],
      ["stat", join(other, home, "agent/coder/session/default/messages.jsonl")],
      ["list", at(`${home}/agent`)],
      ["stat", at(`${home}/agent/reviewer/session/default/messages.jsonl`)],
    ]),
    [["reviewer"], "ENOENT", "ENOENT", ["coder"], "ENOENT"],
  )
  await started.stop()
})

t.test("a tool is shown in the directory its lookup hits, by both policies, and reads as metadata", async t => {
  const own = f.behind(`${home}/tool`)
  makeTool(own, "mine", "allow coder_t tool:mine execute\n", OWNER)
  makeTool(own, "tsh", "allow coder_t tool:tsh execute\n", OWNER)
  makeTool(own, "secret", "", OWNER)
  writeFileSync(join(controls(), "policy"), formatPolicy([...POLICY, "tool:mine execute", "tool:secret execute"]))
  writeFileSync(join(controls(), "path"), `/ctx/tool\n/ctx/${home}/tool\n`)
  await sleep(1100)
  const tool = at(`${home}/tool`)
  t.same(await act(OWNER, [["list", tool]]), [["mine", "mine.d"]])
  t.equal(
    await act1(OWNER, "read", `${tool}/mine`),
    "#!/usr/bin/cortexfs-object-runner\nid=mine\nname=mine\ndescription=Tool mine\ntype=tool\n" +
      `owned_by=${OWNER}\ncap=text,read\n`,
  )
  writeFileSync(join(controls(), "path"), `/ctx/${home}/tool\n/ctx/tool\n`)
  await sleep(1100)
  t.same(await act(OWNER, [["list", tool]]), [["mine", "mine.d", "tsh", "tsh.d"]])
  t.same(list("tool"), ["fs.read", "fs.read.d"])
})

t.test(
  "fuse.50 a view starts with a malformed label or path and shows its home alone, with a malformed owner not",
  async t => {
    const dir = join(f.generation, "agent/reviewer.d")
    writeBehind(join(dir, "policy"), "allow reviewer_t tool:fs.read execute\nallow reviewer_t shared:lab read\n", OWNER)
    for (const [name, text] of [
      ["label", "user_u:agent_r\n"],
      ["path", "tool\n"],
    ] as const) {
      const good = readFileSync(join(dir, name))
      writeFileSync(join(dir, name), text)
      const started = await f.stack.startView("reviewer")
      const root = started.mountPoint
      t.same([readdirSync(join(root, "tool")), readdirSync(join(root, "shared"))], [[], []], name)
      t.same(readdirSync(join(root, "agent")), ["reviewer", "reviewer.d", "reviewer.sock"])
      t.same(await act(OWNER, [["list", join(root, home, "agent")]]), [["reviewer"]])
      await started.stop()
      writeFileSync(join(dir, name), good)
    }
    const owner = join(dir, "owner")
    for (const text of ["no\n", "012001\n", String(OWNER), ""]) {
      writeFileSync(owner, text)
      await t.rejects(f.stack.startView("reviewer"), /ended with 69: cortexfs-mount: EINVAL: /, JSON.stringify(text))
    }
    writeFileSync(owner, `${OWNER}\n`)
  },
)
