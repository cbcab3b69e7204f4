import { join } from "node:path"
import t from "tap"
import { command, ctx, makeTree, manifestCommands, run, writeFile } from "../fixture/commands/cli.js"

const root = makeTree()
const ESC = "\u001b"

/** Runs ctx on a terminal of its own; the terminal's CR LF is made LF again. */
async function onTerminal(args: string[], more: Record<string, string> = {}) {
  const line = command(...args)
    .map(word => `'${word}'`)
    .join(" ")
  const env = { CTX_ROOT: root, TERM: "xterm-256color", ...more }
  const ended = await run(["script", "-qec", line, "/dev/null"], env)
  return { ...ended, stdout: ended.stdout.replaceAll("\r\n", "\n") }
}

t.test("reading commands print the same bytes on a terminal and in a pipe for plain ASCII", async t => {
  const lines = [["status"], ["ls"], ["abi"], ["env"], ["root"], ["cat", "status"], ["agent", "status", "coder"]]
  for (const args of lines) {
    const piped = await ctx(args, { CTX_ROOT: root })
    const shown = await onTerminal(args)
    t.equal(shown.stdout, piped.stdout, args.join(" "))
    t.notMatch(shown.stdout, ESC, args.join(" "))
  }
})

t.test("cat on a terminal escapes control characters but LF and TAB, also across a chunk", async t => {
  writeFile(join(root, "shared/odd"), `a\tb\nc${ESC}[31m\u0007\u009b\u202e\\ é\n`)
  t.equal((await onTerminal(["cat", "shared/odd"])).stdout, "a\tb\nc\\x1b[31m\\x07\\x9b\\u{202e}\\ é\n")
  writeFile(join(root, "shared/long"), `${"x".repeat(65535)}é${ESC}\n`)
  t.equal((await onTerminal(["cat", "shared/long"])).stdout, `${"x".repeat(65535)}é\\x1b\n`)
})

t.test("help is coloured on a terminal only, in headings only, and not with NO_COLOR or a dumb terminal", async t => {
  const plain = (await ctx(["ls", "--help"])).stdout
  t.notMatch(plain, ESC)
  t.equal((await ctx(["ls", "--help"], { FORCE_COLOR: "1", CLICOLOR_FORCE: "1" })).stdout, plain)
  const plainly: Record<string, string>[] = [{ NO_COLOR: "" }, { NO_COLOR: "1" }, { TERM: "dumb" }]
  for (const more of plainly) {
    t.equal((await onTerminal(["ls", "--help"], more)).stdout, plain, JSON.stringify(more))
  }
  const sequences = async (more: Record<string, string>) => {
    const shown = (await onTerminal(["ls", "--help"], more)).stdout
    t.equal(shown.replaceAll(/\u001b\[[0-9;]*m/g, ""), plain)
    return [...new Set(shown.match(/\u001b\[[0-9;]*m[A-Z]*/g))]
  }
  const heads = ["USAGE", "ARGUMENTS", "FLAGS", "EXAMPLES", "DESCRIPTION"]
  const expected = (style: string) => [
    `${ESC}[${style}m${heads[0]}`,
    `${ESC}[0m`,
    ...heads.slice(1).map(h => `${ESC}[${style}m${h}`),
  ]
  t.same(await sequences({}), expected("1;38;5;121"))
  t.same(await sequences({ COLORFGBG: "15;0" }), expected("1;38;5;121"))
  t.same(await sequences({ COLORFGBG: "0;15" }), expected("1;38;5;29"))
  t.same(await sequences({ TERM: "linux" }), expected("1;32"))
})

t.test("the help of every command is at most 80 columns wide and has its sections in order", async t => {
  const order = ["USAGE", "ARGUMENTS", "FLAGS", "EXAMPLES", "DESCRIPTION", "ALIASES"]
  for (const { id } of manifestCommands()) {
    const { stdout } = await ctx([...id.split(":"), "--help"], { COLUMNS: "200" })
    for (const line of stdout.split("\n")) t.ok(line.length <= 80, `${id}: ${line}`)
    const heads = [...stdout.matchAll(/^[A-Z]+$/gm)].map(match => match[0])
    t.same(
      heads,
      order.filter(head => heads.includes(head)),
      id,
    )
    t.ok(heads.includes("USAGE") && heads.includes("EXAMPLES"), id)
  }
})

t.test("help of words, of a topic and of the program exit 0, of an unknown word 2", async t => {
  for (const args of [
    [],
    ["help"],
    ["--help"],
    ["help", "ls"],
    ["help", "agent"],
    ["agent"],
    ["help", "agent", "send"],
  ]) {
    const ended = await ctx(args)
    t.same([ended.code, ended.stderr], [0, ""], args.join(" "))
    t.match(ended.stdout, /^USAGE$/m, args.join(" "))
  }
  t.equal((await ctx(["help", "nope"])).code, 2)
})
