// needs: root fuse
// What may be done where in the host view: the fixed zone, removal of directories, links, special files, long names,
// session directories, aliases in homes.
import { mkdirSync, readdirSync, readFileSync, readlinkSync, rmdirSync, rmSync, statSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { act, act1, type Call, type Facts } from "./fixture/actor.js"
import {
  type Fixture,
  makeBehind,
  makeFixture,
  makeSession,
  O,
  O_TMPFILE,
  OTHER,
  OWNER,
  writeBehind,
} from "./fixture/stack.js"

let f: Fixture
let home: string

t.before(async () => {
  f = await makeFixture()
  home = `home/${OWNER}`
})
t.after(() => f.stack.stop())

t.test("fuse.8 nothing in the fixed zone can be changed, by uid 0 neither", async t => {
  for (const path of ["model/debug/echo.d/limit", "tool/fs.read", "status", "bin/ctx"]) {
    const before = readFileSync(f.at(path), "utf8").replace(/^(uptime_s|requests)=.*$/gm, "")
    const full = f.at(path)
    const calls: Call[] = [
      ["open", full, O.WRONLY],
      ["open", full, O.RDWR],
      ["open", full, O.WRONLY | O.TRUNC],
      ["truncate", full, 0],
      ["chmod", full, 0o777],
      ["chown", full, 1, 1],
      ["utime", full],
      ["unlink", full],
      ["rename", full, `${full}x`],
      ["rename", full, f.at("shared/lab/data/x")],
    ]
    t.same(
      await act(0, calls),
      calls.map(() => "EROFS"),
      path,
    )
    t.equal(await act1(OWNER, "open", full, O.WRONLY), "EACCES", path)
    t.equal(readFileSync(full, "utf8").replace(/^(uptime_s|requests)=.*$/gm, ""), before)
  }
})

t.test("fuse.9 every row of the rmdir matrix gives its result", async t => {
  const private_ = f.behind(`${home}/agent/rev`)
  makeBehind(private_, OWNER, 0o700)
  for (const dir of ["data", "session", "session/index", "session/index/by-uuid"])
    makeBehind(join(private_, dir), OWNER, 0o700)
  makeSession(join(private_, "session/default"), OWNER)
  makeBehind(f.behind(`${home}/archived_sessions/coder/old/context`), OWNER)
  makeBehind(f.behind(`${home}/archived_sessions`), OWNER)
  makeBehind(f.behind(`${home}/archived_sessions/coder`), OWNER)
  makeBehind(f.behind(`${home}/archived_sessions/coder/old`), OWNER)
  makeBehind(f.behind(`${home}/d`), OWNER)
  makeBehind(f.behind(`${home}/agent/empty`), OWNER, 0o700)
  writeBehind(f.behind(`${home}/notes.txt`), "n\n", OWNER)
  t.equal(await act1(OWNER, "symlink", "/ctx/model/debug/echo", f.at(`${home}/model/main`)), "ok")
  makeBehind(f.behind(`home/${OTHER}`), OTHER, 0o700)

  const rows: [path: string, uid: number, result: string][] = [
    ...["model", "tool", "agent", "home", "shared", "bin"].map((name): [string, number, string] => [name, 0, "EROFS"]),
    ["", 0, "EBUSY"],
    ["model/debug", 0, "EROFS"],
    ["tool/fs.read.d", 0, "EROFS"],
    ["tool/fs.read.d/hooks", 0, "EROFS"],
    ["agent/coder.d", OWNER, "EROFS"],
    ["agent/coder.d/hooks", OWNER, "EROFS"],
    ["shared/cortexfs-docs/man", 0, "EROFS"],
    [home, 0, "EROFS"],
    [`${home}/agent`, 0, "EROFS"],
    ["shared/lab", 0, "EROFS"],
    [`${home}/agent/rev/data`, OWNER, "ok"],
    [`${home}/agent/empty`, OWNER, "ok"],
    ["shared/lab/queue/done", OTHER, "ok"],
    [`${home}/agent/rev/session/index/by-uuid`, OWNER, "ok"],
    [`${home}/agent/rev/session/default`, OWNER, "ENOTEMPTY"],
    [`${home}/archived_sessions/coder/old/context`, OWNER, "ok"],
    ["status", 0, "ENOTDIR"],
    ["agent/coder.sock", 0, "ENOTDIR"],
    [`${home}/notes.txt`, OWNER, "ENOTDIR"],
    [`${home}/model/main`, OWNER, "ENOTDIR"],
    ["agent/coder.sock", OWNER, "EPERM"],
    [`${home}/d`, OTHER, "EACCES"],
    [`${home}/none`, OWNER, "ENOENT"],
  ]
  for (const [path, uid, result] of rows) t.equal(await act1(uid, "rmdir", f.at(path)), result, `${path} by ${uid}`)
  makeBehind(join(private_, "data"), OWNER)
  writeBehind(join(private_, "data/one"), "1", OWNER)
  t.equal(await act1(OWNER, "rmdir", f.at(`${home}/agent/rev/data`)), "ENOTEMPTY")
  t.ok(statSync(join(private_, "session/default/messages.jsonl")).isFile())
})

t.test("fuse.11 hard links, fifos and sockets live in plain only", async t => {
  const plain = f.at(home)
  writeBehind(f.behind(`${home}/a`), "a", OWNER)
  writeBehind(f.behind(`${home}/tool/t.txt`), "t", OWNER)
  makeSession(f.behind(`${home}/agent/coder/session/one`), OWNER)
  const session = f.at(`${home}/agent/coder/session/one`)
  const [linked, a, b] = (await act(OWNER, [
    ["link", `${plain}/a`, `${plain}/b`],
    ["stat", `${plain}/a`],
    ["stat", `${plain}/b`],
  ])) as [string, Facts, Facts]
  t.equal(linked, "ok")
  t.equal(a.ino, b.ino)
  t.equal(b.nlink, 2)
  await act(OWNER, [["append", `${plain}/b`, "b"]])
  t.equal(readFileSync(f.behind(`${home}/a`), "utf8"), "ab")
  const rows: [from: string, to: string, result: string][] = [
    [`${session}/messages.jsonl`, `${plain}/m`, "EROFS"],
    [`${plain}/a`, `${session}/m`, "EROFS"],
    [`${plain}/tool/t.txt`, `${plain}/m`, "EROFS"],
    [`${plain}/a`, `${plain}/tool/m`, "EROFS"],
    [f.at("agent/coder.d/cwd"), `${plain}/m`, "EROFS"],
    [`${plain}/a`, f.at("agent/coder.d/m"), "EROFS"],
    [f.at("tool/fs.read"), `${plain}/m`, "EROFS"],
    [`${plain}/a`, f.at("bin/m"), "EROFS"],
    [`${plain}/a`, f.at("shared/lab/data/m"), "EXDEV"],
    [`${plain}/agent`, `${plain}/m`, "EPERM"],
  ]
  for (const [from, to, result] of rows) {
    const [answer] = await act(0, [["link", from, to]])
    t.equal(answer, result, `${from} -> ${to}`)
  }
  t.same(
    await act(OWNER, [
      ["mknod", `${plain}/fifo`, 0o010600],
      ["bind", `${plain}/socket`],
      ["connect", `${plain}/socket`],
      ["mknod", `${plain}/tool/fifo`, 0o010600],
      ["open", plain, O_TMPFILE | O.RDWR],
      ["ioctl", `${plain}/a`, 0x80086601],
    ]),
    ["ok", "ok", "ok", "EPERM", "EOPNOTSUPP", "ENOTTY"],
  )
  t.same(
    await act(0, [
      ["mknod", `${plain}/char`, 0o020600, 0x103],
      ["mknod", `${plain}/block`, 0o060600, 0x700],
    ]),
    ["EPERM", "EPERM"],
  )
  const pass = await import("node:child_process").then(({ spawnSync }) =>
    spawnSync("/bin/sh", ["-c", '(echo through > "$0" &) ; cat "$0"', `${plain}/fifo`], {
      encoding: "utf8",
      timeout: 10_000,
    }),
  )
  t.equal(pass.stdout, "through\n")
})

t.test("fuse.17 (in the host view) nobody makes, replaces or removes a socket alias", async t => {
  const socket = f.at("agent/coder.sock")
  writeBehind(f.behind(`${home}/x`), "", OWNER)
  for (const uid of [OWNER, OTHER, 0]) {
    t.same(
      await act(uid, [
        ["symlink", "/etc", socket],
        ["mknod", socket, 0o100644],
        ["unlink", socket],
        ["rename", socket, f.at("agent/x.sock")],
      ]),
      ["EEXIST", "EEXIST", uid === 0 ? "EROFS" : "EPERM", uid === 0 ? "EROFS" : "EPERM"],
      String(uid),
    )
  }
  t.equal(await act1(OWNER, "link", f.at(`${home}/x`), socket), "EEXIST")
  t.equal(readlinkSync(socket), join(f.stack.run, "agent/coder.sock"))
})

t.test(
  "fuse.17 (links in homes) a terminal socket and an alias accept only their own texts, from their user",
  async t => {
    makeSession(f.behind(`${home}/agent/coder/session/two`), OWNER)
    const terminal = f.at(`${home}/agent/coder/session/two/terminal`)
    const text = `/run/user/${OWNER}/cortexfs/terminal/coder/two/main.sock`
    t.same(
      await act(OWNER, [
        ["mkdir", terminal, 0o700],
        ["symlink", `${text}x`, `${terminal}/main.sock`],
        ["symlink", text, `${terminal}/other.sock`],
        ["symlink", text, `${terminal}/main.sock`],
        ["readlink", `${terminal}/main.sock`],
        ["unlink", `${terminal}/main.sock`],
      ]),
      ["ok", "EINVAL", "EROFS", "ok", text, "ok"],
    )
    t.equal(await act1(0, "symlink", text, `${terminal}/main.sock`), "EACCES")

    const model = f.at(`${home}/model`)
    const good = "/ctx/model/debug/echo"
    t.same(
      await act(OWNER, [
        ["symlink", "debug/echo", `${model}/fast`],
        ["symlink", "/ctx/tool/tsh", `${model}/fast`],
        ["symlink", good, `${model}/slow`],
        ["symlink", good, `${model}/.slow.tmp-1-a-0`],
        ["symlink", good, `${model}/.fast.tmp-x-a-0`],
        ["mkdir", `${model}/debug`],
        ["write", `${model}/fast`, "x"],
        ["symlink", good, `${model}/fast`],
        ["symlink", "/ctx/model/none/such", `${model}/.code.tmp-1-a-0`],
        ["rename", `${model}/.code.tmp-1-a-0`, `${model}/code`],
        ["readlink", `${model}/code`],
        ["unlink", `${model}/fast`],
      ]),
      ["EINVAL", "EINVAL", "EROFS", "EROFS", "EROFS", "EROFS", "EROFS", "ok", "ok", "ok", "/ctx/model/none/such", "ok"],
    )
    t.equal(await act1(0, "unlink", `${model}/code`), "EACCES")
  },
)

t.test("fuse.20 history is read-only, context is not, and appends behind are read at once", async t => {
  const behind = f.behind(`${home}/agent/coder/session/three`)
  makeSession(behind, OWNER)
  makeBehind(f.behind(`${home}/agent/coder/session/index`), OWNER, 0o700)
  const session = f.at(`${home}/agent/coder/session/three`)
  t.same(
    await act(OWNER, [
      ["append", `${session}/messages.jsonl`, "x"],
      ["write", `${session}/state`, "x"],
      ["write", `${session}/.state.tmp`, "x"],
      ["rename", `${session}/events.jsonl`, `${session}/state`],
      ["write", f.at(`${home}/agent/coder/session/index/x`), "x"],
      ["mkdir", f.at(`${home}/agent/coder/session/new`)],
      ["mkdir", `${session}/context`, 0o700],
      ["mkdir", `${session}/context/pinned`, 0o700],
      ["write", `${session}/context/pinned/a`, "pinned"],
      ["symlink", "x", `${session}/context/link`],
      ["chmod", session, 0o777],
      ["unlink", `${session}/state`],
    ]),
    ["EROFS", "EROFS", "EROFS", "EROFS", "EROFS", "EROFS", "ok", "ok", "ok", "EROFS", "EROFS", "EROFS"],
  )
  t.equal(readFileSync(join(behind, "context/pinned/a"), "utf8"), "pinned")
  t.equal(await act1(0, "mkdir", `${session}/terminal`), "EACCES")
  const { openSync, readSync, closeSync, appendFileSync } = await import("node:fs")
  const fd = openSync(`${session}/messages.jsonl`, "r")
  const buffer = Buffer.alloc(100)
  t.equal(readSync(fd, buffer), 0)
  for (const row of ['{"a":1}\n', '{"b":22}\n']) {
    appendFileSync(join(behind, "messages.jsonl"), row)
    t.equal(buffer.toString("utf8", 0, readSync(fd, buffer)), row)
  }
  closeSync(fd)
})

t.test("the session skeleton is made by its user and only in its known shape", async t => {
  const agent = f.at(`${home}/agent/fresh`)
  t.same(
    await act(OWNER, [
      ["mkdir", agent, 0o700],
      ["mkdir", `${agent}/session`, 0o700],
      ["mkdir", `${agent}/session/index`, 0o700],
      ["mkdir", `${agent}/session/index/by-cwd`, 0o700],
      ["mkdir", `${agent}/session/index/other`, 0o700],
      ["mkdir", `${agent}/session/default`, 0o700],
      ["mkdir", f.at(`${home}/agent/.bad`)],
      ["write", f.at(`${home}/agent/file`), "x"],
      ["mkdir", `${agent}/data`],
      ["write", `${agent}/data/x`, "x"],
    ]),
    ["ok", "ok", "ok", "ok", "EROFS", "EROFS", "EINVAL", "EROFS", "ok", "ok"],
  )
  t.equal(await act1(0, "mkdir", f.at(`${home}/agent/byroot`)), "EACCES")
  t.equal(await act1(OTHER, "mkdir", f.at(`${home}/agent/byother`)), "EACCES")
})

t.test("fuse.48 names over 255 bytes are ENAMETOOLONG in every zone", async t => {
  makeSession(f.behind(`${home}/agent/coder/session/four`), OWNER)
  const dirs = [
    "",
    "model",
    "model/debug",
    "agent",
    "agent/coder.d",
    "tool",
    "home",
    home,
    `${home}/tool`,
    `${home}/model`,
  ]
  dirs.push(`${home}/agent`, `${home}/agent/coder/session/four`, "shared", "shared/lab/data", "shared/cortexfs-docs")
  for (const dir of dirs)
    for (const length of [256, 1024, 1025]) {
      const path = `${f.at(dir)}/${"n".repeat(length)}`
      t.same(
        await act(0, [
          ["stat", path],
          ["write", path, "x"],
          ["mkdir", path],
          ["rename", f.at(`${home}/notes.txt`), path],
        ]),
        Array(4).fill("ENAMETOOLONG"),
        `${dir} ${length}`,
      )
    }
  const longest = f.at(`${home}/${"n".repeat(255)}`)
  t.equal(await act1(OWNER, "write", longest, "x"), "ok")
})

t.test("hidden names are never listed and never found", async t => {
  const behind = f.behind(home)
  makeSession(join(behind, "agent/coder/session/five"), OWNER)
  const names = [
    `${home}/model/.x`,
    `${home}/agent/coder/session/.x`,
    `${home}/agent/coder/session/five/.x`,
    `${home}/tool/.cortexfs-install-1`,
    `${home}/tool/.ctx-rollback-1`,
  ]
  for (const name of names) {
    writeBehind(f.behind(name), "x", OWNER)
    t.equal(await act1(OWNER, "stat", f.at(name)), "ENOENT", name)
    t.notOk(
      readdirSync(f.at(name.slice(0, name.lastIndexOf("/")))).includes(name.slice(name.lastIndexOf("/") + 1)),
      name,
    )
  }
  makeBehind(f.behind("home/x"), 0)
  t.notOk(readdirSync(f.at("home")).includes("x"))
  t.equal(await act1(0, "stat", f.at("home/x")), "ENOENT")
  rmdirSync(f.behind("home/x"))
  mkdirSync(f.behind("shared/cortexfs-docs"))
  t.ok(readdirSync(f.at("shared/cortexfs-docs")).length > 0, "the generation's documents are shown")
  t.equal(readdirSync(f.at("shared")).filter(name => name === "cortexfs-docs").length, 1)
  rmSync(f.behind("shared/cortexfs-docs"), { recursive: true })
})
