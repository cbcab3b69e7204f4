// needs: root fuse
// Tools of users and spaces in the host view: a program with its controls beside is an object and reads as metadata, its
// bytes are read-only and an exec of it reaches the runner; any other file in a tool directory is an ordinary one.
import { readFileSync, statSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { act, act1, type Call, type Facts } from "./fixture/actor.js"
import { type Fixture, makeBehind, makeFixture, O, OTHER, OWNER, writeBehind } from "./fixture/stack.js"

let f: Fixture

t.before(async () => {
  f = await makeFixture()
})
t.after(() => f.stack.stop())

const SCRIPT = "#!/bin/sh\necho secret bytes\n"
const text = (uid: number) =>
  `#!/usr/bin/cortexfs-object-runner\nid=mine\nname=mine\ndescription=Mine\ntype=tool\nowned_by=${uid}\ncap=text,read\n`

for (const dir of [`home/${OWNER}/tool`, "shared/lab/tool"])
  t.test(`a tool in ${dir} reads as metadata, is not written and can be replaced`, async t => {
    await act1(OWNER, "stat", f.at(`home/${OWNER}`))
    const tool = f.at(`${dir}/mine`)
    t.same(
      await act(OWNER, [
        ["write", tool, SCRIPT, O.WRONLY | O.CREAT, 0o755],
        ["read", tool],
        ["mkdir", `${tool}.d`],
        ["write", `${tool}.d/description`, "Mine\n"],
        ["write", `${tool}.d/cap`, "text\nread\n"],
      ]),
      ["ok", SCRIPT, "ok", "ok", "ok"],
      "without its controls it is an ordinary file",
    )
    const [read, stat, list, write, append, truncate, handle, size, again] = (await act(OWNER, [
      ["read", tool],
      ["stat", tool],
      ["list", f.at(dir)],
      ["open", tool, O.RDWR],
      ["append", tool, "x"],
      ["truncate", tool, 0],
      ["handle", "h", tool, O.RDONLY],
      ["fstat", "h"],
      ["hpread", "h", 10_000, 0],
    ])) as [string, Facts, string[], ...string[]]
    t.equal(read, text(OWNER))
    t.equal(stat.size, Buffer.byteLength(text(OWNER)))
    t.equal(stat.mode & 0o777, 0o755)
    t.same(list.sort(), ["mine", "mine.d"])
    t.same([write, append, truncate, handle], ["EROFS", "EROFS", "EROFS", "ok"])
    t.equal((size as unknown as Facts).size, stat.size)
    t.equal(again, read)
    t.equal(readFileSync(f.behind(`${dir}/mine`), "utf8"), SCRIPT, "the bytes stay behind")
    t.notOk(read.includes("secret"))
    const kind = dir.startsWith("home") ? "ctx.tool" : "ctx.shared.tool"
    const attribute = (path: string, name: string): Call => ["getxattr", path, `user.cortexfs.${name}`]
    t.same(
      await act(OWNER, [
        attribute(tool, "kind"),
        attribute(tool, "abi_path"),
        attribute(tool, "bytes"),
        attribute(tool, "origin"),
        attribute(tool, "storage"),
        attribute(tool, "virtual"),
        attribute(tool, "backing_exists"),
        attribute(tool, "backing_path"),
        attribute(`${tool}.d`, "kind"),
        attribute(`${tool}.d/cap`, "kind"),
      ]),
      [
        ...[`${kind}.exec`, `${dir}/mine`, String(stat.size), "virtual", "memory", "true", "true"],
        ...[f.behind(`${dir}/mine`), `${kind}.control`, `${kind}.control`],
      ],
    )
    // The owner edits what it says of itself, replaces it, and makes it an ordinary file again.
    t.same(
      await act(OWNER, [
        ["write", `${tool}.d/cap`, "text\n"],
        ["read", tool],
        ["write", f.at(`${dir}/.mine.tmp-1-a-0`), "#!/bin/sh\necho two\n", O.WRONLY | O.CREAT, 0o755],
        ["rename", f.at(`${dir}/.mine.tmp-1-a-0`), tool],
        ["read", tool],
        ["chmod", tool, 0o644],
        ["read", tool],
        ["write", tool, "plain\n", O.WRONLY | O.TRUNC],
        ["chmod", tool, 0o755],
        ["rename", `${tool}.d`, f.at(`${dir}/other.d`)],
        ["read", tool],
      ]),
      [
        ...["ok", text(OWNER).replace("text,read", "text"), "ok", "ok", text(OWNER).replace("text,read", "text")],
        ...["ok", "#!/bin/sh\necho two\n", "ok", "ok", "ok", "plain\n"],
      ],
    )
  })

t.test("an exec of a user's tool is given to the runner and never to its bytes", async t => {
  const dir = `home/${OWNER}/tool`
  writeBehind(f.behind(`${dir}/run`), SCRIPT, OWNER, 0o755)
  const tool = f.at(`${dir}/run`)
  t.match(await act1(OWNER, "exec", tool), { code: 0, stdout: "secret bytes\n" }, "an ordinary script runs")
  makeBehind(f.behind(`${dir}/run.d`), OWNER)
  const result = await act1(OWNER, "exec", tool)
  t.not((result as { stdout?: string }).stdout, "secret bytes\n")
  t.equal(await act1(OTHER, "stat", tool), "EACCES", "a home is private")
  t.equal(statSync(f.behind(`${dir}/run`)).size, SCRIPT.length)
})

t.test("links and special files are refused in a tool directory", async t => {
  const dir = f.at("shared/lab/tool")
  t.same(
    await act(OWNER, [
      ["symlink", "/etc/passwd", join(dir, "link")],
      ["mknod", join(dir, "fifo"), 0o010600],
      ["write", join(dir, "a"), "x"],
      ["link", join(dir, "a"), join(dir, "b")],
    ]),
    ["EROFS", "EPERM", "ok", "EROFS"],
  )
})
