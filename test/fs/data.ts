// needs: root fuse
// File data: the page cache, kernel passthrough, appends from all sides, set-uid bits.
import { execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import { closeSync, openSync, readFileSync, readSync, renameSync, statSync, writeFileSync, writeSync } from "node:fs"
import { join } from "node:path"
import t, { type t as tap } from "tap"
import { cleanEnv, runProgram } from "../harness/program.js"
import { act, type Facts } from "./fixture/actor.js"
import { type Fixture, makeBehind, makeFixture, makeSession, O, OTHER, OWNER, writeBehind } from "./fixture/stack.js"

const MIB = 1 << 20
const home = `home/${OWNER}`
const readStatus = (f: Fixture, key: string) =>
  new RegExp(`^${key}=(.*)$`, "m").exec(readFileSync(f.at("status"), "utf8"))![1]!
const readRequests = (f: Fixture) => Number(readStatus(f, "requests"))

/** Both ways data can go, each on a mount of its own. */
async function withBoth(
  t: Pick<typeof tap, "equal">,
  use: (f: Fixture, isPassthrough: boolean) => Promise<void>,
): Promise<void> {
  for (const isPassthrough of [true, false]) {
    const f = await makeFixture(isPassthrough ? {} : { env: cleanEnv({ CORTEXFS_PASSTHROUGH: "0" }) })
    try {
      t.equal(readStatus(f, "passthrough"), isPassthrough ? "1" : "0")
      await use(f, isPassthrough)
    } finally {
      await f.stack.stop()
    }
  }
}

t.test("fuse.28 the second read of an unchanged file sends no READ, and new bytes behind are read", async t => {
  const f = await makeFixture({ env: cleanEnv({ CORTEXFS_PASSTHROUGH: "0" }) })
  t.teardown(() => f.stack.stop())
  const path = f.at(`${home}/big`)
  writeBehind(f.behind(`${home}/big`), "", OWNER)
  writeFileSync(f.behind(`${home}/big`), Buffer.alloc(64 * MIB, "a"))
  t.equal(readFileSync(path).length, 64 * MIB)
  const before = readRequests(f)
  t.equal(readFileSync(path).length, 64 * MIB)
  const sent = readRequests(f) - before
  t.ok(sent < 10 + 3, `${sent} requests, those of status included`)
  writeFileSync(f.behind(`${home}/big`), Buffer.alloc(64 * MIB, "b"))
  await new Promise(resolve => setTimeout(resolve, 1100))
  t.ok(readFileSync(path).every(byte => byte === 0x62))
})

t.test(
  "fuse.29 (root) with passthrough 64 MiB are read and written in under 20 requests, with the same result",
  async t => {
    await withBoth(t, async (f, isPassthrough) => {
      const path = f.at(`${home}/data`)
      const before = readRequests(f)
      const bytes = Buffer.alloc(64 * MIB)
      for (let i = 0; i < bytes.length; i += 4096) bytes.writeUInt32LE(i, i)
      const fd = openSync(path, "w+")
      writeSync(fd, bytes, 0, bytes.length, 0)
      const back = Buffer.alloc(64 * MIB)
      readSync(fd, back, 0, back.length, 0)
      closeSync(fd)
      const sent = readRequests(f) - before
      if (isPassthrough) t.ok(sent < 20, `${sent} requests`)
      else t.ok(sent >= 64, `${sent} requests`)
      t.ok(back.equals(bytes))
      t.ok(readFileSync(f.behind(`${home}/data`)).equals(bytes))
      const [here, behind] = [statSync(path, { bigint: true }), statSync(f.behind(`${home}/data`), { bigint: true })]
      t.same([here.size, here.mtimeNs, here.blocks], [behind.size, behind.mtimeNs, behind.blocks])
    })
  },
)

const APPENDER = `
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
for i in range(1000):
    line = ("%s %04d " % (sys.argv[2], i)).encode()
    os.write(fd, line + b"." * (99 - len(line)) + b"\\n")
`

t.test("fuse.31 four appenders in two views and behind leave 4,000 whole lines", async t => {
  const f = await makeFixture()
  t.teardown(() => f.stack.stop())
  const rel = `${home}/agent/coder/data/appended`
  writeBehind(f.behind(rel), "", OWNER)
  const view = await f.stack.startView("coder")
  const paths = [f.at(rel), f.at(rel), join(view.mountPoint, rel), f.behind(rel)]
  const ended = await Promise.all(
    paths.map((path, i) =>
      runProgram(["/usr/bin/python3", "-c", APPENDER, path, `w${i}`], { uid: i === 3 ? 0 : OWNER }),
    ),
  )
  t.same(
    ended.map(({ code, stderr }) => [code, stderr]),
    paths.map(() => [0, ""]),
  )
  const lines = readFileSync(f.behind(rel), "utf8").split("\n")
  t.equal(lines.pop(), "")
  t.equal(lines.length, 4000)
  t.ok(lines.every(line => /^w[0-3] \d{4} \.+$/.test(line) && line.length === 99))
  t.equal(new Set(lines).size, 4000)
  await view.stop()
})

t.test("fuse.45 a write by another user clears set-uid and set-gid, with passthrough and without", async t => {
  await withBoth(t, async f => {
    makeBehind(f.behind(`${home}`), OWNER, 0o711)
    for (const [name, when] of [
      ["before", true],
      ["after", false],
    ] as const) {
      const rel = `${home}/suid-${name}`
      writeBehind(f.behind(rel), "x", OWNER, when ? 0o777 : 0o6777)
      const writer = spawn("/usr/bin/setpriv", [
        `--reuid=${OTHER}`,
        `--regid=${OTHER}`,
        "--clear-groups",
        "--",
        "/usr/bin/python3",
        "-c",
        "import os,sys\nfd=os.open(sys.argv[1],os.O_WRONLY)\nprint('open',flush=True)\nsys.stdin.readline()\nos.write(fd,b'y')",
        f.at(rel),
      ])
      await once(writer.stdout, "data")
      if (when) t.same(await act(OWNER, [["chmod", f.at(rel), 0o6777]]), ["ok"])
      writer.stdin.end("go\n")
      await once(writer, "exit")
      t.equal(statSync(f.behind(rel)).mode & 0o7777, 0o777, name)
      t.equal(((await act(OWNER, [["stat", f.at(rel)]])) as Facts[])[0]!.mode, 0o777, name)
    }
    writeBehind(f.behind(`${home}/suid-truncate`), "xyz", OWNER, 0o6777)
    t.same(await act(OTHER, [["truncate", f.at(`${home}/suid-truncate`), 1]]), ["ok"])
    t.equal(statSync(f.behind(`${home}/suid-truncate`)).mode & 0o7777, 0o777)
  })
})

t.test("a session file is read through passthrough while its recorder appends behind", async t => {
  const f = await makeFixture()
  t.teardown(() => f.stack.stop())
  const rel = `${home}/agent/coder/session/live`
  makeSession(f.behind(rel), OWNER)
  const messages = f.behind(`${rel}/messages.jsonl`)
  const row = `${"m".repeat(1000)}\n`
  writeFileSync(messages, row.repeat(1000))
  const fd = openSync(f.at(`${rel}/messages.jsonl`), "r")
  const before = readRequests(f)
  const buffer = Buffer.alloc(2 * MIB)
  t.equal(readSync(fd, buffer, 0, buffer.length, 0), 1001 * 1000)
  writeFileSync(messages, row, { flag: "a" })
  t.equal(readSync(fd, buffer, 0, buffer.length, 1001 * 1000), 1001)
  t.ok(readRequests(f) - before < 15)
  closeSync(fd)
})

t.test("an open file that is renamed or removed stays readable and writable", async t => {
  await withBoth(t, async f => {
    const path = f.at(`${home}/open`)
    writeFileSync(path, "one")
    const fd = openSync(path, "r+")
    renameSync(path, `${path}2`)
    execFileSync("/bin/rm", [`${path}2`])
    writeSync(fd, "two", 0)
    const buffer = Buffer.alloc(10)
    t.equal(buffer.toString("utf8", 0, readSync(fd, buffer, 0, 10, 0)), "two")
    closeSync(fd)
    t.same(await act(0, [["open", path, O.RDONLY]]), ["ENOENT"])
  })
})
