// needs: strace
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import { command, ctx, ctxWithOpenInput, makeTree, manifestCommands, run } from "../fixture/commands/cli.js"

const LINE = /^ctx: [A-Za-z0-9]+: .+: .+\n$/
const root = makeTree()
const env = { CTX_ROOT: root }
const everyCommand = () => [...manifestCommands().flatMap(one => [one.id, ...one.aliases]), "help", "autocomplete"]

/** Runs ctx under strace and gives what it printed and its system calls. */
async function traced(args: string[]) {
  const dir = mkdtempSync(join(tmpdir(), "cortexfs-trace-"))
  try {
    const calls = "trace=connect,sendto,open,openat,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,read"
    const strace = ["strace", "-f", "-qq", "-e", calls, "-e", "signal=none", "-o", join(dir, "out")]
    const ended = await run([...strace, ...command(...args)], env, { timeoutMs: 60_000 })
    return { ...ended, calls: readFileSync(join(dir, "out"), "utf8").split("\n") }
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

const isConnection = (call: string) => /\bconnect\(/.test(call)
const isWrite = (call: string) =>
  (/\bopen(at)?\(.*(O_WRONLY|O_RDWR|O_CREAT)/.test(call) && !/"\/dev\/(null|tty|pts)/.test(call)) ||
  /\b(creat|mkdir|mkdirat|rename|renameat|renameat2|unlink|unlinkat)\(/.test(call)

t.test("ctx.3 (the commands of this release) --help exits 0 and starts no connection", async t => {
  for (const id of everyCommand()) {
    const ended = await traced([...id.split(":"), "--help"])
    t.equal(ended.code, 0, id)
    t.match(ended.stdout, /^USAGE$/m, id)
    t.equal(ended.stderr, "", id)
    t.same(ended.calls.filter(isConnection), [], id)
  }
})

t.test(
  "ctx.3 (the commands of this release) an unknown flag is one usage line, exit 2, no output, no file",
  async t => {
    for (const id of everyCommand()) {
      const ended = await traced([...id.split(":"), "--no-such-flag"])
      t.equal(ended.code, 2, id)
      t.equal(ended.stdout, "", id)
      t.match(ended.stderr, /^ctx: usage: [^\n]+: [^\n]+\n$/, id)
      t.same(ended.calls.filter(isWrite), [], id)
    }
  },
)

t.test("ctx.5 an unknown command is a usage error and reads nothing from the terminal", async t => {
  for (const words of [["nope"], ["latest"], ["provider"], ["provider", "list"], ["agent", "nope"], ["agent:send"]]) {
    const ended = await traced(words)
    t.equal(ended.code, 2, words.join(" "))
    t.equal(ended.stdout, "")
    t.match(ended.stderr, /^ctx: usage: unknown command [^\n]+: [^\n]+\n$/)
    t.same(
      ended.calls.filter(call => /\bread\(0,/.test(call)),
      [],
    )
    t.equal((await ctxWithOpenInput(words)).code, 2)
  }
})

t.test("every verb of the list of things that are no commands is a usage error", async t => {
  const verbs = ["latest", "mcp", "workflow", "memory", "vector", "cluster", "provider", "auth", "channel", "update"]
  for (const verb of verbs) t.equal((await ctx([verb])).code, 2, verb)
})

t.test("the nearest name is the hint for a mistyped command, topic, verb or flag", async t => {
  const cases: [string[], string][] = [
    [["statsu"], "use ctx status"],
    [["agnt", "send"], "use ctx agent"],
    [["agent", "sned"], "use ctx agent send"],
    [["agent", "session", "lst"], "use ctx agent session list"],
    [["ls", "--jsn"], "use --json"],
    [["agent", "send", "coder", "--sesion", "a", "x"], "use --session"],
    [["--versoin"], "use --version"],
    [["zzzzzzzz"], "see ctx --help"],
    [["ls", "--zzzzzzzz"], "see ctx ls --help"],
  ]
  for (const [words, hint] of cases) t.ok((await ctx(words)).stderr.endsWith(`: ${hint}\n`), words.join(" "))
})

const FAILING: { args: string[]; exit: number; code: string; env?: Record<string, string> }[] = [
  { args: ["ls", "nope"], exit: 1, code: "ENOENT" },
  { args: ["ls", "a", "b"], exit: 2, code: "usage" },
  { args: ["cat"], exit: 2, code: "usage" },
  { args: ["cat", "agent"], exit: 1, code: "EISDIR" },
  { args: ["cat", "status/x"], exit: 1, code: "ENOTDIR" },
  { args: ["which", "tool", "nope"], exit: 1, code: "ENOENT" },
  { args: ["which", "tool", "a/b"], exit: 2, code: "EINVAL" },
  { args: ["which", "space", "x"], exit: 2, code: "usage" },
  { args: ["validate", "x.d"], exit: 2, code: "EINVAL" },
  { args: ["validate", "line\nfeed\u001b[31m"], exit: 2, code: "EINVAL" },
  { args: ["validate", "x".repeat(5000)], exit: 2, code: "EINVAL" },
  { args: ["status"], exit: 69, code: "EHOSTDOWN", env: { CTX_ROOT: "/nonexistent" } },
  { args: ["env"], exit: 2, code: "EINVAL", env: { CTX_ROOT: "rel" } },
  { args: ["root"], exit: 2, code: "EINVAL", env: { CTX_ROOT: "/a/../b" } },
  { args: ["agent", "status", "ghost"], exit: 1, code: "ENOENT" },
  { args: ["agent", "status", "../x"], exit: 2, code: "EINVAL" },
  { args: ["agent", "send", "coder"], exit: 2, code: "usage" },
  { args: ["agent", "send", "ghost", "x"], exit: 1, code: "ENOENT" },
  { args: ["agent", "send", "coder", "--session", "index", "x"], exit: 2, code: "EINVAL" },
  { args: ["agent", "send", "coder", "--session", "a", "--session", "b", "x"], exit: 2, code: "usage" },
  { args: ["agent", "send", "coder", "--temp", "--shared", "lab", "x"], exit: 2, code: "usage" },
  { args: ["agent", "send", "coder", "--steps", "256", "x"], exit: 2, code: "usage" },
  { args: ["agent", "cancel", "coder", "ctx-1"], exit: 2, code: "EINVAL" },
  { args: ["ping", "tool/fs.read"], exit: 13, code: "EACCES" },
  { args: ["ping", "coder"], exit: 2, code: "EINVAL" },
  { args: ["nope"], exit: 2, code: "usage" },
]

t.test(
  "ctx.4 (the commands of this release) a failure is one line, and with --json one object with its exit",
  async t => {
    for (const { args, exit, code, env: more } of FAILING) {
      const name = args.join(" ").slice(0, 60)
      const plain = await ctx(args, { ...env, ...more })
      t.equal(plain.code, exit, name)
      t.equal(plain.stdout, "", name)
      t.match(plain.stderr, LINE, name)
      t.ok(plain.stderr.startsWith(`ctx: ${code}: `), `${name}: ${plain.stderr}`)
      t.ok(Buffer.byteLength(plain.stderr) <= 1024, name)
      t.notMatch(plain.stderr, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f]|\.\n$/, name)
      const json = await ctx([...args, "--json"], { ...env, ...more })
      t.equal(json.code, exit, name)
      t.equal(json.stderr, plain.stderr, name)
      const { error } = JSON.parse(json.stdout)
      t.equal(error.exit, exit, name)
      t.equal(error.code, code, name)
      t.match(error.what, /\S/, name)
      t.match(error.hint, /\S/, name)
      t.match(json.stdout, /^\{\n {2}"error": \{\n {4}"code"/, name)
    }
  },
)

t.test("ctx.43 (the commands of this release) commands that do not name stdin end while it stays open", async t => {
  const lines = [["status"], ["abi"], ["root"], ["env"], ["ls"], ["cat", "status"], ["which", "tool", "fs.read"]]
  lines.push(["validate", "x"], ["agent", "status", "coder"], ["agent", "send", "coder", "x"], ["ping", "agent/coder"])
  lines.push(["agent", "resume", "coder"], ["agent", "cancel", "coder"], ["agent", "session", "list", "coder"])
  lines.push(["agent", "history", "coder"], ["agent", "output", "coder"], ["agent", "trajectory", "coder"])
  lines.push(
    ["agent", "session", "verify", "coder"],
    ["bootstrap", "--check", root],
    ["storage", "update", "/nonexistent/x"],
  )
  lines.push(["agent", "session", "gc"], ["agent", "session", "archive", "coder", "x"])
  lines.push(["agent", "ps"], ["agent", "children", "coder"], ["agent", "stop", "reviewer"])
  lines.push(["storage", "list", "/nonexistent/storage"], ["storage", "verify", "/nonexistent/storage"])
  lines.push(["agent", "send", "coder"], ["cat"], ["which"], ["validate"], ["agent", "history"], ["ping"])
  for (const args of lines) {
    const ended = await ctxWithOpenInput(args, env)
    t.equal(ended.signal, null, args.join(" "))
    t.type(ended.code, "number")
  }
  const covered = new Set(lines.map(args => args.join(" ")))
  const missing = manifestCommands()
    .map(one => one.id.replaceAll(":", " "))
    .filter(id => id !== "connect" && ![...covered].some(line => line === id || line.startsWith(`${id} `)))
  t.same(missing, [])
})

t.test("ctx.42 a closed stdout ends a command silently", async t => {
  const big = join(root, "shared/many")
  const { mkdirSync, writeFileSync } = await import("node:fs")
  mkdirSync(big)
  for (let i = 0; i < 3000; i++) writeFileSync(join(big, `${"n".repeat(60)}${i}`), "")
  writeFileSync(join(root, "shared/bytes"), Buffer.alloc(4_000_000, "x\n"))
  t.equal(readdirSync(big).length, 3000)
  for (const args of [
    "ls",
    "ls shared/many",
    "ls shared/many --json",
    "cat shared/bytes",
    "cat shared/bytes --json",
    "--help",
  ]) {
    const script = `${process.execPath} ${command()[1]} ${args} | head -c 1 >/dev/null; echo "\${PIPESTATUS[0]}"`
    const { stdout, stderr } = await run(["bash", "-c", script], env)
    t.equal(stdout, "0\n", args)
    t.equal(stderr, "", args)
  }
})
