// needs: root bwrap
import { execFileSync } from "node:child_process"
import { mkdirSync, symlinkSync, truncateSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { Place, RUN } from "../fixture/tool/place.js"
import { OWNER } from "../harness/product.js"
import { runProgram } from "../harness/program.js"

const place = await Place.make()
t.teardown(() => place.remove())

const path = { type: "string", minLength: 1, maxLength: 4096 }
place.referenceTool("fs.read", {
  type: "object",
  additionalProperties: false,
  required: ["path"],
  properties: {
    path,
    line: { type: "integer", minimum: 1, default: 1 },
    lines: { type: "integer", minimum: 1, maximum: 5000, default: 2000 },
  },
})
place.referenceTool("fs.list", {
  type: "object",
  additionalProperties: false,
  properties: {
    path: { ...path, default: "." },
    depth: { type: "integer", minimum: 1, maximum: 8, default: 1 },
    hidden: { type: "boolean", default: false },
    limit: { type: "integer", minimum: 1, maximum: 5000, default: 500 },
  },
})
place.allow("fs.read", "fs.list")
const workspaceDir = place.ownDir("ws")
const file = (name: string, data: string | Buffer) => place.own(place.write(join(workspaceDir, name), data))

async function call(name: string, args: object): Promise<string> {
  const { result, error } = await place.call(name, args, { workspaceDir })
  return result?.content ?? `${error?.code}`
}

t.test("policy.3 fs.read gives the lines that are asked for and where to go on", async t => {
  file("three", "one\ntwo\nthree\n")
  file("bare", "one\ntwo")
  file("empty", "")
  t.equal(await call("fs.read", { path: "three" }), "one\ntwo\nthree\n")
  t.equal(await call("fs.read", { path: "three", line: 2, lines: 1 }), "two\n[cut: lines 2-2 of 3; next line=3]\n")
  t.equal(await call("fs.read", { path: "/workspace/bare" }), "one\ntwo")
  t.equal(await call("fs.read", { path: "bare", lines: 1 }), "one\n[cut: lines 1-1 of 2; next line=2]\n")
  t.equal(await call("fs.read", { path: "empty" }), "")
  t.match(await call("fs.read", { path: "empty", line: 2 }), /^ERROR: EINVAL: /)
  t.match(await call("fs.read", { path: "three", line: 9 }), /^ERROR: EINVAL: /)
  symlinkSync("three", join(workspaceDir, "link"))
  t.equal(await call("fs.read", { args: ["link", "3"] }), "three\n", "links are followed; command-line form")
  t.equal(await call("fs.read", { args: ['{"path":"three","line":3}'] }), "three\n")
  t.equal(await call("fs.read", { args: ["three", "x"] }), "EINVAL")
  t.equal(await call("fs.read", { args: ["three", "1", "2", "3"] }), "EINVAL")
})

t.test("policy.4 fs.read of 40 KB stops at 15,360 bytes and goes on without a gap", async t => {
  const lines = Array.from({ length: 512 }, (_, i) => `${String(i).padStart(79, ".")}\n`)
  file("long", lines.join(""))
  let text = ""
  let line = 1
  for (let calls = 0; calls < 5; calls++) {
    const { result } = await place.call("fs.read", { path: "long", line }, { workspaceDir })
    t.equal(result.truncated, false)
    const cut = /\[cut: lines (\d+)-(\d+) of 512; next line=(\d+)\]\n$/.exec(result.content)
    const part = cut ? result.content.slice(0, cut.index) : result.content
    t.ok(Buffer.byteLength(part) <= 15_360)
    text += part
    if (!cut) break
    t.equal(Number(cut[1]), line)
    t.equal(Number(cut[3]), Number(cut[2]) + 1)
    line = Number(cut[3])
  }
  t.equal(text, lines.join(""))
  file("wide", `${"é".repeat(10_000)}\nnext\n`)
  const wide = await call("fs.read", { path: "wide" })
  t.equal(wide, `${"é".repeat(7680)}\n[cut: line 1 at byte 15360 of 20001]\n`)
  t.equal(await call("fs.read", { path: "wide", line: 2 }), "next\n")
})

t.test(
  "policy.5 fs.read of what is no text is EINVAL, a directory EISDIR, a FIFO EINVAL without blocking, 65 MiB EFBIG",
  async t => {
    file("binary", Buffer.from([0xff, 0xfe, 0x41]))
    file("nul", "a\0b")
    mkdirSync(join(workspaceDir, "dir"))
    execFileSync("mkfifo", [join(workspaceDir, "fifo")])
    place.own(join(workspaceDir, "fifo"))
    file("big", "")
    truncateSync(join(workspaceDir, "big"), 65 * 1024 * 1024)
    file("private", "x")
    execFileSync("chmod", ["0", join(workspaceDir, "private")])
    symlinkSync("loop", join(workspaceDir, "loop"))
    const codes: Record<string, string> = {
      binary: "EINVAL",
      nul: "EINVAL",
      dir: "EISDIR",
      fifo: "EINVAL",
      big: "EFBIG",
      none: "ENOENT",
      "three/x": "ENOTDIR",
      private: "EACCES",
      loop: "ELOOP",
      "/dev/null": "EINVAL",
      "/dev/tty": "EINVAL|ENXIO",
    }
    for (const [name, code] of Object.entries(codes)) {
      const content = await call("fs.read", { path: name })
      t.match(content, new RegExp(`^ERROR: (${code}): `), name)
    }
    t.equal(await call("fs.read", { path: "none" }), "ERROR: ENOENT: none")
    t.equal(await call("fs.read", { path: "a\0b" }), "EINVAL")
    t.equal(await call("fs.read", { path: "é".repeat(2049) }), "EINVAL", "limits of strings hold in bytes")
  },
)

t.test("policy.6 fs.list gives type, size and name of each entry in byte order", async t => {
  const dir = join(workspaceDir, "listed")
  mkdirSync(join(dir, "a/deep"), { recursive: true })
  symlinkSync("b", join(dir, "l"))
  for (const [name, data] of [
    ["b", "12345"],
    [".h", ""],
    ["a/in", "1"],
    ["a/deep/er", ""],
  ] as const)
    writeFileSync(join(dir, name), data)
  t.equal(await call("fs.list", { path: "listed" }), "d\t-\ta\nf\t5\tb\nl\t-\tl\n")
  t.equal(await call("fs.list", { path: "listed", hidden: true }), "f\t0\t.h\nd\t-\ta\nf\t5\tb\nl\t-\tl\n")
  t.equal(await call("fs.list", { args: ["listed", "2"] }), "d\t-\ta\nd\t-\ta/deep\nf\t1\ta/in\nf\t5\tb\nl\t-\tl\n")
  t.equal(
    await call("fs.list", { path: "listed", depth: 8 }),
    "d\t-\ta\nd\t-\ta/deep\nf\t0\ta/deep/er\nf\t1\ta/in\nf\t5\tb\nl\t-\tl\n",
  )
  t.equal(await call("fs.list", { path: "listed", limit: 2 }), "d\t-\ta\nf\t5\tb\n[cut: 2 entries shown; more exist]\n")
  t.equal(await call("fs.list", { path: "listed", limit: 3 }), "d\t-\ta\nf\t5\tb\nl\t-\tl\n")
  writeFileSync(join(dir, "n\nl\t"), "")
  writeFileSync(Buffer.concat([Buffer.from(`${dir}/z`), Buffer.from([0xff])]), "")
  execFileSync("mkfifo", [join(dir, "o")])
  t.equal(
    await call("fs.list", { path: "listed" }),
    "d\t-\ta\nf\t5\tb\nl\t-\tl\nf\t0\tn\\nl\\t\no\t-\to\nf\t0\tz\\xff\n",
  )
  execFileSync("chmod", ["700", join(dir, "a")])
  t.match(
    await call("fs.list", { path: "listed", depth: 2 }),
    /\n\[skipped: 1 unreadable directory\]\n$|\n\[skipped: 1 unreadable directories\]\n$/,
  )
  t.equal(await call("fs.list", { path: "none" }), "ERROR: ENOENT: none")
  t.equal(await call("fs.list", { path: "three" }), "ERROR: ENOTDIR: three")
  t.match(await call("fs.list", {}), /^f\t/, "the working directory")
  mkdirSync(join(workspaceDir, "many"))
  for (let i = 0; i < 400; i++)
    writeFileSync(join(workspaceDir, "many", `${"x".repeat(100)}${String(i).padStart(4, "0")}`), "")
  const many = await call("fs.list", { path: "many" })
  const [, shown] = /\n\[cut: (\d+) entries shown; more exist\]\n$/.exec(many)!
  t.equal(many.split("\n").length - 2, Number(shown))
  t.ok(Buffer.byteLength(many.slice(0, many.lastIndexOf("[cut"))) <= 15_360)
})

t.test("a reference tool in cli mode prints text, and its error with the exit code of tools", async t => {
  const run = (args: string[], env: string[] = []) =>
    runProgram(["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", ...env, join(place.source, "tool/fs.read"), ...args], {
      uid: OWNER,
      cwd: workspaceDir,
    })
  t.strictSame(await run(["three", "3"]), { code: 0, signal: null, stdout: "three\n", stderr: "" })
  t.strictSame(await run(["none"]), { code: 1, signal: null, stdout: "", stderr: "fs.read: ENOENT: none\n" })
  t.match(await run([]), { code: 2, stderr: "fs.read: EINVAL: usage: fs.read PATH [LINE [LINES]]\n" })
  t.match(await run(["private"]), { code: 13, stderr: "fs.read: EACCES: private\n" })
  t.match(await run(["x".repeat(4097)]), { code: 1, stderr: /^fs.read: ENAMETOOLONG: / })
  t.match(await run([], ["CTX_TOOL_MODE=native", `CTX_RUN_ID=${RUN}`]), { code: 2, stdout: /"code":"EINVAL"/ })
  t.match(await run([], ["CTX_TOOL_MODE=native"]), { code: 2, stdout: "" })
})
