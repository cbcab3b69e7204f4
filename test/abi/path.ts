// Path constants.
import { readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import * as path from "../../src/abi/path.js"

const EINVAL = { code: "EINVAL" }
const SRC = new URL("../../src/", import.meta.url).pathname

t.test("root.4 root entries have their paths and nothing else has one", async t => {
  t.equal(path.rootEntryPath("model"), "/ctx/model")
  t.same(
    path.ROOT_ENTRIES.map(name => path.rootEntryPath(name)),
    ["/ctx/status", "/ctx/bin", "/ctx/model", "/ctx/agent", "/ctx/tool", "/ctx/home", "/ctx/shared"],
  )
  for (const name of ["channel", "bin/ctx", "", ".", "provider", "toString"]) {
    t.throws(() => path.rootEntryPath(name), EINVAL, name)
  }
  for (const s of ["a", ".tshrc", "x".repeat(255)]) t.equal(path.validateComponent(s), s)
  for (const s of ["", ".", "..", "a/b", "a\0", "x".repeat(256)]) t.throws(() => path.validateComponent(s), EINVAL)
})

const SYSTEM: [string, string][] = [
  [path.CTX_ROOT, "/ctx"],
  [path.agentSocketPath("coder"), "/ctx/agent/coder.sock"],
  [path.systemAgentSocket("coder"), "/run/cortexfs/agent/coder.sock"],
  [path.userAgentSocket(1000, "coder"), "/run/user/1000/cortexfs/agent/coder.sock"],
  [path.modelSocket("local/tiny"), "/run/cortexfs/model/local/tiny.sock"],
  [path.sessionTerminalPath(1000, "coder", "s1"), "/ctx/home/1000/agent/coder/session/s1/terminal/main.sock"],
  [path.terminalSocket(1000, "coder", "s1"), "/run/user/1000/cortexfs/terminal/coder/s1/main.sock"],
  [path.SANDBOX_CONTROL_SOCKET, "/run/cortexfs/control.sock"],
  [path.agentMountPath("coder"), "/run/cortexfs/mount/coder"],
  [path.generationPath("v3-x"), "/var/lib/cortexfs/storage/generations/v3-x"],
  [path.storageCurrent(), "/var/lib/cortexfs/storage/current"],
  [path.durableHomePath(1000), "/var/lib/cortexfs/home/1000"],
  [path.durableSpacePath("lab"), "/var/lib/cortexfs/shared/lab"],
  [path.providerConfigPath("10-acme.json"), "/etc/cortexfs/providers.d/10-acme.json"],
  [path.providerSecretPath("acme", "default"), "/var/lib/cortexfs/secrets/provider/acme/default"],
  [path.limitCachePath(), "/var/lib/cortexfs/cache/model-limits.json"],
  [path.OBJECT_RUNNER, "/usr/bin/cortexfs-object-runner"],
]
const OTHER: [string, string][] = [
  [path.modelPath("acme/large"), "/ctx/model/acme/large"],
  [path.modelPath("acme/large", "limit"), "/ctx/model/acme/large.d/limit"],
  [path.toolPath("fs.read"), "/ctx/tool/fs.read"],
  [path.toolPath("fs.read", "policy"), "/ctx/tool/fs.read.d/policy"],
  [path.agentControlPath("coder"), "/ctx/agent/coder.d"],
  [path.agentControlPath("coder", "meta.json"), "/ctx/agent/coder.d/meta.json"],
  [path.agentSessionsPath(1000, "coder"), "/ctx/home/1000/agent/coder/session"],
  [path.sessionFilePath(0, "coder", "s", "messages.jsonl"), "/ctx/home/0/agent/coder/session/s/messages.jsonl"],
  [path.SANDBOX_ENTER, "/run/cortexfs/enter"],
  [path.SANDBOX_PAYLOAD, "/run/cortexfs/payload"],
]

t.test("root.21 every path of the table is its literal", async t => {
  for (const [composed, literal] of [...SYSTEM, ...OTHER]) t.equal(composed, literal)
})

t.test("root.21 no other module holds a literal of the table", async t => {
  const files = readdirSync(SRC, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile())
    .map(entry => join(entry.parentPath, entry.name).slice(SRC.length))
    .filter(file => file !== "abi/path.ts")
  t.ok(files.length > 10)
  const literals = ["/run/cortexfs", "/var/lib/cortexfs", "/etc/cortexfs"]
  const found = files.filter(file => {
    const text = readFileSync(join(SRC, file), "utf8")
    return literals.some(literal => text.includes(literal))
  })
  t.same(found, [])
})

t.test("root.22 (strings) a plus is escaped in listeners and views and nowhere else", async t => {
  t.equal(path.systemAgentSocket("c++"), "/run/cortexfs/agent/c\\x2b\\x2b.sock")
  t.equal(path.agentMountPath("c++"), "/run/cortexfs/mount/c\\x2b\\x2b")
  t.equal(path.agentSocketPath("c++"), "/ctx/agent/c++.sock")
  t.equal(path.userAgentSocket(1000, "c++"), "/run/user/1000/cortexfs/agent/c\\x2b\\x2b.sock")
  t.equal(path.terminalSocket(1000, "c++", "a+b"), "/run/user/1000/cortexfs/terminal/c++/a+b/main.sock")
})

t.test("paths follow another root, run directory and data root", async t => {
  t.equal(path.agentSocketPath("coder", "/mnt/c"), "/mnt/c/agent/coder.sock")
  t.equal(path.rootEntryPath("tool", "/"), "/tool")
  t.equal(path.systemAgentSocket("coder", "/tmp/r"), "/tmp/r/agent/coder.sock")
  t.equal(path.storageCurrent("/srv/d"), "/srv/d/storage/current")
  t.equal(path.userRunDir(1000), "/run/user/1000/cortexfs")
  t.equal(path.userConfigDir({ env: {}, home: "/home/ann" }), "/home/ann/.config/cortexfs")
  t.equal(path.userStateDir({ env: { XDG_STATE_HOME: "/x" }, home: "/home/ann" }), "/x/cortexfs")
  t.equal(path.userStateDir({ env: { XDG_STATE_HOME: "" }, home: "/home/ann" }), "/home/ann/.local/state/cortexfs")
})

t.test("a listener path has at most 107 bytes", async t => {
  const name = "a".repeat(64)
  const room = 107 - `/agent/${name}.sock`.length
  t.equal(path.systemAgentSocket(name, `/${"r".repeat(room - 1)}`).length, 107)
  t.throws(() => path.systemAgentSocket(name, `/${"r".repeat(room)}`), { code: "ENAMETOOLONG" })
  t.throws(() => path.systemAgentSocket("+".padStart(64, "a").replaceAll("a", "a+").slice(0, 64)), {
    code: "ENAMETOOLONG",
  })
  t.throws(() => path.terminalSocket(1000, name, "s".repeat(64)), { code: "ENAMETOOLONG" })
  t.throws(() => path.modelSocket(`${name}/${name}`), { code: "ENAMETOOLONG" })
})

t.test("a bad argument of any path is EINVAL", async t => {
  const bad = [
    () => path.modelPath("main"),
    () => path.toolPath("../x"),
    () => path.toolPath("x", "a/b"),
    () => path.agentSocketPath("x.sock"),
    () => path.agentControlPath("x", ".."),
    () => path.agentSessionsPath("01000", "x"),
    () => path.sessionFilePath(1000, "x", "index"),
    () => path.sessionFilePath(1000, "x", "s", "..", "y"),
    () => path.systemAgentSocket("x", "run"),
    () => path.agentMountPath("x", "/run/../etc"),
    () => path.generationPath("../x"),
    () => path.providerSecretPath("acme", "a/b"),
    () => path.providerConfigPath("../x.json"),
    () => path.userStateDir({ env: { XDG_STATE_HOME: "rel" }, home: "/h" }),
  ]
  for (const make of bad) t.throws(make, EINVAL, String(make))
})

t.test("the data root of a generation lies three levels up", async t => {
  t.same(path.dataRootOf("/srv/d/storage/generations/v1-x"), { dataRoot: "/srv/d", generation: "v1-x" })
  t.same(path.dataRootOf("/storage/generations/v1-x"), { dataRoot: "/", generation: "v1-x" })
  for (const plain of [
    "/srv/d",
    "/srv/storage/generations",
    "/srv/d/storage/generations/.stage-x",
    "/srv/generations/storage/v1",
  ]) {
    t.same(path.dataRootOf(plain), { dataRoot: plain, generation: "-" })
  }
})

t.test("an entry of a class directory names an object and its part", async t => {
  t.same(path.parseEntry("coder"), { name: "coder", part: "executable" })
  t.same(path.parseEntry("coder.d"), { name: "coder", part: "controls" })
  t.same(path.parseEntry("coder.sock"), { name: "coder", part: "socket" })
  for (const s of [".d", ".sock", "x.d.d", "x.sock.d", ".hidden", ""]) t.equal(path.parseEntry(s), undefined)
})

t.test("the home of a user may be the root directory or end in a slash", async t => {
  for (const [home, dir] of [
    ["/", "/.config/cortexfs"],
    ["/home/ann/", "/home/ann/.config/cortexfs"],
  ] as const)
    t.equal(path.userConfigDir({ home, env: {} }), dir)
})
