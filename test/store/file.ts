import { execFileSync } from "node:child_process"
import {
  closeSync,
  constants,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import fc from "fast-check"
import { test } from "tap"
import { appendWhole, readFileNofollow, replaceFile } from "../../src/store/file.js"
import { formatState, parseState } from "../../src/store/state.js"
import { makeDir } from "../harness/product.js"

test("a read follows no link, waits for no FIFO and stops at its limit", t => {
  const dir = makeDir()
  const path = join(dir, "f")
  writeFileSync(path, "12345")
  t.equal(readFileNofollow(path, 5).toString(), "12345")
  t.throws(() => readFileNofollow(path, 4), { code: "EFBIG" })
  symlinkSync("f", join(dir, "link"))
  t.throws(() => readFileNofollow(join(dir, "link"), 9), { code: "ELOOP" })
  execFileSync("mkfifo", [join(dir, "fifo")])
  t.throws(() => readFileNofollow(join(dir, "fifo"), 9), { code: "EINVAL" })
  t.throws(() => readFileNofollow(dir, 9), { code: "EISDIR" })
  t.throws(() => readFileNofollow(join(dir, "none"), 9), { code: "ENOENT" })
  mkdirSync(join(dir, "sub"))
  symlinkSync("sub", join(dir, "subl"))
  writeFileSync(join(dir, "sub/g"), "g")
  const dirFd = openSync(dir, constants.O_RDONLY | constants.O_DIRECTORY)
  t.equal(readFileNofollow({ dirFd, name: "sub/g" }, 9).toString(), "g")
  t.throws(() => readFileNofollow({ dirFd, name: "subl/g" }, 9), { code: "ELOOP" })
  t.throws(() => readFileNofollow({ dirFd, name: "../etc/passwd" }, 9999), { code: "EXDEV" })
  closeSync(dirFd)
  t.end()
})

test("a replacement has its exact mode, leaves no temporary, and a failed one changes nothing", t => {
  const dir = makeDir()
  const path = join(dir, "f")
  const umask = process.umask(0o077)
  replaceFile(path, "one\n", { mode: 0o644 })
  process.umask(umask)
  t.equal(statSync(path).mode & 0o7777, 0o644)
  replaceFile(path, Buffer.from("two\n"), { mode: 0o600, isDurable: true })
  t.equal(readFileSync(path, "utf8"), "two\n")
  t.equal(statSync(path).mode & 0o7777, 0o600)
  mkdirSync(join(dir, "d"))
  t.throws(() => replaceFile(join(dir, "d"), "x", { mode: 0o644 }), { code: "EISDIR" })
  t.strictSame(readdirSync(dir).sort(), ["d", "f"])
  symlinkSync("f", join(dir, "link"))
  replaceFile(join(dir, "link"), "three\n", { mode: 0o644 })
  t.equal(readFileSync(path, "utf8"), "two\n", "a link is replaced, not followed")
  t.end()
})

test("an append refuses with EIO when the end of the file has moved", t => {
  const path = join(makeDir(), "log")
  const fd = openSync(path, constants.O_WRONLY | constants.O_CREAT | constants.O_APPEND, 0o600)
  appendWhole(fd, Buffer.from("a\n"), 0)
  appendWhole(fd, Buffer.from("b\n"), 2)
  t.throws(() => appendWhole(fd, Buffer.from("c\n"), 2), { code: "EIO" })
  writeFileSync(path, "x")
  t.throws(() => appendWhole(fd, Buffer.from("c\n"), 4), { code: "EIO" })
  closeSync(fd)
  t.equal(readFileSync(path, "utf8"), "x")
  t.end()
})

test("the state file is parsed back to what was formatted", t => {
  const names = fc.array(fc.string({ unit: "grapheme" }), { maxLength: 4 })
  const state = fc.record(
    { treeVersion: fc.nat(), managedAgents: names, appliedMigrations: names },
    { noNullPrototype: true },
  )
  fc.assert(
    fc.property(state, value => {
      t.strictSame(parseState(formatState(value)), value)
    }),
    { numRuns: 50 },
  )
  for (const text of [
    "",
    "[]",
    "null",
    "{",
    '{"schema":1}',
    '{"schema":1,"tree_version":"1","managed_agents":[],"applied_migrations":[]}',
  ]) {
    t.throws(() => parseState(Buffer.from(text)), { code: "EINVAL" }, text)
  }
  t.end()
})
