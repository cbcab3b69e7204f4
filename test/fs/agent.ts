// needs: root fuse
// Definitions of agents, made and changed through the host view by real uids: fuse.md 6 and the rows of 5.4 and 5.5 below
// agent/. U is OWNER, V is OTHER.
import { createHash } from "node:crypto"
import {
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import t from "tap"
import { agentHomePath } from "../../src/abi/path.js"
import { runProgram } from "../harness/program.js"
import { act, act1, type Call, type Facts } from "./fixture/actor.js"
import { type Fixture, makeBehind, makeFixture, O, OTHER, OWNER, writeBehind } from "./fixture/stack.js"

const N = 1
const X = 2
let f: Fixture
const home = `home/${OWNER}`

t.before(async () => {
  f = await makeFixture()
})
t.after(() => f.stack.stop())

/** What a new agent is given, all that `ctx agent new` writes. */
const CONTROLS: Record<string, string> = {
  owner: `${OWNER}\n`,
  uid: `${OWNER}\n`,
  gid: `${OWNER}\n`,
  groups: "",
  label: "user_u:agent_r:rev_t:s0\n",
  iso: "shared\n",
  parent: "\n",
  life: "owned\n",
  root: `${agentHomePath(OWNER, "rev")}/root\n`,
  cwd: "/workspace\n",
  env: "",
  path: "/ctx/tool\n",
  mount: "",
  model: "debug/echo\n",
  abi: "sdk-envelope-v1\n",
  policy: "allow rev_t model:debug/echo use\n",
  status: "dead\n",
  pid: "\n",
  log: "",
  "meta.json": "{}\n",
}

const temp = (name: string) => `.${name}.tmp-9-f0-0`

/** The calls that make `rel` by a temporary beside it. */
function put(rel: string, text: string): Call[] {
  const slash = rel.lastIndexOf("/")
  const beside = f.at(`${rel.slice(0, slash)}/${temp(rel.slice(slash + 1))}`)
  return [
    ["write", beside, text, O.WRONLY | O.CREAT | O.EXCL, 0o600],
    ["rename", beside, f.at(rel)],
  ]
}

/** The calls of fuse.md 6.1 that make an agent, its executable last. */
function creation(agent: string): Call[] {
  const dir = `agent/${agent}.d`
  return [
    ["mkdir", f.at(dir)],
    ...Object.entries(CONTROLS).flatMap(([name, text]) => put(`${dir}/${name}`, text)),
    ...["hooks", "hooks/pre.d", "hooks/post.d"].map((name): Call => ["mkdir", f.at(`${dir}/${name}`)]),
    ...put(`${dir}/hooks/pre.d/first`, "#!/bin/true\n"),
    ["mkdir", f.at(`${home}/agent/${agent}`), 0o700],
    ...put(`agent/${agent}`, "#!/usr/bin/cortexfs-exec agent\n"),
  ]
}

async function makeAgent(agent: string): Promise<void> {
  const results = await act(OWNER, creation(agent))
  if (results.some(result => result !== "ok")) throw new Error(`agent ${agent}: ${results}`)
}

/** A hash of all names, modes, owners, texts and contents of the definitions on the backing side. */
function hashDefinitions(): string {
  const sum = createHash("sha256")
  const dir = join(f.generation, "agent")
  for (const name of readdirSync(dir, { recursive: true, encoding: "utf8" }).sort()) {
    const path = join(dir, name)
    const stat = lstatSync(path)
    const content = stat.isSymbolicLink() ? readlinkSync(path) : stat.isFile() ? readFileSync(path) : ""
    sum.update(`${name}\0${stat.mode}\0${stat.uid}\0`).update(content)
  }
  return sum.digest("hex")
}

t.test(
  "fuse.12 (but ctx inspect) an agent is there with the last call of its creation and no temporary is listed",
  async t => {
    const calls = creation("rev")
    const seen: Call[] = []
    for (const call of calls) seen.push(call, ["stat", f.at("agent/rev")], ["list", f.at("agent")])
    const results = await act(OWNER, seen)
    for (let i = 0; i < calls.length; i++) {
      const [result, stat, listing] = results.slice(3 * i) as [string, Facts | string, string[]]
      t.equal(result, "ok", String(calls[i]))
      if (i < calls.length - 1) t.equal(stat, "ENOENT")
      else t.same([(stat as Facts).mode, (stat as Facts).uid, (stat as Facts).gid], [0o755, OWNER, OWNER])
      t.same(
        listing.filter(name => name.startsWith(".")),
        [],
      )
      t.ok(
        listing.includes("rev.d") && listing.includes("rev.sock"),
        "the socket entry is there from the first call on",
      )
    }
    t.same(
      readdirSync(f.at("agent/rev.d")).sort(),
      [...Object.keys(CONTROLS), "hooks"].sort(),
      "the directory shows what was made and nothing else",
    )
    for (const [name, text] of Object.entries(CONTROLS)) {
      const path = `agent/rev.d/${name}`
      t.equal(readFileSync(f.at(path), "utf8"), text, name)
      const [shown, behind] = [lstatSync(f.at(path)), lstatSync(join(f.generation, path))]
      t.same([shown.mode & 0o7777, shown.uid], [0o644, OWNER], name)
      t.same([behind.mode & 0o7777, behind.uid], [0o644, OWNER], name)
    }
    t.equal(lstatSync(f.at("agent/rev.d/hooks/pre.d/first")).mode & 0o7777, 0o755)
    t.match(
      readFileSync(f.at("agent/rev"), "utf8"),
      /^#!\/usr\/bin\/cortexfs-object-runner\nid=rev\n.*\nlife=owned\n$/s,
    )
    const view = await f.stack.startView("rev")
    t.same(readdirSync(view.mountPoint).sort(), ["agent", "bin", "home", "model", "shared", "status", "tool"])
    const runtime = await f.stack.startRuntime("rev")
    const status = await f.stack.runCtx(["agent", "status", "rev"])
    t.equal(status.code, 0, status.stderr)
    await runtime.stop()
  },
)

t.test("a temporary is found by its maker alone and goes when he removes it", async t => {
  const path = f.at(`agent/rev.d/${temp("cwd")}`)
  t.equal(await act1(OWNER, "write", path, "/x\n"), "ok")
  t.equal(await act1(OTHER, "stat", path), "ENOENT")
  t.equal(await act1(0, "rename", path, f.at("agent/rev.d/cwd")), "ENOENT")
  t.equal(await act1(OTHER, "rename", path, f.at("agent/rev.d/cwd")), "ENOENT")
  t.same(
    await act(OWNER, [
      ["stat", path],
      ["read", path],
      ["chmod", path, 0o666],
      ["unlink", path],
      ["stat", path],
    ]).then(results => results.slice(1)),
    ["/x\n", "EROFS", "ok", "ENOENT"],
  )
})

t.test("fuse.13 another uid and uid 0 change nothing of an agent", async t => {
  const dir = "agent/rev.d"
  const calls: Call[] = [
    ["write", f.at(`${dir}/${temp("cwd")}`), "x"],
    ["mkdir", f.at(`${dir}/hooks/more`)],
    ["rename", f.at(`${dir}/cwd`), f.at(`${dir}/newname`)],
    ["unlink", f.at(`${dir}/cwd`)],
    ["open", f.at(`${dir}/cwd`), O.WRONLY],
    ["truncate", f.at(`${dir}/cwd`), 0],
  ]
  const before = hashDefinitions()
  for (const uid of [OTHER, 0]) {
    t.same(
      await act(uid, calls),
      calls.map(() => "EACCES"),
      String(uid),
    )
    t.equal(await act1(uid, "write", f.at(`agent/${temp("rev")}`), "x"), "EACCES", String(uid))
    t.equal(await act1(uid, "unlink", f.at("agent/rev")), uid === 0 ? "EACCES" : "EPERM", String(uid))
  }
  t.same(
    await act(0, [
      ["chmod", f.at(`${dir}/cwd`), 0o600],
      ["rmdir", f.at(dir)],
    ]),
    ["EACCES", "EACCES"],
  )
  t.equal(hashDefinitions(), before)
})

t.test("fuse.14 nothing but definitions can be begun in agent/", async t => {
  const long = "n".repeat(65)
  const rows: [Call, string][] = [
    [["write", f.at("agent/foo"), "x"], "EROFS"],
    [["mkdir", f.at("agent/foo")], "EROFS"],
    [["symlink", "/etc", f.at("agent/foo")], "EROFS"],
    [["mknod", f.at("agent/foo"), 0o010600], "EROFS"],
    [["mknod", f.at("agent/foo.sock"), 0o100600], "EROFS"],
    [["mkdir", f.at("agent/.x.d")], "EINVAL"],
    [["mkdir", f.at("agent/x.d.d")], "EINVAL"],
    [["mkdir", f.at(`agent/${long}.d`)], "EINVAL"],
    [["write", f.at("agent/rev.d/.nosuch.tmp-1-a-0"), "x"], "EROFS"],
    [["write", f.at("agent/rev.d/.cwd.tmp-x-a-0"), "x"], "EROFS"],
    [["write", f.at("agent/rev.d/.hooks.tmp-1-a-0"), "x"], "EROFS"],
    [["write", f.at("agent/rev.d/nosuch"), "x"], "EROFS"],
    [["write", f.at("agent/.none.tmp-1-a-0"), "x"], "EROFS"],
    [["mkdir", f.at("agent/rev.d/other")], "EROFS"],
    [["mkdir", f.at("agent/rev.d/hooks/other")], "EROFS"],
    [["symlink", "/etc", f.at("agent/rev.d/x")], "EROFS"],
    [["write", f.at("agent/rev.d/hooks/pre.d/direct"), "x"], "EROFS"],
    [["open", f.at("agent/rev"), O.WRONLY], "EROFS"],
    [["chmod", f.at("agent/rev.d/cwd"), 0o600], "EROFS"],
    [["unlink", f.at("agent/rev.d/cwd")], "EROFS"],
  ]
  const before = hashDefinitions()
  t.same(
    await act(
      OWNER,
      rows.map(([call]) => call),
    ),
    rows.map(([, result]) => result),
  )
  t.equal(hashDefinitions(), before)
})

t.test("fuse.15 owner and uid are published only with the caller's own uid as a canonical value", async t => {
  t.equal(await act1(OWNER, "mkdir", f.at("agent/own.d")), "ok")
  for (const name of ["owner", "uid"])
    for (const text of [`${OTHER}\n`, "0\n", `0${OWNER}\n`, String(OWNER), `${OWNER}\n\n`, ""]) {
      const [, renamed] = await act(OWNER, [
        ...put(`agent/own.d/${name}`, text),
        ["unlink", f.at(`agent/own.d/${temp(name)}`)],
      ])
      t.equal(renamed, "EACCES", `${name} ${JSON.stringify(text)}`)
      t.equal(await act1(OWNER, "stat", f.at(`agent/own.d/${name}`)), "ENOENT")
    }
  t.same(
    await act(OWNER, [...put("agent/own.d/owner", `${OWNER}\n`), ...put("agent/own.d/uid", `${OWNER}\n`)]),
    Array(4).fill("ok"),
  )
  // A handle that was open before the publication cannot change what was published.
  t.same(
    await act(OWNER, [
      ["handle", "t", f.at(`agent/own.d/${temp("owner")}`), O.RDWR | O.CREAT],
      ["hwrite", "t", `${OWNER}\n`],
      ["rename", f.at(`agent/own.d/${temp("owner")}`), f.at("agent/own.d/owner")],
      ["htruncate", "t", 0],
      ["hwrite", "t", "0\n"],
      ["hsync", "t"],
      ["read", f.at("agent/own.d/owner")],
      ["handle", "o", f.at("agent/own.d/owner"), O.WRONLY | O.TRUNC],
      ["hwrite", "o", "0\n"],
      ["hclose", "o"],
      ["truncate", f.at("agent/own.d/owner"), 0],
      ["read", f.at("agent/own.d/owner")],
    ]),
    ["ok", "ok", "ok", "ok", "ok", "ok", `${OWNER}\n`, "ok", "ok", "EACCES", "EACCES", `${OWNER}\n`],
  )
})

t.test(
  "an executable is published only where owner says whose it is, and an unpublished definition can be taken back",
  async t => {
    t.same(
      await act(OWNER, [
        ["mkdir", f.at("agent/half.d")],
        ...put("agent/half", "#!/bin/true\n"),
        ...put("agent/half.d/cwd", "/x\n"),
        ["mkdir", f.at("agent/half.d/hooks")],
        ["write", f.at(`agent/half.d/${temp("path")}`), "left\n"],
        ["rmdir", f.at("agent/half.d")],
        ["unlink", f.at("agent/half.d/cwd")],
        ["rmdir", f.at("agent/half.d/hooks")],
        ["rmdir", f.at("agent/half.d")],
        ["stat", f.at("agent/half.d")],
        ["lstat", f.at("agent/half.sock")],
        ["unlink", f.at(`agent/${temp("half")}`)],
      ]),
      ["ok", "ok", "EINVAL", "ok", "ok", "ok", "ok", "ENOTEMPTY", "ok", "ok", "ok", "ENOENT", "ENOENT", "ok"],
    )
  },
)

t.test("who makes the directory first has the agent, whatever others try meanwhile", async t => {
  for (let i = 0; i < 6; i++) {
    const dir = `agent/race${i}.d`
    const begin = (uid: number): Call[] => [
      ["mkdir", f.at(dir)],
      ["write", f.at(`${dir}/${temp("owner")}`), `${uid}\n`],
      ["rename", f.at(`${dir}/${temp("owner")}`), f.at(`${dir}/owner`)],
      ["read", f.at(`${dir}/owner`)],
    ]
    const results = await Promise.all([OWNER, OTHER].map(uid => act(uid, begin(uid))))
    const winner = results[0]![0] === "ok" ? 0 : 1
    const uid = [OWNER, OTHER][winner]
    t.same(results[winner], ["ok", "ok", "ok", `${uid}\n`])
    const lost = results[1 - winner]!
    t.same([lost[0], lost[1]], ["EEXIST", "EACCES"])
    t.equal(readFileSync(f.at(`${dir}/owner`), "utf8"), `${uid}\n`)
    t.equal(lstatSync(f.at(dir)).uid, uid)
  }
})

t.test(
  "fuse.10 with the rows in agent/ every row of the rename matrix gives its result, a refused one changes nothing",
  async t => {
    await makeAgent("other")
    const dir = "agent/rev.d"
    const cwd = `${dir}/${temp("cwd")}`
    const exec = `agent/${temp("rev")}`
    symlinkSync("/etc/passwd", join(f.generation, `${dir}/window`))
    t.same(
      await act(OWNER, [
        ["write", f.at(cwd), "/new\n"],
        ["write", f.at(exec), "new\n"],
        ["write", f.at(`${dir}/${temp("window")}`), "auto\n"],
        ["write", f.at(`${home}/plain`), "p"],
      ]),
      Array(4).fill("ok"),
    )
    const before = hashDefinitions()
    const rows: [from: string, to: string, flags: number[], result: string | string[], uid?: number][] = [
      [cwd, `${dir}/cwd`, [N], "EEXIST"],
      [cwd, `${dir}/policy`, [0, N], ["EROFS", "EEXIST"]],
      [cwd, `${dir}/nosuch`, [0, N], "EROFS"],
      [cwd, `${dir}/cwd.bak`, [0, N], "EROFS"],
      [cwd, `${dir}/window`, [0, N], "ELOOP"],
      [`${dir}/${temp("window")}`, `${dir}/window`, [0, N], "ELOOP"],
      [cwd, "agent/other.d/cwd", [0, N], ["EXDEV", "EEXIST"]],
      [cwd, "agent/other.d/window", [0, N], "EXDEV"],
      [cwd, "agent/cwd", [0, N], "EXDEV"],
      [`${home}/plain`, `${dir}/cwd`, [0, N], ["EXDEV", "EEXIST"]],
      [`${home}/plain`, `${dir}/approval`, [0, N], "EXDEV"],
      [`${dir}/cwd`, `${home}/cwd`, [0, N], "EXDEV"],
      [`${dir}/cwd`, `${dir}/path`, [0, N], ["EROFS", "EEXIST"]],
      [`${dir}/cwd`, `${dir}/approval`, [0, N], "EROFS"],
      [exec, "agent/oth", [0, N], "EROFS"],
      [exec, "agent/rev.d", [0, N], ["EISDIR", "EEXIST"]],
      [exec, "agent/rev.sock", [0], "EPERM"],
      ["agent/rev.sock", "agent/x", [0], "EPERM"],
      ["agent/rev.sock", "agent/x", [0], "EROFS", 0],
      ["agent/rev.d", "agent/new.d", [0, N], "EROFS"],
      ["agent/rev", "agent/x", [0, N], "EROFS"],
      ["agent/rev", `${home}/x`, [0, N], "EXDEV"],
      [cwd, `${dir}/path`, [X], "EINVAL"],
      [`${dir}/cwd`, `${dir}/path`, [X], "EINVAL"],
      [exec, "agent/rev", [X], "EINVAL"],
      [`${home}/plain`, `${dir}/cwd`, [X], "EINVAL"],
      [`${dir}/cwd`, `${dir}/none`, [X], "ENOENT"],
      [`${dir}/cwd`, `${dir}/path`, [0], "EACCES", OTHER],
      [`${dir}/cwd`, `${dir}/none`, [N], "EACCES", OTHER],
      ["agent/rev", "agent/x", [0, N], "EPERM", OTHER],
      [`${dir}/cwd`, `${dir}/path`, [0], "EACCES", 0],
      [`${dir}/cwd`, `${dir}/none`, [N], "EACCES", 0],
      ["agent/rev", "agent/x", [0, N], "EACCES", 0],
      [cwd, `${dir}/cwd`, [0], "ENOENT", OTHER],
      [cwd, `${dir}/cwd`, [0], "ENOENT", 0],
      [exec, "agent/rev", [0], "ENOENT", OTHER],
      [exec, "agent/rev", [0], "ENOENT", 0],
      ["bin/ctx", `${dir}/cwd`, [0], "EROFS", 0],
      ["agent", "agent2", [0, N], "EROFS", 0],
    ]
    for (const [from, to, flags, result, uid = OWNER] of rows) {
      const calls = flags.map((flag): Call => ["rename", f.at(from), f.at(to), flag])
      t.same(
        await act(uid, calls),
        typeof result === "string" ? flags.map(() => result) : result,
        `${from} -> ${to} by ${uid}`,
      )
      t.equal(hashDefinitions(), before, `${from} -> ${to} by ${uid} changed nothing`)
    }
    rmSync(join(f.generation, `${dir}/window`))
    t.same(
      await act(OWNER, [
        ["rename", f.at(cwd), f.at(`${dir}/cwd`), 0],
        ["read", f.at(`${dir}/cwd`)],
        ["rename", f.at(exec), f.at("agent/rev"), 0],
        ["rename", f.at(`${dir}/${temp("window")}`), f.at(`${dir}/window`), N],
        ["read", f.at(`${dir}/window`)],
      ]),
      ["ok", "/new\n", "ok", "ok", "auto\n"],
    )
    t.equal(readFileSync(join(f.generation, "agent/rev"), "utf8"), "new\n")
    const first = `agent/${temp("first")}`
    t.same(
      await act(OWNER, [
        ["mkdir", f.at("agent/first.d")],
        ...put("agent/first.d/owner", `${OWNER}\n`),
        ["write", f.at(first), "first\n"],
        ["rename", f.at(first), f.at("agent/first"), N],
        ["write", f.at(first), "again\n"],
        ["rename", f.at(first), f.at("agent/first"), N],
        ["unlink", f.at(first)],
      ]),
      ["ok", "ok", "ok", "ok", "ok", "ok", "EEXIST", "ok"],
    )
  },
)

t.test("fuse.16 (agent) a control is written in place whole, up to 65536 bytes, and log only grows", async t => {
  const cwd = f.at("agent/rev.d/cwd")
  const full = "x".repeat(65536)
  t.same(
    await act(OWNER, [
      ["write", cwd, "/x\n", O.WRONLY | O.TRUNC],
      ["read", cwd],
      ["append", cwd, "/y\n"],
      ["read", cwd],
      ["truncate", cwd, 3],
      ["read", cwd],
      ["write", cwd, full, O.WRONLY | O.TRUNC],
      ["append", cwd, "x"],
      ["write", cwd, `${full}x`, O.WRONLY | O.TRUNC],
      ["truncate", cwd, 65537],
      ["write", cwd, "/x\n", O.WRONLY | O.TRUNC],
      ["write", f.at(`agent/rev.d/${temp("path")}`), `${full}x`],
    ]),
    ["ok", "/x\n", "ok", "/x\n/y\n", "ok", "/x\n", "ok", "EFBIG", "EFBIG", "EFBIG", "ok", "EFBIG"],
  )
  t.same(
    await act(OWNER, [
      ["handle", "a", cwd, O.RDWR],
      ["hwrite", "a", "/zz"],
      ["read", cwd],
      ["hpread", "a", 10, 0],
      ["htruncate", "a", 2],
      ["fstat", "a"],
      ["hsync", "a"],
      ["read", cwd],
      ["hclose", "a"],
    ]).then(results => results.map(one => (typeof one === "object" ? "facts" : one))),
    ["ok", "ok", "/x\n", "/zz", "ok", "facts", "ok", "/z", "ok"],
  )
  const log = f.at("agent/rev.d/log")
  t.same(
    await act(OWNER, [
      ["append", log, `${full}\n`],
      ["append", log, "more\n"],
      ["write", log, "x", O.WRONLY],
      ["write", log, "x", O.WRONLY | O.APPEND | O.TRUNC],
      ["truncate", log, 0],
      ["handle", "l", log, O.WRONLY | O.APPEND],
      ["htruncate", "l", 0],
      ["hclose", "l"],
      ["fallocate", log, 3, 0, 10],
    ]),
    ["ok", "ok", "EROFS", "EROFS", "EROFS", "ok", "EROFS", "ok", "EROFS"],
  )
  t.equal(readFileSync(log).length, 65536 + 1 + 5)
})

t.test("fuse.16 (tools) uid 0 writes the operator controls of a system tool and nothing else of it", async t => {
  const dir = "tool/fs.read.d"
  makeBehind(join(f.generation, "tool/tsh.d"), 0)
  await new Promise(resolve => setTimeout(resolve, 1100))
  const before = readFileSync(f.at(`${dir}/policy`), "utf8")
  const line = "allow x_t tool:fs.read execute\n"
  t.same(
    await act(0, [
      ["append", f.at(`${dir}/policy`), line],
      ...put(`${dir}/timeout`, "5\n"),
      ...put(`${dir}/cache`, "60\n"),
      ["read", f.at(`${dir}/timeout`)],
      ["write", f.at(`${dir}/timeout`), "6\n", O.WRONLY | O.TRUNC],
      ["read", f.at(`${dir}/timeout`)],
      ["unlink", f.at(`${dir}/timeout`)],
      ["unlink", f.at(`${dir}/cache`)],
      ["unlink", f.at(`${dir}/policy`)],
      ["write", f.at(`${dir}/schema`), "x", O.WRONLY],
      ["write", f.at(`${dir}/.schema.tmp-1-a-0`), "x"],
      ["write", f.at(`${dir}/.config.tmp-1-a-0`), "x"],
      ["write", f.at(`${dir}/timeout`), "x"],
      ["rename", f.at(`${dir}/policy`), f.at(`${dir}/timeout`)],
      ...put("tool/tsh.d/config", "prompt=x\n"),
      ["read", f.at("tool/tsh.d/config")],
    ]),
    [
      ...["ok", "ok", "ok", "ok", "ok", "5\n", "ok", "6\n", "ok", "ok", "EROFS", "EROFS", "EROFS", "EROFS", "EROFS"],
      ...["EROFS", "ok", "ok", "prompt=x\n"],
    ],
  )
  t.equal(readFileSync(f.at(`${dir}/policy`), "utf8"), before + line)
  const facts = lstatSync(f.at("tool/tsh.d/config"))
  t.same([facts.mode & 0o7777, facts.uid, facts.gid], [0o644, 0, 0])
  t.equal(await act1(OWNER, "append", f.at(`${dir}/policy`), "x"), "EACCES")
  t.equal(await act1(OWNER, "write", f.at(`${dir}/${temp("policy")}`), "x"), "EACCES")
  const view = await f.stack.startView("coder")
  t.same(await act(0, [["append", join(view.mountPoint, "agent/coder.d/cwd"), "x"]]), ["EROFS"])
  writeFileSync(join(f.generation, "agent/coder.d/policy"), "allow coder_t tool:fs.read execute\n")
  writeFileSync(join(f.generation, `${dir}/policy`), "allow coder_t tool:fs.read execute\n")
  await new Promise(resolve => setTimeout(resolve, 1100))
  const seen = join(view.mountPoint, dir)
  t.same(
    await act(0, [
      ["append", `${seen}/policy`, "x"],
      ["write", `${seen}/${temp("policy")}`, "x"],
    ]),
    ["EROFS", "EROFS"],
  )
})

/** Runs bash as U while several readers read `path` in a loop; gives the distinct contents that they saw. */
async function readWhile(path: string, script: string): Promise<Set<string>> {
  const reader = `import sys,os,json
seen=set()
while not os.path.exists(sys.argv[2]):
    with open(sys.argv[1],"rb") as f: seen.add(f.read().decode())
print(json.dumps(sorted(seen)))`
  const flag = join(f.stack.dir, `stop-${Math.random()}`)
  const readers = [0, 1, 2].map(() =>
    runProgram(["/usr/bin/python3", "-c", reader, path, flag], { uid: OTHER, timeoutMs: 60_000 }),
  )
  const ended = await runProgram(["/bin/bash", "-c", script], { uid: OWNER, timeoutMs: 60_000 })
  writeFileSync(flag, "")
  const seen = new Set((await Promise.all(readers)).flatMap(one => JSON.parse(one.stdout) as string[]))
  if (ended.code !== 0) throw new Error(ended.stderr)
  return seen
}

t.test("fuse.46 a shell's redirections publish whole contents", async t => {
  const cwd = f.at("agent/rev.d/cwd")
  await act(OWNER, [["write", cwd, "/x\n", O.WRONLY | O.TRUNC]])
  const seen = await readWhile(cwd, `for i in $(seq 100); do echo /x > "${cwd}"; done`)
  t.same([...seen], ["/x\n"], "never an empty file")
  const script = `: > ${f.at("agent/rev.d/env")}; (echo a; /bin/echo b; echo c) > ${f.at("agent/rev.d/prompt.template.md")}`
  await act(OWNER, [
    ...put("agent/rev.d/env", "A=b\n"),
    ...put("agent/rev.d/prompt.template.md", "old\n"),
    ...put("agent/rev.d/tools", "x\n"),
    ...put("agent/rev.d/system.md", "old\n"),
  ])
  const ended = await runProgram(
    [
      "/bin/bash",
      "-c",
      `${script}; : > ${f.at("agent/rev.d/tools")}; (echo a; /bin/echo b; echo c) > ${f.at("agent/rev.d/system.md")}`,
    ],
    { uid: OWNER },
  )
  t.equal(ended.code, 0, ended.stderr)
  t.equal(lstatSync(f.at("agent/rev.d/tools")).size, 0)
  t.equal(readFileSync(f.at("agent/rev.d/system.md"), "utf8"), "a\nb\nc\n")
  t.equal(readFileSync(f.at("agent/rev.d/prompt.template.md"), "utf8"), "a\nb\nc\n")
})

t.test("root.12 atomic replacements are seen whole", async t => {
  const cwd = f.at("agent/rev.d/cwd")
  const contents = ["a", "b"].map(letter => `/${letter.repeat(60 * 1024)}\n`)
  t.same(await act(OWNER, [["write", cwd, contents[0], O.WRONLY | O.TRUNC]]), ["ok"])
  const script = `import sys,os
d,n=sys.argv[1],int(sys.argv[2])
for i in range(n):
    p="%s/.cwd.tmp-%d-a-%d"%(d,os.getpid(),i%1000)
    with open(p,"w") as f: f.write("/"+"ab"[i%2]*61440+"\\n")
    os.rename(p,d+"/cwd")`
  writeFileSync(join(f.stack.dir, "replace.py"), script)
  const seen = await readWhile(cwd, `python3 ${join(f.stack.dir, "replace.py")} ${f.at("agent/rev.d")} 1000`)
  t.ok(
    [...seen].every(one => contents.includes(one)),
    "one of the two complete contents",
  )
  t.ok(seen.size > 0)
})

t.test(
  "fuse.17 a socket entry cannot be forged from the backing side either, and its text needs no listener",
  async t => {
    const text = join(f.stack.run, "agent/rev.sock")
    t.equal(readlinkSync(f.at("agent/rev.sock")), text)
    symlinkSync("/etc/passwd", join(f.generation, "agent/rev.sock"))
    await new Promise(resolve => setTimeout(resolve, 1100))
    t.equal(readlinkSync(f.at("agent/rev.sock")), text, "a stored link of that name is not shown")
    symlinkSync("/etc/passwd", join(f.generation, "agent/nobody.sock"))
    t.equal(await act1(OWNER, "lstat", f.at("agent/nobody.sock")), "ENOENT")
    const runtime = await f.stack.startRuntime("rev")
    t.equal(readlinkSync(f.at("agent/rev.sock")), text)
    await runtime.stop()
    for (const name of ["rev.sock", "nobody.sock"]) rmSync(join(f.generation, "agent", name))
  },
)

t.test(
  "fuse.19 (but the kill) a live agent is not removed, a dead one goes with its controls and leaves its history",
  async t => {
    const session = f.behind(`${home}/agent/rev/session`)
    mkdirSync(session, { recursive: true })
    makeBehind(session, OWNER, 0o700)
    writeBehind(join(session, "messages.jsonl"), '{"seq":1}\n', OWNER, 0o600)
    const set = (name: string, text: string) => writeFileSync(join(f.generation, `agent/rev.d/${name}`), text)
    const remove = () => act1(OWNER, "unlink", f.at("agent/rev"))
    set("pid", `${process.pid}\n`)
    t.equal(await remove(), "EBUSY")
    set("pid", "\n")
    for (const status of ["start", "stopping"]) {
      set("status", `${status}\n`)
      t.equal(await remove(), "EBUSY", status)
    }
    set("status", "idle\n")
    set("pid", "4194303\n")
    t.equal(await remove(), "ok")
    t.same(
      readdirSync(f.at("agent")).filter(name => name.startsWith("rev.") || name === "rev"),
      [],
    )
    t.same(
      readdirSync(join(f.generation, "agent")).filter(name => /^(rev\.|rev$|\.)/.test(name)),
      [],
    )
    t.equal(readFileSync(join(session, "messages.jsonl"), "utf8"), '{"seq":1}\n')
    await makeAgent("rev2")
    t.equal(await act1(OTHER, "unlink", f.at("agent/rev2")), "EPERM")
    t.equal(await act1(OTHER, "mkdir", f.at("agent/rev.d")), "ok", "the name is free for everyone")
  },
)
