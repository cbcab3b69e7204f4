// needs: root fuse bwrap strace
import { readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { ctxIn, script, sessionFile, startCoder, startCtx } from "../fixture/commands/stack.js"

const { stack, runtime } = await startCoder()
t.teardown(() => stack.stop())

const SLOW = script({ say: ["begun\n"] }, { sleep_ms: 20_000 }, { say: ["never"] })
const linesOf = (text: string) => text.split("\n").filter(line => line !== "")
const rowsOf = (session: string) => linesOf(sessionFile(stack, session, "messages.jsonl")).length

t.test("ctx.26 send prints the answer as it comes, replays it, refuses another text and a busy session", async t => {
  const text = script({ say: ["one ", "two"] })
  const first = await ctxIn(stack, ["agent", "send", "coder", "--session", "a", "--id", "m-1", text])
  t.same([first.code, first.stdout, first.stderr], [0, "one two\n", ""])
  const rows = rowsOf("a")
  const events = sessionFile(stack, "a", "events.jsonl")

  const again = await ctxIn(stack, ["agent", "send", "coder", "--session", "a", "--id", "m-1", text])
  t.same([again.code, again.stdout, again.stderr], [0, "one two\n", ""])
  t.equal(rowsOf("a"), rows)
  t.equal(sessionFile(stack, "a", "events.jsonl"), events)

  const other = await ctxIn(stack, ["agent", "send", "coder", "--session", "a", "--id", "m-1", "other"])
  t.equal(other.code, 2)
  t.equal(other.stdout, "")
  t.match(other.stderr, /^ctx: EINVAL: [^\n]+: [^\n]+\n$/)
  t.equal(rowsOf("a"), rows)

  const raw = await ctxIn(stack, ["agent", "send", "coder", "--session", "b", "--raw", text])
  t.equal(raw.code, 0, raw.stderr)
  const frames = linesOf(raw.stdout)
  const isDelta = (line: string) => JSON.parse(line).type === "delta"
  const stored = linesOf(sessionFile(stack, "b", "events.jsonl")).filter(
    line => JSON.parse(line).type !== "session_created",
  )
  t.same(
    frames.filter(line => !isDelta(line)),
    stored,
  )
  t.same(
    frames.filter(isDelta).map(line => JSON.parse(line).text),
    ["one ", "two"],
  )

  const slow = script({ say: ["begun\n"] }, { sleep_ms: 3000 }, { say: ["ended"] })
  const long = startCtx(stack, ["agent", "send", "coder", "--session", "busy", slow])
  await long.until("begun")
  const log = join(stack.dir, "trace")
  const strace = ["strace", "-f", "-qq", "-ttt", "-e", "trace=write,writev,sendto,sendmsg", "-s", "64", "-o", log]
  const refused = await startCtx(stack, ["agent", "send", "coder", "--session", "busy", "x"], strace).ended
  const timeOf = (text: string) => {
    const call = linesOf(readFileSync(log, "utf8")).find(line => line.includes(text))
    return Number(call?.split(/ +/)[1]) * 1000
  }
  const tookMs = timeOf("ctx: EBUSY: ") - timeOf('{\\"op\\":\\"send\\"')
  t.ok(tookMs > 0 && tookMs < 100, `${tookMs} ms from the request to the line`)
  t.equal(refused.code, 69)
  t.match(refused.stderr, /^ctx: EBUSY: .*: add --wait, or ctx agent cancel coder\n$/)
  const waited = await ctxIn(stack, ["agent", "send", "coder", "--session", "busy", "--wait", script({ say: "after" })])
  t.same([waited.code, waited.stdout], [0, "after\n"])
  const ended = await long.ended
  t.same([ended.code, ended.stdout], [0, "begun\nended\n"])
})

t.test("ctx.27 one SIGINT cancels the run, a second leaves at once, SIGTERM leaves and lets the run go on", async t => {
  const running = startCtx(stack, ["agent", "send", "coder", "--session", "int", SLOW])
  await running.until("begun")
  running.child.kill("SIGINT")
  const ended = await running.ended
  t.equal(ended.code, 130)
  t.match(ended.stderr, /^ctx: cancelled: run ctx-[0-9a-f]{32} was cancelled: [^\n]+\n$/)
  t.equal(sessionFile(stack, "int", "state"), "idle\n")
  t.match(linesOf(sessionFile(stack, "int", "events.jsonl")).at(-1), '"type":"done"')
  t.match(linesOf(sessionFile(stack, "int", "events.jsonl")).at(-1), '"status":"cancelled"')

  // A runtime that stands still cannot answer the cancel: the second signal has to end ctx all the same.
  const twice = startCtx(stack, ["agent", "send", "coder", "--session", "twice", SLOW])
  await twice.until("begun")
  runtime.child.kill("SIGSTOP")
  twice.child.kill("SIGINT")
  await new Promise(resolve => setTimeout(resolve, 300))
  t.equal(twice.child.exitCode, null)
  const secondAtMs = performance.now()
  twice.child.kill("SIGINT")
  const left = await twice.ended
  runtime.child.kill("SIGCONT")
  t.equal(left.code, 130)
  t.ok(left.endedAtMs - secondAtMs < 100, `${left.endedAtMs - secondAtMs} ms`)

  const slow = script({ say: ["begun\n"] }, { sleep_ms: 800 }, { say: ["ended"] })
  const term = startCtx(stack, ["agent", "send", "coder", "--session", "term", slow])
  await term.until("begun")
  term.child.kill("SIGTERM")
  t.equal((await term.ended).code, 143)
  t.equal(sessionFile(stack, "term", "state"), "active\n")
  for (let i = 0; i < 200 && sessionFile(stack, "term", "state") !== "done\n"; i++) {
    await new Promise(resolve => setTimeout(resolve, 25))
  }
  t.equal(sessionFile(stack, "term", "state"), "done\n")
})

t.test("a send of an id that is running for another client follows that run to its end", async t => {
  const slow = script({ say: ["begun\n"] }, { sleep_ms: 1200 }, { say: ["ended"] })
  const first = startCtx(stack, ["agent", "send", "coder", "--session", "twin", "--id", "m-9", slow])
  await first.until("begun")
  const second = await ctxIn(stack, ["agent", "send", "coder", "--session", "twin", "--id", "m-9", slow])
  const ended = await first.ended
  t.same([ended.code, ended.stdout], [0, "begun\nended\n"])
  t.same([second.code, second.stdout, second.stderr], [0, "begun\nended\n", ""])
  t.equal(rowsOf("twin"), 2)
})

t.test("text before a tool call stands on a line of its own, and words and stdin are the same input", async t => {
  const text = script(
    { say: "Listing." },
    { call: { name: "fs.list", arguments: { path: "." } } },
    { say: ["There ", "it is."] },
  )
  const words = await ctxIn(stack, ["agent", "send", "coder", "--session", "tool", text])
  t.same([words.code, words.stdout, words.stderr], [0, "Listing.\nThere it is.\n", ""])
  const piped = await ctxIn(stack, ["agent", "send", "coder", "--session", "tool", "-"], { input: text })
  t.same([piped.code, piped.stdout, piped.stderr], [0, "Listing.\nThere it is.\n", ""])
  const json = await ctxIn(stack, ["agent", "send", "coder", "--session", "tool", "--json", text])
  const value = JSON.parse(json.stdout)
  t.same([value.agent, value.session, value.status, value.text], ["coder", "tool", "ok", "There it is."])
})

t.test("the error of a run decides the exit code and is one line; its text stays on stdout", async t => {
  const text = script({ say: "so far" }, { error: { code: "EHOSTDOWN", message: "the provider is away" } })
  const failed = await ctxIn(stack, ["agent", "send", "coder", "--session", "fail", "--id", "m-2", text])
  t.equal(failed.code, 69)
  t.equal(failed.stdout, "so far\n")
  t.match(failed.stderr, /^ctx: EHOSTDOWN: the provider is away: [^\n]+\n$/)
  const again = await ctxIn(stack, ["agent", "send", "coder", "--session", "fail", "--id", "m-2", text])
  t.equal(again.code, 69)
  t.equal(again.stderr, failed.stderr)
})

t.test("input of 256 KiB and one byte is EMSGSIZE, text that is no UTF-8 or holds NUL is EINVAL", async t => {
  const send = (input: string | Buffer) =>
    ctxIn(stack, ["agent", "send", "coder", "--session", "limit", "-"], { input })
  for (const [input, code] of [
    ["x".repeat(262145), "EMSGSIZE"],
    [Buffer.from([0x61, 0xff]), "EINVAL"],
    ["a\0b", "EINVAL"],
    ["", "usage"],
  ] as const) {
    const run = await send(input)
    t.equal(run.code, 2, code)
    t.ok(run.stderr.startsWith(`ctx: ${code}: `), run.stderr)
  }
  t.equal(rowsOf("limit"), 0)
})

t.test("a temp send keeps no session", async t => {
  const run = await ctxIn(stack, ["agent", "send", "coder", "--session", "gone", "--temp", script({ say: "hi" })])
  t.same([run.code, run.stdout, run.stderr], [0, "hi\n", ""])
  t.equal(sessionFile(stack, "gone", "state"), "")
})

t.test("another user's send is EACCES, 13", async t => {
  const run = await ctxIn(stack, ["agent", "send", "coder", "--session", "a", "x"], { uid: 12002 })
  t.equal(run.code, 13)
  t.match(run.stderr, /^ctx: EACCES: [^\n]+: [^\n]+\n$/)
})
