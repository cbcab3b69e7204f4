import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { command, ctx, makeTree, run, writeFile } from "../fixture/commands/cli.js"
import { makeDir } from "../harness/product.js"
import { cleanEnv } from "../harness/program.js"

const root = makeTree()
const env = { CTX_ROOT: root }
const SEVEN = ["status", "bin", "model", "agent", "tool", "home", "shared"]

t.test("ctx.6 (without a mount) status of an empty or missing root is EHOSTDOWN, 69", async t => {
  for (const path of ["/nonexistent/ctx", makeDir("cortexfs-empty")]) {
    for (const args of [["status"], ["ls"], ["agent", "status", "coder"], ["agent", "send", "coder", "x"]]) {
      const ended = await ctx(args, { CTX_ROOT: path })
      t.equal(ended.code, 69)
      t.equal(ended.stderr, `ctx: EHOSTDOWN: ${path} is not mounted: start its mount or correct CTX_ROOT\n`)
    }
  }
})

t.test("ctx.7 (but for another user's home) ls prints the seven names in order, and escapes names", async t => {
  t.equal((await ctx(["ls"], env)).stdout, SEVEN.map(name => `${name}\n`).join(""))
  const rows = JSON.parse((await ctx(["ls", "--json"], env)).stdout)
  t.same(
    rows.map((row: { name: string }) => row.name),
    SEVEN,
  )
  t.same(
    rows.map((row: { type: string }) => row.type),
    ["file", "dir", "dir", "dir", "dir", "dir", "dir"],
  )
  const dir = join(root, "shared/odd")
  const names = ["a\nb", "tab\tc", "back\\slash", "esc\u001b[31m", "del\u007f", "c1\u0085", "rtl\u202e", "zz", "é"]
  for (const name of names) writeFile(join(dir, name), "")
  writeFileSync(Buffer.concat([Buffer.from(`${dir}/bad`), Buffer.from([0xff, 0xc3])]), "")
  t.equal(
    (await ctx(["ls", "shared/odd"], env)).stdout,
    [
      "a\\nb",
      "back\\\\slash",
      "bad\\xff\\xc3",
      "c1\\x85",
      "del\\x7f",
      "esc\\x1b[31m",
      "rtl\\u{202e}",
      "tab\\tc",
      "zz",
      "é",
      "",
    ].join("\n"),
  )
  const odd = JSON.parse((await ctx(["ls", "shared/odd", "--json"], env)).stdout)
  t.same(odd.map((row: { name: string }) => row.name).sort(), [...names, "bad\\xff\\xc3"].sort())
})

t.test("ls names a file, an alias and a dangling alias, and lists a directory behind a link", async t => {
  mkdirSync(join(root, "shared/lab/data"), { recursive: true })
  writeFile(join(root, "shared/lab/data/f"), "")
  symlinkSync("lab/data", join(root, "shared/link"))
  symlinkSync("nowhere", join(root, "shared/dangling"))
  t.equal((await ctx(["ls", "status"], env)).stdout, "status\n")
  t.equal((await ctx(["ls", "model/main"], env)).stdout, "main\n")
  t.equal((await ctx(["ls", "shared/dangling"], env)).stdout, "dangling\n")
  t.equal((await ctx(["ls", "shared/link"], env)).stdout, "f\n")
  t.equal((await ctx(["ls", `${root}/shared/lab`], env)).stdout, "data\n")
  t.same(JSON.parse((await ctx(["ls", "model/main", "--json"], env)).stdout), [{ name: "main", type: "link" }])
})

t.test("ctx.8 the text of env, evaluated twice, leaves the bin directory once in PATH, for any CTX_ROOT", async t => {
  for (const place of ["/ctx", "/a 'quoted' $(root) `x` \"y\"/ctx"]) {
    const script = 'eval "$(c)"; eval "$(c)"; printf "%s\\n" "$CTX_ROOT" "$CTX_HOME" "$CTX_PATH" "$PATH"'
    const ended = await run(["sh", "-c", `c() { ${command("env").join(" ")}; }; ${script}`], { CTX_ROOT: place })
    const uid = process.getuid!()
    const path = `${place}/bin:${cleanEnv().PATH}`
    t.equal(ended.stderr, "")
    t.same(ended.stdout.split("\n"), [
      place,
      `${place}/home/${uid}`,
      `${place}/tool:${place}/home/${uid}/tool`,
      path,
      "",
    ])
  }
  t.equal(
    (await ctx(["env"])).stdout,
    `export CTX_ROOT='/ctx'
export CTX_HOME='/ctx/home/${process.getuid!()}'
export CTX_PATH='/ctx/tool:/ctx/home/${process.getuid!()}/tool'
case ":$PATH:" in *':/ctx/bin:'*) ;; *) export PATH='/ctx/bin':"$PATH" ;; esac
`,
  )
  t.same(JSON.parse((await ctx(["env", "--json"], { CTX_ROOT: "/r", CTX_HOME: "/h" })).stdout), {
    CTX_ROOT: "/r",
    CTX_HOME: "/h",
    CTX_PATH: "/r/tool:/h/tool",
  })
})

t.test("ctx.9 which finds the first executable plain file of CTX_PATH, and the target of an alias", async t => {
  t.equal((await ctx(["which", "tool", "fs.read"], env)).stdout, `${root}/tool/fs.read\n`)
  const dir = makeDir("cortexfs-path")
  writeFile(join(dir, "a/t"), "", 0o644)
  writeFile(join(dir, "c/t"), "", 0o755)
  mkdirSync(join(dir, "b/t"), { recursive: true })
  mkdirSync(join(dir, "l"))
  symlinkSync("../c/t", join(dir, "l/t"))
  const path = ["rel", `${dir}/missing`, `${dir}/a`, `${dir}/b`, `${dir}/l`, `${dir}/c`].join(":")
  t.equal((await ctx(["which", "tool", "t"], { ...env, CTX_PATH: path })).stdout, `${dir}/c/t\n`)
  const unknown = await ctx(["which", "tool", "nope"], env)
  t.equal(unknown.code, 1)
  t.equal(unknown.stderr, "ctx: ENOENT: tool/nope: run ctx ls tool\n")
  t.same(JSON.parse((await ctx(["which", "model", "main", "--json"], env)).stdout), {
    class: "model",
    name: "main",
    path: `${root}/model/main`,
    target: `${root}/model/debug/guide`,
  })
  t.same(JSON.parse((await ctx(["which", "agent", "coder", "--json"], env)).stdout).target, null)
  t.equal((await ctx(["which", "model", "debug/guide"], env)).stdout, `${root}/model/debug/guide\n`)
})

t.test("ctx.12 validate-name agrees with the name table", async t => {
  const valid = ["a", "fs.read", "a+b_c-1", "9", "sock", "d", "x.D", "x.sock.1", "v1.2", "a".repeat(64)]
  const invalid = ["", ".", "..", ".hidden", "-x", "_x", "+x", "a/b", "a b", "a:b", "x.sock", "x.d", "y.d.sock"]
  invalid.push("a".repeat(65), "é", "a\n", "a\u007f")
  for (const name of valid) {
    for (const verb of ["validate-name", "validate"]) {
      const ended = await ctx([verb, "--", name])
      t.same([ended.code, ended.stdout, ended.stderr], [0, "", ""], name)
    }
  }
  for (const name of invalid) {
    const ended = await ctx(["validate-name", "--", name])
    t.equal(ended.code, 2, JSON.stringify(name))
    t.match(ended.stderr, /^ctx: EINVAL: [^\n]+: [^\n]+\n$/, JSON.stringify(name))
  }
})

t.test("cat gives the bytes, and with --json says how they are encoded", async t => {
  const binary = Buffer.from([0, 1, 2, 0xff, 0xfe, 10])
  writeFile(join(root, "shared/lab/binary"), binary)
  writeFile(join(root, "shared/lab/text"), "é\n\u001b[31m")
  writeFile(join(root, "shared/lab/empty"), "")
  t.equal((await ctx(["cat", "shared/lab/text"], env)).stdout, "é\n\u001b[31m")
  const piped = await run(["sh", "-c", `${command("cat", "shared/lab/binary").join(" ")} | od -An -tx1`], env)
  t.equal(piped.stdout.trim(), "00 01 02 ff fe 0a")
  const path = `${root}/shared/lab/binary`
  const content = binary.toString("base64")
  t.same(JSON.parse((await ctx(["cat", "shared/lab/binary", "--json"], env)).stdout), {
    path,
    bytes: 6,
    encoding: "base64",
    content,
  })
  const text = JSON.parse((await ctx(["cat", "shared/lab/text", "--json"], env)).stdout)
  t.same([text.encoding, text.content, text.bytes], ["utf8", "é\n\u001b[31m", 8])
  t.equal((await ctx(["cat", "shared/lab/empty"], env)).stdout, "")
})

t.test("cat of a FIFO and of a socket without a peer ends at once", async t => {
  await run(["mkfifo", join(root, "shared/lab/fifo")])
  const ended = await ctx(["cat", "shared/lab/fifo"], env, { timeoutMs: 5_000 })
  t.equal(ended.code, 2)
  t.match(ended.stderr, "is no plain file")
})

t.test("status --json has decimals as numbers and - as null", async t => {
  t.same(JSON.parse((await ctx(["status", "--json"], env)).stdout), {
    state: "mounted",
    generation: null,
    tree_version: 1,
    abi: 1,
    version: "0.1.0",
    pid: 1,
    started_at: "2026-01-01T00:00:00.000Z",
    uptime_s: 7,
    requests: 12,
    passthrough: 1,
  })
})

t.test("--version begins with the product and its version", async t => {
  const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8"))
  t.ok((await ctx(["--version"])).stdout.startsWith(`cortexfs/${version} `))
  t.equal((await ctx(["abi"])).stdout, `abi=1\ntree_version=1\nversion=${version}\n`)
})
