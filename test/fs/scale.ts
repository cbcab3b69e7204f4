// needs: root fuse git
// Much of everything: a repository in a home, many names looked up and forgotten again.
import { execFileSync } from "node:child_process"
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { cleanEnv, runProgram } from "../harness/program.js"
import { type Fixture, makeFixture, OWNER } from "./fixture/stack.js"

let f: Fixture
const data = `home/${OWNER}/agent/coder/data`

t.before(async () => {
  f = await makeFixture()
})
t.after(() => f.stack.stop())

t.test("fuse.42 (git) a clone, its status, its fsck and its removal succeed in an agent's data", async t => {
  const origin = join(f.stack.dir, "origin")
  mkdirSync(origin)
  const env = cleanEnv({
    GIT_AUTHOR_NAME: "a",
    GIT_AUTHOR_EMAIL: "a@b",
    GIT_COMMITTER_NAME: "a",
    GIT_COMMITTER_EMAIL: "a@b",
  })
  const git = (args: string[], cwd: string, uid?: number) =>
    runProgram(["/usr/bin/git", ...args], {
      cwd,
      env: { ...env, HOME: "/tmp" },
      uid,
      timeoutMs: 60_000,
    })
  await git(["init", "-q"], origin)
  for (let i = 0; i < 400; i++) {
    mkdirSync(join(origin, `d${i % 20}`), { recursive: true })
    writeFileSync(join(origin, `d${i % 20}/f${i}`), `${i}\n`.repeat(i))
  }
  await git(["add", "."], origin)
  t.equal((await git(["commit", "-q", "-m", "all"], origin)).code, 0)
  execFileSync("/bin/chown", ["-R", String(OWNER), origin])
  const clone = f.at(`${data}/clone`)
  const rows: [args: string[], cwd: string][] = [
    [["clone", "-q", "--no-local", origin, clone], "/"],
    [["status", "--porcelain"], clone],
    [["fsck", "--strict"], clone],
    [["gc", "-q"], clone],
    [["checkout", "-q", "-b", "other"], clone],
    [["fsck", "--strict"], clone],
  ]
  for (const [args, cwd] of rows) {
    const ended = await git(args, cwd, OWNER)
    t.same([ended.code, ended.stdout], [0, ""], `git ${args.join(" ")}: ${ended.stderr}`)
  }
  t.equal(readFileSync(join(clone, "d7/f387"), "utf8"), "387\n".repeat(387))
  t.equal((await runProgram(["/bin/rm", "-rf", clone], { uid: OWNER })).code, 0)
  t.notOk(readdirSync(f.behind(data)).includes("clone"))
})
