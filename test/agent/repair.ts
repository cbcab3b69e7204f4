// needs: root fuse bwrap
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import t from "tap"
import { makeStage, type Stage } from "../fixture/agent/stage.js"
import { makeDir, OWNER } from "../harness/product.js"

t.test("an agent whose directories or policy are gone or broken", async t => {
  const stage: Stage = await makeStage()
  t.teardown(() => stage.stop())
  const home = join(stage.sessionDir, "..")
  const ask = async () => (await stage.send([{ say: "x" }], { session: "s", workspace: undefined }).over()).frames

  t.test("what is missing of its durable directories is made again before a run, 0700 and the owner's", async t => {
    t.match((await ask()).at(-1), { type: "done", status: "ok" })
    for (const name of ["data", "cache", "log", "root"]) rmSync(join(home, name), { recursive: true })
    t.match((await ask()).at(-1), { type: "done", status: "ok" })
    for (const name of ["data", "cache", "log", "root"]) {
      const { mode, uid, gid } = statSync(join(home, name))
      t.same([mode & 0o7777, uid, gid], [0o700, OWNER, OWNER], name)
    }
    t.same(readdirSync(home).sort(), ["cache", "data", "log", "root", "session"])
  })

  t.test(
    "a link in place of one is not followed, and a home that may not be written names directory and command",
    async t => {
      const elsewhere = makeDir()
      rmSync(join(home, "data"), { recursive: true })
      symlinkSync(elsewhere, join(home, "data"))
      rmSync(join(home, "cache"), { recursive: true })
      await ask()
      t.ok(lstatSync(join(home, "data")).isSymbolicLink())
      t.same(readdirSync(elsewhere), [])
      t.ok(statSync(join(home, "cache")).isDirectory())
      rmSync(join(home, "data"))
      const { mode } = statSync(home)
      chmodSync(home, 0o500)
      const [refused] = await ask()
      t.match(refused, { type: "error", code: "EACCES" })
      t.match(refused!.message, `home/${OWNER}/agent/coder/data cannot be made or entered (EACCES)`)
      t.match(refused!.message, "ctx storage update")
      chmodSync(home, mode)
      t.match((await ask()).at(-1), { type: "done", status: "ok" })
    },
  )

  t.test(
    "a policy that is malformed, missing, a link or no file denies everything and says which of these",
    async t => {
      const path = join(stage.controlDir, "policy")
      const reason = async () => {
        const [frame, ...rest] = await ask()
        t.same(rest, [])
        t.match(frame, { type: "error", code: "EACCES" })
        return String(frame!.message)
      }
      const good = readFileSync(path, "utf8")
      const lines = good.split("\n").length
      stage.set("policy", `${good}permit coder_t tool:fs.read execute\n`)
      t.match(
        await reason(),
        new RegExp(`^agent/coder\\.d/policy line ${lines}: EINVAL verb: .+, so nothing is allowed$`),
      )
      stage.set("policy", undefined)
      t.equal(await reason(), "agent/coder.d/policy is missing, so nothing is allowed")
      symlinkSync("/etc/hostname", path)
      t.equal(await reason(), "agent/coder.d/policy is a symbolic link, so nothing is allowed")
      rmSync(path)
      mkdirSync(path)
      t.equal(await reason(), "agent/coder.d/policy is not a regular file, so nothing is allowed")
      rmSync(path, { recursive: true })
      writeFileSync(path, good.replace(/^.*model:.*\n/gm, ""))
      t.match(await reason(), /^policy of agent coder has no line: allow coder_t model:\S+ use$/)
      stage.set("policy", good)
      t.match((await ask()).at(-1), { type: "done", status: "ok" })
    },
  )
})
