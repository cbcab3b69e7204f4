// needs: root fuse
// What the root of the host view holds and gives: names, status, models, modes, homes, spaces.
import { createHash } from "node:crypto"
import { readdirSync, readFileSync, rmSync, statSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { cleanEnv, runProgram } from "../harness/program.js"
import { act, act1, type Call, type Facts } from "./fixture/actor.js"
import { type Fixture, makeBehind, makeFixture, O, OTHER, OWNER, writeBehind } from "./fixture/stack.js"

const SEVEN = ["status", "bin", "model", "agent", "tool", "home", "shared"]
const FORBIDDEN = (
  "provider format db vector memory mcp skill cluster chan channel job hook workflow audit control space spawn factory " +
  "agent-template AGENTS.rc history context swap task zzz"
).split(" ")
const TEN = ["cap", "default", "driver", "effort", "fallback", "id", "limit", "log", "session", "status"]

let f: Fixture

t.before(async () => {
  f = await makeFixture()
})
t.after(() => f.stack.stop())

/** Names of a directory in the order of getdents64, with `.` and `..`. */
async function listRaw(path: string): Promise<string[]> {
  const { stdout } = await runProgram(["/bin/ls", "-f", "-1", "--", path])
  return stdout.split("\n").filter(Boolean)
}

t.test("root.1 the root lists the seven entries in order in the host view and in an agent view", async t => {
  const view = await f.stack.startView("coder")
  for (const path of [f.stack.ctx, view.mountPoint])
    t.same(
      (await listRaw(path)).filter(name => name !== "." && name !== ".."),
      SEVEN,
    )
  t.same((await listRaw(f.stack.ctx)).slice(0, 2), [".", ".."])
  t.equal(await view.stop(), 0)
})

t.test("root.2 no other root entry exists or can be made", async t => {
  makeBehind(f.behind("shared/lab/data"), 0, 0o777)
  writeBehind(f.behind("shared/lab/data/f"), "x", OWNER, 0o666)
  const callsOf = (name: string): Call[] => [
    ["stat", f.at(name)],
    ["mkdir", f.at(name)],
    ["open", f.at(name), O.WRONLY | O.CREAT],
    ["symlink", "x", f.at(name)],
    ["mknod", f.at(name), 0o100644],
    ["rename", f.at("shared/lab/data/f"), f.at(name)],
  ]
  const asRoot = await act(0, FORBIDDEN.flatMap(callsOf))
  const asOwner = await act(
    OWNER,
    FORBIDDEN.map((name): Call => ["mkdir", f.at(name)]),
  )
  FORBIDDEN.forEach((name, i) => {
    t.same(asRoot.slice(i * 6, i * 6 + 6), ["ENOENT", "EROFS", "EROFS", "EROFS", "EROFS", "EROFS"], name)
    t.equal(asOwner[i], "EACCES", name)
  })
  t.equal(readFileSync(f.behind("shared/lab/data/f"), "utf8"), "x")
})

const STATUS_KEYS = [
  "state",
  "generation",
  "tree_version",
  "abi",
  "version",
  "pid",
  "started_at",
  "uptime_s",
  "requests",
  "passthrough",
]

function parseStatus(text: string): Map<string, string> {
  const lines = text.slice(0, -1).split("\n")
  return new Map(lines.map(line => [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)]))
}

t.test("root.5 status has its keys in order and agrees with the handle's size", async t => {
  const text = readFileSync(f.at("status"), "utf8")
  const status = parseStatus(text)
  t.same([...status.keys()], STATUS_KEYS)
  t.match(text, /[^\n]\n$/)
  for (const line of text.slice(0, -1).split("\n")) t.match(line, /^[a-z_]+=[^\n]+$/)
  t.equal(status.get("state"), "mounted")
  t.equal(status.get("generation"), f.generation.slice(f.generation.lastIndexOf("/") + 1))
  t.equal(status.get("tree_version"), "1")
  t.equal(status.get("abi"), "1")
  t.equal(status.get("pid"), String(f.host.child.pid))
  t.match(status.get("started_at"), /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
  t.match(status.get("uptime_s"), /^(0|[1-9]\d*)$/)
  statSync(f.at("bin"))
  const later = parseStatus(readFileSync(f.at("status"), "utf8"))
  t.ok(Number(later.get("requests")) > Number(status.get("requests")), "requests grow")
  const [, facts, body] = (await act(OWNER, [
    ["handle", "s", f.at("status"), O.RDONLY],
    ["fstat", "s"],
    ["hread", "s", 65536],
  ])) as [string, Facts, string]
  t.equal(facts.size, body.length)

  const view = await f.stack.startView("coder")
  const viewed = parseStatus(readFileSync(join(view.mountPoint, "status"), "utf8"))
  t.same([...viewed.keys()], ["state", "agent", ...STATUS_KEYS.slice(1)])
  t.equal(viewed.get("agent"), "coder")
  await view.stop()
})

t.test(
  "root.6 (what this release ships) bin lists its programs and gives the generation's state byte for byte",
  async t => {
    const names = readdirSync(join(f.generation, "bin")).sort()
    t.same(readdirSync(f.at("bin")), names)
    t.ok(names.includes("ctx") && names.includes("cortexfs.bootstrap.json"))
    const state = "bin/cortexfs.bootstrap.json"
    t.ok(readFileSync(f.at(state)).equals(readFileSync(join(f.generation, state))))
  },
)

t.test("root.7 the six aliases are symlinks to existing models and nothing else", async t => {
  for (const alias of ["main", "helper", "fast", "reason", "code", "vision"]) {
    const [facts, target, controls] = (await act(OWNER, [
      ["lstat", f.at(`model/${alias}`)],
      ["readlink", f.at(`model/${alias}`)],
      ["lstat", f.at(`model/${alias}.d`)],
    ])) as [Facts, string, string]
    t.equal(facts.type, "link")
    t.match(target, /^\/ctx\/model\/[^/]+\/[^/]+$/)
    t.equal(((await act1(OWNER, "stat", f.at(target.slice("/ctx/".length)))) as Facts).type, "file")
    t.equal(controls, "ENOENT")
  }
})

t.test("root.8 an absent route reads as direct", async t => {
  t.equal(readFileSync(f.at("model/route"), "utf8"), "fallback: direct\n")
  t.equal(statSync(f.at("model/route")).size, 17)
})

t.test("root.9 every model has exactly ten control files, and a socket iff its session says so", async t => {
  let sockets = 0
  for (const provider of readdirSync(f.at("model"), { withFileTypes: true }).filter(entry => entry.isDirectory())) {
    const names = readdirSync(f.at(`model/${provider.name}`))
    for (const controls of names.filter(name => name.endsWith(".d"))) {
      const path = `model/${provider.name}/${controls}`
      t.same(readdirSync(f.at(path)), TEN, path)
      const isSocket = readFileSync(f.at(`${path}/session`), "utf8") === "socket\n"
      if (isSocket) sockets++
      t.equal(names.includes(`${controls.slice(0, -2)}.sock`), isSocket, path)
    }
    t.ok(names.some(name => name.endsWith(".d")))
  }
  t.equal(sockets, 1, "debug/echo has one")
})

const CONTROLS =
  "owner uid gid groups label iso parent life root cwd env path mount model abi policy status pid log meta.json".split(
    " ",
  )

t.test("root.10 coder.d lists only known controls, its hooks are empty, and abi reads sdk-envelope-v1", async t => {
  writeBehind(join(f.generation, "agent/coder.d/junk"), "x\n", OWNER)
  writeBehind(join(f.generation, "agent/coder.d/.cwd.tmp-1-a-0"), "x\n", OWNER)
  const names = readdirSync(f.at("agent/coder.d"))
  for (const name of [...CONTROLS, "hooks"]) t.ok(names.includes(name), name)
  const known = [...CONTROLS, "tools", "approval", "window", "system.md", "prompt.template.md", "hooks"]
  t.same(
    names.filter(name => !known.includes(name)),
    [],
  )
  t.equal(await act1(OWNER, "stat", f.at("agent/coder.d/junk")), "ENOENT")
  for (const uid of [OTHER, 0]) t.equal(await act1(uid, "stat", f.at("agent/coder.d/.cwd.tmp-1-a-0")), "ENOENT")
  rmSync(join(f.generation, "agent/coder.d/junk"))
  rmSync(join(f.generation, "agent/coder.d/.cwd.tmp-1-a-0"))
  t.same(readdirSync(f.at("agent/coder.d/hooks")).sort(), ["post.d", "pre.d"])
  for (const dir of ["pre.d", "post.d"]) t.same(readdirSync(f.at(`agent/coder.d/hooks/${dir}`)), [])
  t.equal(readFileSync(f.at("agent/coder.d/abi"), "utf8"), "sdk-envelope-v1\n")
})

t.test("root.13 every node that bootstrap makes has the mode and owner of its row", async t => {
  t.equal(statSync(join(f.generation, "agent")).mode & 0o7777, 0o755)
  const rows: [path: string, mode: number, uid: number, gid?: number][] = [
    ["", 0o755, 0],
    ["bin", 0o755, 0],
    ["model", 0o755, 0],
    ["tool", 0o755, 0],
    ["home", 0o755, 0],
    ["shared", 0o755, 0],
    ["agent", 0o1777, 0],
    ["model/debug", 0o755, 0],
    ["model/debug/echo.d", 0o755, 0],
    ["tool/fs.read.d", 0o755, 0],
    ["status", 0o444, 0],
    ["model/route", 0o444, 0],
    ["bin/cortexfs.bootstrap.json", 0o444, 0],
    ["bin/ctx", 0o555, 0],
    ["model/debug/echo", 0o555, 0],
    ["tool/fs.read", 0o555, 0],
    ["tool/fs.read.d/policy", 0o644, 0],
    ["agent/coder", 0o755, OWNER],
    ["agent/coder.d", 0o755, OWNER],
    ["agent/coder.d/hooks", 0o755, OWNER],
    ["agent/coder.d/hooks/pre.d", 0o755, OWNER],
    ["agent/coder.d/hooks/post.d", 0o755, OWNER],
    ["model/main", 0o777, 0],
    ["model/debug/echo.sock", 0o777, 0],
    ["agent/coder.sock", 0o777, 0],
    [`home/${OWNER}`, 0o700, OWNER],
    ...TEN.map((name): [string, number, number] => [`model/debug/echo.d/${name}`, 0o444, 0]),
    ...["name", "description", "schema", "cap", "status", "log"].map((name): [string, number, number] => [
      `tool/fs.read.d/${name}`,
      0o444,
      0,
    ]),
    ...CONTROLS.map((name): [string, number, number] => [`agent/coder.d/${name}`, 0o644, OWNER]),
  ]
  const gid = Number(readFileSync(f.at("agent/coder.d/gid"), "utf8"))
  const found = (await act(
    0,
    rows.map(([path]) => ["lstat", f.at(path)]),
  )) as Facts[]
  rows.forEach(([path, mode, uid], i) => {
    t.same([found[i]?.mode, found[i]?.uid, found[i]?.gid], [mode, uid, uid === 0 ? 0 : gid], path)
  })
})

t.test("root.14 a home is made whole by its own user's lookup and by nobody else's", async t => {
  const uid = 12_777
  const path = f.at(`home/${uid}`)
  t.equal(await act1(OTHER, "stat", path), "ENOENT")
  t.equal(await act1(0, "stat", path), "ENOENT")
  const [home, names] = (await act(uid, [
    ["stat", path],
    ["list", path],
  ])) as [Facts, string[]]
  t.same([home.type, home.mode, home.uid, home.gid], ["dir", 0o700, uid, uid])
  t.same([...names].sort(), ["agent", "model", "tool"])
  for (const name of ["agent", "model", "tool"]) {
    const behind = statSync(f.behind(`home/${uid}/${name}`))
    t.same([behind.mode & 0o7777, behind.uid, behind.gid], [0o700, uid, uid])
  }
  t.same(
    readdirSync(f.behind("home")).filter(name => name.startsWith(".")),
    [],
    "nothing is left beside it",
  )
  t.equal(((await act1(OTHER, "stat", path)) as Facts).type, "dir")
  t.equal(await act1(OTHER, "list", path), "EACCES")
  for (const name of ["01000", "x", "4294967295", `0${uid}`])
    t.equal(await act1(uid, "stat", f.at(`home/${name}`)), "ENOENT")
})

t.test("root.14 a leftover of a killed mount is taken up and a home belongs to the caller's gid", async t => {
  const uid = 12_778
  makeBehind(f.behind(`home/.new-${uid}`), 0, 0o700)
  makeBehind(f.behind(`home/.new-${uid}/agent`), 0, 0o700)
  const home = (await act1({ uid, gid: 12_790 }, "stat", f.at(`home/${uid}`))) as Facts
  t.same([home.uid, home.gid, home.mode], [uid, 12_790, 0o700])
  t.same(readdirSync(f.behind(`home/${uid}`)).sort(), ["agent", "model", "tool"])
  t.same(
    readdirSync(f.behind("home")).filter(name => name.startsWith(".")),
    [],
  )
  t.equal(await act1(0, "mkdir", f.at("home/x")), "EROFS")
})

t.test("root.15 a space is made by uid 0 with a NAME only, and the documents cannot be written", async t => {
  t.equal(await act1(OWNER, "mkdir", f.at("shared/new")), "EACCES")
  t.equal(await act1(0, "mkdir", f.at("shared/new"), 0o2775), "ok")
  t.ok(statSync(f.behind("shared/new")).isDirectory())
  t.equal(await act1(0, "mkdir", f.at("shared/.x")), "EINVAL")
  t.equal(await act1(0, "mkdir", f.at("shared/cortexfs-docs")), "EEXIST")
  const docs = f.at("shared/cortexfs-docs")
  const file = readdirSync(docs).find(name => statSync(join(docs, name)).isFile())!
  t.same(
    await act(0, [
      ["write", `${docs}/new`, "x"],
      ["mkdir", `${docs}/dir`],
      ["append", `${docs}/${file}`, "x"],
      ["truncate", `${docs}/${file}`, 0],
      ["unlink", `${docs}/${file}`],
      ["chmod", `${docs}/${file}`, 0o777],
      ["rename", `${docs}/${file}`, `${docs}/other`],
      ["symlink", "x", `${docs}/link`],
    ]),
    Array(8).fill("EROFS"),
  )
})

t.test("root.22 the alias of agent c++ gives the escaped listener below the run directory", async t => {
  const { agentMountPath, agentSocketPath, systemAgentSocket } = await import("../../src/abi/path.js")
  t.equal(systemAgentSocket("c++"), "/run/cortexfs/agent/c\\x2b\\x2b.sock")
  t.equal(agentMountPath("c++"), "/run/cortexfs/mount/c\\x2b\\x2b")
  t.equal(agentSocketPath("c++"), "/ctx/agent/c++.sock")
  const behind = join(f.generation, "agent/c++.d")
  makeBehind(behind, OWNER)
  writeBehind(join(behind, "owner"), `${OWNER}\n`, OWNER)
  await new Promise(resolve => setTimeout(resolve, 1100))
  t.equal(await act1(OTHER, "readlink", f.at("agent/c++.sock")), systemAgentSocket("c++", f.stack.run))
  rmSync(behind, { recursive: true })
})

t.test("fuse.17 (stored link) a foreign symlink stored under a socket's name is not shown", async t => {
  const stored = join(f.generation, "agent/coder.sock")
  symlinkSync("/etc/passwd", stored)
  await new Promise(resolve => setTimeout(resolve, 1100))
  t.equal(await act1(OWNER, "readlink", f.at("agent/coder.sock")), join(f.stack.run, "agent/coder.sock"))
  unlinkSync(stored)
})

t.test("root.19 rebuilding root leaves every byte below session unchanged", async t => {
  const home = f.behind(`home/${OWNER}/agent/coder`)
  writeBehind(join(home, "session/index/list"), "a\n", OWNER, 0o600)
  const hash = () => {
    const sum = createHash("sha256")
    for (const path of readdirSync(join(home, "session"), { recursive: true, encoding: "utf8" }).sort()) {
      sum.update(`${path}\0`)
      if (statSync(join(home, "session", path)).isFile()) sum.update(readFileSync(join(home, "session", path)))
    }
    return sum.digest("hex")
  }
  const before = hash()
  const root = f.at(`home/${OWNER}/agent/coder/root`)
  await act(OWNER, [["write", `${root}/junk`, "x"]])
  const removed = await runProgram(["/bin/rm", "-r", root], { uid: OWNER, env: cleanEnv() })
  t.equal(removed.code, 0, removed.stderr)
  t.equal(await act1(OWNER, "mkdir", root, 0o700), "ok")
  t.equal(hash(), before)
})

t.test("root.20 a plain source shows its own homes and has no generation", async t => {
  const uid = 12_779
  t.equal(((await act1(uid, "stat", f.at(`home/${uid}`))) as Facts).ino, String(statSync(f.behind(`home/${uid}`)).ino))
  const { startMount, makeMountPoint } = await import("../harness/mount.js")
  const source = join(f.stack.dir, "plain")
  const mountPoint = join(f.stack.dir, "plain.mnt")
  for (const dir of ["", "bin", "model", "agent", "tool", "shared/cortexfs-docs"]) makeBehind(join(source, dir), 0)
  const state = { schema: 1, tree_version: 0, managed_agents: [], applied_migrations: [] }
  writeFileSync(join(source, "bin/cortexfs.bootstrap.json"), JSON.stringify(state))
  const removePoint = makeMountPoint(mountPoint)
  const program = join(f.stack.prefix, "bin/cortexfs-mount")
  const plain = await startMount([program, "--source", source, "--run", f.stack.run, mountPoint], mountPoint)
  t.match(readFileSync(join(mountPoint, "status"), "utf8"), /^state=mounted\ngeneration=-\ntree_version=0\n/)
  t.equal(((await act1(uid, "stat", join(mountPoint, `home/${uid}`))) as Facts).uid, uid)
  t.ok(statSync(join(source, `home/${uid}`)).isDirectory())
  t.equal(await plain.stop(), 0)
  removePoint()
})
