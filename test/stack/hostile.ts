// needs: root fuse bwrap
import { execFileSync } from "node:child_process"
import {
  chmodSync,
  chownSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs"
import { createServer } from "node:net"
import { join } from "node:path"
import t from "tap"
import { call, fingerprint, type Stage } from "../fixture/agent/stage.js"
import { makeDir, OWNER } from "../harness/product.js"
import { checkProven, checkRefusal, makeWholeStage, rowsOf, type Tap, until } from "./fixture/kit.js"

interface Result {
  status: "ok" | "error"
  content: string
}

t.test("a workspace that wants to do harm", async t => {
  const stage: Stage = await makeWholeStage(t)
  const { workspace, stack } = stage
  const secret = `canary-${process.pid}`
  const outside = makeDir("cortexfs-secret")
  writeFileSync(join(outside, "key"), `${secret}\n`, { mode: 0o644 })
  let sessions = 0

  /** Plays calls in one run; gives their results and asserts that the run goes on to its end. */
  const play = async (t: Tap, calls: [string, object][]): Promise<Result[]> => {
    const session = `h-${++sessions}`
    const run = await stage
      .send([...calls.map(([name, args]) => call(name, args)), { say: "went on" }], { session })
      .over(60_000)
    t.match(run.frames.at(-1), { type: "done", status: "ok" }, "the run goes on to its end")
    t.match(rowsOf(stage, session).at(-1), { role: "assistant", content: [{ text: "went on" }] })
    await checkProven(t, stage, session)
    return rowsOf(stage, session)
      .filter(r => r.role === "tool")
      .map(r => (r.content as Result[])[0]!)
  }
  const read = (path: string): [string, object] => ["fs.read", { path }]

  t.test("links that lead out of the workspace end at the sandbox's own files or nowhere", async t => {
    const links: Record<string, string> = {
      key: join(outside, "key"),
      up: `../../../../../../../../${outside}/key`,
      shadow: "/etc/shadow",
      root: `/proc/1/root${outside}/key`,
      parent: `/proc/self/root/..${outside}/key`,
      data: join(stack.dataRoot, "storage"),
      messages: join(stage.sessionDir, "h-1/messages.jsonl"),
      view: join(stack.run, "mount/coder/status"),
      control: stage.runtime.socket,
      loop: "loop",
    }
    for (const [name, target] of Object.entries(links)) symlinkSync(target, join(workspace, name))
    symlinkSync("/etc/passwd", join(workspace, "passwd"))
    const results = await play(t, Object.keys(links).map(read))
    for (const [i, name] of Object.keys(links).entries()) {
      t.equal(results[i]!.status, "error", name)
      t.match(results[i]!.content, /^ERROR: (ENOENT|EACCES|ELOOP|EINVAL|ENOTDIR|EPERM)/, name)
      t.notMatch(results[i]!.content, secret)
    }
    const [passwd] = await play(t, [read("passwd")])
    t.equal(passwd!.status, "ok")
    t.notMatch(passwd!.content, /^daemon:/m, "the generated one, not the host's")
    t.match(passwd!.content, new RegExp(`:${OWNER}:${OWNER}:`))
    t.not(passwd!.content, readFileSync("/etc/passwd", "utf8"))
    for (const name of Object.keys(links)) rmSync(join(workspace, name))
  })

  t.test("a link swapped in for a directory while tools read it never shows a file of the host", async t => {
    mkdirSync(join(workspace, "flip"))
    writeFileSync(join(workspace, "flip/key"), "harmless\n")
    symlinkSync(outside, join(workspace, "flop"))
    const swap = `import os,ctypes
libc = ctypes.CDLL(None)
print("begun", flush=True)
while True: libc.renameat2(-100, b"${workspace}/flip", -100, b"${workspace}/flop", 2)`
    const { startProgram, stopProgram } = await import("../harness/program.js")
    const swapper = startProgram(["/usr/bin/python3", "-c", swap])
    await new Promise(resolve => swapper.stdout!.once("data", resolve))
    const results = await play(
      t,
      Array.from({ length: 12 }, () => read("flip/key")),
    )
    await stopProgram(swapper, "SIGKILL")
    for (const { content } of results) t.notMatch(content, secret)
    rmSync(join(workspace, "flip"), { recursive: true })
    rmSync(join(workspace, "flop"), { recursive: true })
  })

  t.test(
    "fifos, sockets, devices, directories, unreadable, huge and binary files are error results that come at once",
    async t => {
      execFileSync("mkfifo", [join(workspace, "fifo")])
      execFileSync("mknod", [join(workspace, "zero"), "c", "1", "5"])
      execFileSync("mknod", ["-m", "0666", join(workspace, "disk"), "b", "7", "0"])
      chmodSync(join(workspace, "fifo"), 0o666)
      chmodSync(join(workspace, "zero"), 0o666)
      const server = createServer().listen(join(workspace, "socket"))
      await until("the socket", () => server.listening)
      mkdirSync(join(workspace, "dir"))
      writeFileSync(join(workspace, "shut"), secret, { mode: 0o000 })
      writeFileSync(join(workspace, "huge"), "")
      truncateSync(join(workspace, "huge"), 2 ** 40)
      writeFileSync(join(workspace, "binary"), Buffer.from([0, 1, 2, 0xff]))
      const names = [
        "fifo",
        "zero",
        "disk",
        "socket",
        "dir",
        "shut",
        "huge",
        "binary",
        "none",
        "dir/../../../etc/shadow",
      ]
      const begun = Date.now()
      const results = await play(t, names.map(read))
      t.ok(Date.now() - begun < 20_000, "none of them is waited for")
      const codes = results.map(r => /^ERROR: ([A-Z]+)/.exec(r.content)?.[1])
      t.strictSame(codes.slice(2), [codes[2], "EINVAL", "EISDIR", "EACCES", "EFBIG", "EINVAL", "ENOENT", "ENOENT"])
      t.equal(codes[0], "EINVAL")
      for (const code of codes.slice(1, 3)) t.match(code, /^(EINVAL|EACCES|EPERM)$/)
      for (const r of results) {
        t.equal(r.status, "error")
        t.notMatch(r.content, secret)
      }
      server.close()
    },
  )

  t.test("a file of 60 MiB, lines without end and hostile names give bounded results", async t => {
    writeFileSync(join(workspace, "long"), "y".repeat(60 * 1024 * 1024))
    for (const name of ["a\nb", "\x1b[31mred", "$(id)", "-rf", "{{rules}}", "é".repeat(120)])
      writeFileSync(join(workspace, name), name)
    for (let i = 0; i < 5_000; i++) writeFileSync(join(workspace, `dir/f-${i}`), "")
    const results = await play(t, [
      read("long"),
      ["fs.list", { path: "." }],
      ["fs.list", { path: "dir" }],
      read("$(id)"),
      read("-rf"),
    ])
    for (const r of results) t.equal(r.status, "ok")
    for (const r of results) t.ok(Buffer.byteLength(r.content) <= 16_384, `${Buffer.byteLength(r.content)} bytes`)
    t.match(results[3]!.content, "$(id)")
    t.notMatch(results[1]!.content, "\x1b", "names are printed without control characters")
  })

  t.test("a tool that fills, floods, forks and removes what it can leaves the run and the session alone", async t => {
    stage.tool("flood", "#!/bin/sh\nyes | head -c 8000000\n", { timeout: "20\n" })
    stage.tool("crash", "#!/bin/sh\nkill -SEGV $$\n")
    stage.tool("wreck", "#!/bin/sh\nrm -rf /home/agent/session /ctx/* /workspace/.. 2>/dev/null\nkill -9 -1\n")
    const before = fingerprint(join(stage.sessionDir, "h-1"))
    const results = await play(
      t,
      ["flood", "crash", "wreck"].map(name => [name, { args: ["x"] }]),
    )
    t.ok(results[0]!.content.length <= 1024 * 1024 + 100)
    t.equal(results[1]!.status, "error")
    t.equal(results[2]!.status, "error")
    t.strictSame(fingerprint(join(stage.sessionDir, "h-1")), before)
    t.match(readFileSync(join(stack.run, "mount/coder/status"), "utf8"), "agent=coder")
  })

  t.test(
    "session.30 (links) a workspace or cwd that is a link to a closed place is EACCES, and nothing is recorded",
    async t => {
      const mine = makeDir("cortexfs-links")
      chownSync(mine, OWNER, OWNER)
      const before = fingerprint(stage.sessionDir)
      symlinkSync(stack.dataRoot, join(mine, "data"))
      symlinkSync(outside, join(workspace, "away"))
      checkRefusal(
        t,
        await stage.send([{ say: "x" }], { session: "l", workspace: join(mine, "data") }).over(),
        "EACCES",
      )
      checkRefusal(t, await stage.send([{ say: "x" }], { session: "l", cwd: "/workspace/away" }).over(), "EACCES")
      t.strictSame(fingerprint(stage.sessionDir), before)
      rmSync(mine, { recursive: true })
    },
  )
})
