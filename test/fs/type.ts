// needs: root fuse
// Which kinds of backing entries exist in a view: what is neither a regular file nor a directory is not there where the
// mount answers for the content, and is as it lies where its user does.
import { execFileSync } from "node:child_process"
import {
  constants,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
} from "node:fs"
import { join } from "node:path"
import t from "tap"
import { runProgram } from "../harness/program.js"
import { type Fixture, makeBehind, makeFixture, makeSession, OWNER } from "./fixture/stack.js"

let f: Fixture
let view: string
const home = `home/${OWNER}`
const session = `${home}/agent/coder/session/default`

/** Puts a fifo, a link to a secret and a socket into a backing directory, in place of the names given. */
function spoil(dir: string, fifo: string, link: string, socket?: string): void {
  for (const name of [fifo, link, socket])
    if (name !== undefined) rmSync(join(dir, name), { recursive: true, force: true })
  execFileSync("mkfifo", ["-m", "0666", join(dir, fifo)])
  symlinkSync("/etc/passwd", join(dir, link))
  if (socket === undefined) return
  execFileSync("python3", ["-c", "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])", socket], {
    cwd: dir,
  })
}

t.before(async () => {
  f = await makeFixture()
  makeBehind(f.behind(`${home}/agent/coder/data`), OWNER, 0o700)
  makeSession(f.behind(session), OWNER)
  view = (await f.stack.startView("coder")).mountPoint
  const controls = join(f.generation, "agent/coder.d")
  spoil(controls, "mount", "system.md", "approval")
  spoil(join(controls, "hooks/pre.d"), "a", "b")
  symlinkSync("coder.d", join(f.generation, "agent/link.d"))
  spoil(join(f.generation, "tool/fs.read.d"), "schema", "description")
  spoil(join(f.generation, "tool/fs.read.d/hooks"), "a", "b")
  spoil(join(f.generation, "shared/cortexfs-docs"), "fifo.md", "link.md")
  execFileSync("mkfifo", [join(f.generation, "model/route")])
  spoil(f.behind(session), "latest.md", "cwd")
  // As a link is refused without a look at it, a home's class directory is.
  mkdirSync(f.behind("home/12999"))
  symlinkSync("/etc", f.behind("home/12999/agent"))
  await new Promise(resolve => setTimeout(resolve, 1100))
})
t.after(() => f.stack.stop())

const errnoOf = (act: () => unknown): string => {
  try {
    act()
    return "ok"
  } catch (e) {
    return (e as NodeJS.ErrnoException).code ?? "?"
  }
}

const HIDDEN = [
  "agent/coder.d/mount",
  "agent/coder.d/system.md",
  "agent/coder.d/approval",
  "agent/coder.d/hooks/pre.d/a",
  "agent/coder.d/hooks/pre.d/b",
  "agent/link.d",
  "tool/fs.read.d/schema",
  "tool/fs.read.d/description",
  "tool/fs.read.d/hooks/a",
  "tool/fs.read.d/hooks/b",
  `${session}/latest.md`,
  `${session}/cwd`,
]

t.test("fuse.51 what is no regular file and no directory exists where its user answers for it only", async t => {
  t.test("fifos, links and sockets behind agent, tool, documents and sessions are in no view", async t => {
    const hidden: [root: string, path: string][] = HIDDEN.map(path => [f.at(""), path])
    for (const path of ["shared/cortexfs-docs/fifo.md", "shared/cortexfs-docs/link.md", "home/12999/agent"])
      hidden.push([f.at(""), path])
    for (const path of HIDDEN) if (!path.startsWith("tool/")) hidden.push([view, path])
    for (const [root, path] of hidden) {
      const full = join(root, path)
      t.equal(
        errnoOf(() => lstatSync(full)),
        "ENOENT",
        full,
      )
      t.equal(
        errnoOf(() => readlinkSync(full)),
        "ENOENT",
        full,
      )
      t.equal(
        errnoOf(() => openSync(full, constants.O_RDONLY | constants.O_NONBLOCK)),
        "ENOENT",
        full,
      )
      const dir = full.slice(0, full.lastIndexOf("/"))
      t.notOk(readdirSync(dir).includes(full.slice(dir.length + 1)), full)
      // By readdirplus too, which gives a node with every name.
      const long = await runProgram(["/bin/ls", "-l", dir])
      t.equal(long.code, 0, long.stderr)
      t.notMatch(long.stdout, new RegExp(`[ ]${full.slice(dir.length + 1).replace(".", "\\.")}( ->|$)`, "m"))
    }
    t.ok(readdirSync(f.at("agent/coder.d")).includes("policy"), "what is plain is still there")
    t.equal(readFileSync(f.at("model/route"), "utf8"), "fallback: direct\n", "a route that is no file counts as absent")
  })

  t.test("a reader of the whole tree waits for nobody", async t => {
    for (const root of [f.at(""), view]) {
      const read = await runProgram([
        "/usr/bin/timeout",
        "20",
        "/bin/grep",
        "-r",
        "--exclude-dir=data",
        "root:x:0",
        root,
      ])
      t.equal(read.code, 1, `${read.stdout}${read.stderr}`)
    }
  })

  t.test("links and special files of a user's own places are as they lie", async t => {
    const data = f.behind(`${home}/agent/coder/data`)
    execFileSync("mkfifo", [join(data, "fifo")])
    symlinkSync("/anywhere", join(data, "link"))
    for (const path of [f.behind(`${home}/tool`), f.behind(`${session}/context`), f.behind("shared/lab/queue")])
      mkdirSync(path, { recursive: true })
    const links = [`${home}/tool/link`, `${session}/context/link`, "shared/lab/queue/link", "shared/lab/tool/link"]
    for (const path of links) symlinkSync("/anywhere", f.behind(path))
    symlinkSync(`${f.at("")}model/debug/echo`, f.behind(`${home}/model/fast`))
    for (const path of [`${home}/agent/coder/data/link`, ...links]) t.equal(readlinkSync(f.at(path)), "/anywhere", path)
    t.ok(lstatSync(f.at(`${home}/model/fast`)).isSymbolicLink())
    for (const root of [f.at(""), view]) {
      const inside = join(root, `${home}/agent/coder/data`)
      t.same(readdirSync(inside).sort(), ["fifo", "link"])
      t.ok(lstatSync(join(inside, "fifo")).isFIFO())
    }
  })
})
