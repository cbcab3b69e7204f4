// needs: root
// The mount file: grammar and sources.

import assert from "node:assert/strict"
import { execFileSync } from "node:child_process"
import { fstatSync, lstatSync, mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import fc from "fast-check"
import t from "tap"
import {
  checkMount,
  formatMount,
  type MountLine,
  openHostSource,
  openMountSource,
  parseMount,
} from "../../src/policy/mount.js"
import { parsePolicy } from "../../src/policy/policy.js"
import { closeSource, listLinkPlaces, openSource } from "../../src/policy/source.js"

const row = (...fields: string[]) => `${fields.join("\t")}\n`

function verdict(text: string): string {
  const { issue } = checkMount(Buffer.from(text))
  return issue === undefined ? "ok" : issue.why.split(":")[0]!
}

const VECTORS: [number, string[], string][] = [
  [1, [row("/ctx", "/ctx", "ro", "rbind,nosuid,nodev")], "ok"],
  [2, [row("/srv/code", "/workspace", "rw", "bind")], "ok"],
  [3, [row("/srv/data", "/input", "ro", "-")], "ok"],
  [4, [row("/ctx/shared/lab", "/lab", "rw", "noexec")], "ok"],
  [5, [row("srv", "/x", "ro", "-")], "relative"],
  [6, [row("/a", "/b", "rwx", "-")], "mode"],
  [
    7,
    ["bind,rbind", "nodev,nodev", "noatime", "-,nodev", ""].map(options => row("/a", "/b", "ro", options)),
    "options",
  ],
  [8, [row("/a/../b", "/b", "ro", "-"), row("/a/", "/b", "ro", "-"), row("//a", "/b", "ro", "-")], "path"],
  [9, [row("/a", "/b", "ro"), row("/a", "/b", "ro", "-", "-"), "/a /b ro -\n", "# x\n"], "fields"],
  [
    10,
    [
      row("/a", "/", "ro", "-"),
      row("/a", "/etc/x", "ro", "-"),
      row("/a", "/ctx/x", "ro", "-"),
      row("/ctx", "/ctx", "rw", "-"),
    ],
    "target",
  ],
  [11, [row("/a", "/workspace", "ro", "-") + row("/b", "/workspace", "ro", "-")], "target"],
  [12, [row("/run", "/x", "ro", "-"), row("/var", "/x", "ro", "-")], "ok"],
  [13, [row("/nowhere", "/x", "ro", "-")], "ok"],
]

t.test("policy.17 (parser) every vector of section 9 is as printed", async t => {
  for (const [number, files, word] of VECTORS)
    for (const text of files) t.equal(verdict(text), word, `${number}: ${JSON.stringify(text)}`)
})

t.test("every refused target is refused, and so is what lies below it", async t => {
  const refused = "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /etc /proc /sys /dev /run /home/agent/session"
  for (const target of refused.split(" ")) {
    t.equal(verdict(row("/a", target, "ro", "-")), "target", target)
    t.equal(verdict(row("/a", `${target}/x`, "ro", "-")), "target")
    t.equal(verdict(row("/a", `${target}2`, "ro", "-")), "ok", `${target}2`)
  }
  for (const target of ["/", "/home", "/home/agent", "/ctx"])
    t.equal(verdict(row("/a", target, "ro", "-")), "target", target)
  t.equal(verdict(row("/a", "/home/agent/notes", "ro", "-")), "ok")
  t.equal(verdict(row("/ctx/shared/lab", "/ctx/lab", "ro", "-")), "target")
})

t.test("the first word that fails is reported, with its line", async t => {
  t.equal(verdict("srv\n"), "fields")
  t.equal(verdict(row("srv", "/a/", "rwx", "x")), "relative")
  t.equal(verdict(row("/a", "b", "rwx", "x")), "relative")
  t.equal(verdict(row("/a", "/b/", "rwx", "x")), "path")
  t.equal(verdict(row("/a", "/", "rwx", "x")), "mode")
  t.equal(verdict(row("/a", "/", "ro", "x")), "options")
  t.equal(verdict(`${row("/a", "/b", "ro", "-")}/c\t/d\tro\t-`), "fields")
  t.equal(verdict(row(`/${"a".repeat(4096)}`, "/b", "ro", "-")), "path")
  t.equal(verdict(row("/a\0", "/b", "ro", "-")), "path")
  t.throws(() => parseMount(Buffer.from(`\n${row("srv", "/x", "ro", "-")}`), "agent/coder.d/mount"), {
    code: "EINVAL",
    message: "agent/coder.d/mount line 2: relative: source is relative",
  })
})

t.test("a file has at most 64 lines, empty ones not counted", async t => {
  const lines = (n: number) => Array.from({ length: n }, (_, i) => row("/a", `/t${i}`, "ro", "-")).join("\n")
  t.equal(parseMount(Buffer.from(lines(64))).length, 64)
  t.throws(() => parseMount(Buffer.from(lines(65))), { code: "EINVAL" })
  t.same(parseMount(Buffer.alloc(0)), [])
})

t.test("mount files survive format and parse, and no byte string makes the reader throw", async t => {
  const part = fc.stringMatching(/^[a-z]{1,5}$/)
  const path = fc.array(part, { minLength: 1, maxLength: 4 }).map(parts => `/x/${parts.join("/")}`)
  const options = fc
    .subarray(["bind", "nosuid", "nodev", "noexec"] as const)
    .map(list => new Set<"bind">(list as "bind"[]))
  const line = fc.record(
    { source: path, target: path, mode: fc.constantFrom("ro" as const, "rw" as const), options },
    { noNullPrototype: true },
  )
  fc.assert(
    fc.property(fc.uniqueArray(line, { selector: l => l.target, maxLength: 20 }), lines => {
      assert.deepEqual(parseMount(formatMount(lines)), lines)
    }),
  )
  fc.assert(fc.property(fc.uint8Array(), bytes => Array.isArray(checkMount(bytes).lines)))
  t.pass()
})

/** A host with a data tree, a view and a few directories, outside everything that is always closed. */
async function makeHost() {
  const dir = mkdtempSync(join(tmpdir(), "cx-mount-"))
  const view = join(dir, "view")
  for (const path of [
    "code/sub",
    "data/home",
    "view/shared/lab/docs",
    "view/shared/other",
    "view/home/1000/agent/coder/session/s",
    "view/home/1000/agent/coder/data",
    "view/home/1000/agent/worker",
    "view/agent",
  ]) {
    mkdirSync(join(dir, path), { recursive: true })
  }
  writeFileSync(join(dir, "code/file"), "x")
  symlinkSync(join(dir, "code"), join(dir, "tocode"))
  symlinkSync(join(dir, "data"), join(dir, "todata"))
  symlinkSync("/etc", join(view, "shared/lab/out"))
  symlinkSync("../session", join(view, "home/1000/agent/coder/data/history"))
  const policy = parsePolicy(
    Buffer.from("allow coder_t shared:lab read\nallow coder_t shared:lab write\nallow coder_t shared:other read\n"),
  )
  const context = {
    owner: 1000,
    name: "coder",
    subject: "coder_t",
    policy,
    viewDir: view,
    view: await openSource(view, { what: "view" }),
    protectedDirs: [join(dir, "data")],
  }
  const check = async (path: string, mode: "ro" | "rw" = "ro") => {
    const line: MountLine = { source: path, target: "/x", mode, options: new Set() }
    const source = await openMountSource(line, context)
    closeSource(source)
    return source.path
  }
  const remove = () => {
    closeSource(context.view)
    rmSync(dir, { recursive: true })
  }
  return { dir, view, context, check, remove }
}

t.test("a host source is resolved and must exist", async t => {
  const host = await makeHost()
  t.teardown(host.remove)
  t.equal(await host.check(join(host.dir, "code")), join(host.dir, "code"))
  t.equal(await host.check(join(host.dir, "tocode/sub"), "rw"), join(host.dir, "code/sub"))
  await t.rejects(host.check("/nowhere"), { code: "ENOENT" })
  await t.rejects(host.check(join(host.dir, "code/file/x")), { code: "ENOENT" })
})

t.test("a source at, above or below a closed directory is EACCES, also through a link", async t => {
  const host = await makeHost()
  t.teardown(host.remove)
  for (const source of ["/", "/proc", "/proc/self", "/sys", "/dev/shm", "/run", "/var", "/dev"]) {
    await t.rejects(host.check(source), { code: "EACCES" }, source)
  }
  for (const source of ["data", "data/home", "todata", "todata/home", ".", "view", "view/agent"]) {
    await t.rejects(host.check(join(host.dir, source)), { code: "EACCES" }, source)
  }
  await t.rejects(openHostSource("/ctx", host.context), { code: "EACCES" })
})

t.test("of /ctx only itself, allowed spaces and the agent's own home are bound, from its own view", async t => {
  const host = await makeHost()
  t.teardown(host.remove)
  t.equal(await host.check("/ctx"), host.view)
  t.equal(await host.check("/ctx/shared/lab", "rw"), join(host.view, "shared/lab"))
  t.equal(await host.check("/ctx/shared/lab/docs"), join(host.view, "shared/lab/docs"))
  t.equal(await host.check("/ctx/shared/other"), join(host.view, "shared/other"))
  t.equal(await host.check("/ctx/home/1000/agent/coder/data", "rw"), join(host.view, "home/1000/agent/coder/data"))
  const refused: [string, "ro" | "rw"][] = [
    ["/ctx/shared/other", "rw"],
    ["/ctx/shared/third", "ro"],
    ["/ctx/shared", "ro"],
    ["/ctx/agent", "ro"],
    ["/ctx/home/1000", "ro"],
    ["/ctx/home/1000/agent/worker", "ro"],
    ["/ctx/home/1000/agent/coder/session", "ro"],
    ["/ctx/home/1000/agent/coder/session/s", "ro"],
    ["/ctx/home/1000/agent/coder/data/history", "ro"],
    ["/ctx/shared/lab/out", "ro"],
  ]
  for (const [source, mode] of refused)
    await t.rejects(host.check(source, mode), { code: "EACCES" }, `${source} ${mode}`)
  await t.rejects(host.check("/ctx/shared/lab/none"), { code: "ENOENT" })
})

t.test("a source stays the inode it was when it was checked, whatever its path names afterwards", async t => {
  const host = await makeHost()
  t.teardown(host.remove)
  const code = join(host.dir, "code")
  const source = await openHostSource(code, host.context)
  t.teardown(() => closeSource(source))
  renameSync(code, join(host.dir, "moved"))
  symlinkSync("/etc", code)
  const facts = fstatSync(source.fd, { bigint: true })
  t.equal(facts.ino, lstatSync(join(host.dir, "moved"), { bigint: true }).ino)
  t.strictSame([facts.dev, facts.ino], [source.dev, source.ino])
  await t.rejects(openHostSource(code, host.context, { isExact: true }), { code: "EACCES", message: /link/ })
})

t.test("the text of a refusal says what is closed", async t => {
  const host = await makeHost()
  t.teardown(host.remove)
  const texts: Record<string, string> = {
    "/": "mount source /: the root of the host is not mounted",
    "/proc/self": "mount source /proc/self: /proc is not mounted",
    [host.dir]: `mount source ${host.dir}: it holds ${host.view}, which is not mounted`,
  }
  for (const [path, message] of Object.entries(texts)) await t.rejects(host.check(path), { code: "EACCES", message })
})

t.test("another mount of a closed directory, of what holds it or of what lies in it is EACCES", async t => {
  const host = await makeHost()
  const outside = mkdtempSync(join(tmpdir(), "cx-twin-"))
  mkdirSync(join(outside, "at"))
  mkdirSync(join(outside, "in/at"), { recursive: true })
  t.teardown(() => {
    rmSync(outside, { recursive: true })
    host.remove()
  })
  for (const twin of ["data", "data/home", "."]) {
    for (const [target, source] of [
      ["at", "at"],
      ["in/at", "in"],
    ] as const) {
      execFileSync("mount", ["--bind", join(host.dir, twin), join(outside, target)])
      try {
        await t.rejects(host.check(join(outside, source)), { code: "EACCES" }, `${twin} seen from ${source}`)
      } finally {
        execFileSync("umount", [join(outside, target)])
      }
    }
  }
  t.equal(await host.check(join(outside, "in")), join(outside, "in"), "without that mount it is a directory as any")
})

t.test("the places of links on the way to a source are told", async t => {
  const host = await makeHost()
  t.teardown(host.remove)
  const { dir } = host
  symlinkSync("../tocode", join(dir, "data/hop"))
  const path = join(dir, "data/../data/hop/sub")
  const source = await openSource(path, { what: "source", isLinkFollowed: true })
  t.teardown(() => closeSource(source))
  t.strictSame(listLinkPlaces(path, source), [join(dir, "data"), dir])
  t.throws(() => listLinkPlaces(join(dir, "code"), source), { code: "EACCES" })
})
