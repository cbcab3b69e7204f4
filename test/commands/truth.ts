// needs: root fuse bwrap
import { chmodSync, readFileSync, renameSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { ctxIn, script, startCoder } from "../fixture/commands/stack.js"
import { currentGeneration, OTHER, OWNER } from "../harness/product.js"

// What ctx says when something is missing or broken: the true reason, the thing by its name, a hint that leads on.
const { stack } = await startCoder()
t.teardown(() => stack.stop())
const dir = join(stack.dataRoot, `home/${OWNER}/agent/coder/session`)
const listOf = (text: string) => text.split("\n").filter(line => line !== "")
const fails = async (args: string[], code: number, line: RegExp) => {
  const ended = await ctxIn(stack, args)
  t.equal(ended.code, code, args.join(" "))
  t.match(ended.stderr, line)
  t.equal(listOf(ended.stderr).length, 1, ended.stderr)
}

for (const name of ["a", "b", "c"]) await ctxIn(stack, ["send", "coder", "--session", name, script({ say: name })])

t.test("session list shows the others and the one that cannot be read as error, names it and exits by it", async t => {
  const state = join(dir, "b/state")
  const kept = readFileSync(state)
  writeFileSync(state, "x".repeat(70_000))
  const ended = await ctxIn(stack, ["agent", "session", "list", "coder"])
  t.equal(ended.code, 1)
  t.match(ended.stderr, /^ctx: EIO: session b cannot be read: .*: ctx agent session verify coder --all\n$/)
  t.same(
    listOf(ended.stdout).map(line => line.split("\t").slice(0, 4)),
    [
      ["*", "c", "other", "done"],
      ["-", "b", "other", "error"],
      ["-", "a", "other", "done"],
    ],
  )
  writeFileSync(state, kept)
})

t.test("session list: a bad body of the list is EINVAL, a name without a session is skipped", async t => {
  const list = join(dir, "index/list")
  const kept = readFileSync(list)
  for (const junk of ["not a name\n", "a", "a\na\n", "\0\n"]) {
    writeFileSync(list, junk)
    await fails(["agent", "session", "list", "coder"], 2, /^ctx: EINVAL: index\/list has a bad body: /)
  }
  writeFileSync(list, `ghost\n${kept}`)
  const ended = await ctxIn(stack, ["agent", "session", "list", "coder"])
  t.same([ended.code, ended.stderr, listOf(ended.stdout).length], [0, "", 3])
  writeFileSync(list, kept)
})

t.test("a reader of a session without one of its history files is EIO and names session and file", async () => {
  for (const file of ["messages.jsonl", "events.jsonl"]) {
    renameSync(join(dir, "a", file), join(dir, "kept"))
    for (const words of [["history"], ["trajectory"]]) {
      const line = new RegExp(`^ctx: EIO: session a: ${file} is missing: ctx agent session verify coder a\n$`)
      await fails(["agent", ...words, "coder", "--session", "a"], 1, line)
    }
    renameSync(join(dir, "kept"), join(dir, "a", file))
  }
  chmodSync(join(dir, "a/messages.jsonl"), 0)
  const denied = /^ctx: EACCES: session a: messages\.jsonl cannot be read: act as the owner of agent\/coder\n$/
  await fails(["agent", "history", "coder", "--session", "a"], 13, denied)
  chmodSync(join(dir, "a/messages.jsonl"), 0o600)
  for (const word of ["history", "output", "trajectory"]) {
    const line = /^ctx: ENOENT: session none does not exist: ctx agent session list coder\n$/
    await fails(["agent", word, "coder", "--session", "none"], 1, line)
    await fails(
      ["agent", word, "coder", "--shared", "lab"],
      1,
      /^ctx: ENOENT: space lab does not exist: run ctx ls shared\n$/,
    )
  }
})

t.test("a socket is EINVAL for cat, a workspace that is no directory ENOTDIR, an empty one a usage error", async () => {
  await fails(["cat", "agent/coder.sock"], 2, /^ctx: EINVAL: \S+\/agent\/coder\.sock is no plain file: /)
  await fails(
    ["send", "coder", "--workspace", "/etc/passwd", "x"],
    1,
    /^ctx: ENOTDIR: workspace \/etc\/passwd is not a directory: /,
  )
  await fails(["send", "coder", "--workspace", "", "x"], 2, /^ctx: usage: --workspace is empty: /)
})

t.test("ordinary text for debug/script is told that the model plays a JSON script", async () => {
  const line = /^ctx: EINVAL: the model debug\/script plays its input, which must be a JSON script: \{/
  await fails(["send", "coder", "--session", "text", "hello there"], 2, line)
})

t.test("a program that is killed during its model call is EIO, exit 1, not a run that somebody cancelled", async t => {
  const program = join(currentGeneration(stack), "agent/coder")
  const kept = readFileSync(program)
  const step = kept.toString().split("\n")[0]!.slice(2).split(" ")[0]!
  // The real program, killed while its model sleeps.
  const body = `#!/bin/sh\n(sleep 0.7; kill -9 $$) &\nexec ${step} coder "$0" "$@"\n`
  writeFileSync(program, body)
  const ended = await ctxIn(stack, ["send", "coder", "--session", "kill", script({ sleep_ms: 5000 }, { say: "late" })])
  writeFileSync(program, kept)
  t.equal(ended.code, 1, ended.stderr)
  t.match(ended.stderr, /^ctx: EIO: .*: [^\n]+\n$/)
  t.notMatch(ended.stderr, /given up|ECANCELED/)
})

t.test("bootstrap --check as a user whose HOME is no place of his names the directory and what to give", async t => {
  const ended = await ctxIn(stack, ["bootstrap", "--check"], { uid: OTHER })
  t.equal(ended.code, 13)
  t.match(
    ended.stderr,
    /^ctx: EACCES: \/nonexistent\/\.local\/state of uid \d+ cannot be made or entered: .*XDG_STATE_HOME/,
  )
})

t.test("a runtime that cannot make or open a session says which, not the name of a system call", async t => {
  chmodSync(dir, 0o500)
  await fails(["send", "coder", "--session", "fresh", "x"], 13, /^ctx: EACCES: session fresh cannot be made: EACCES: /)
  chmodSync(dir, 0o700)
  chmodSync(join(dir, "c"), 0)
  const closed = await ctxIn(stack, ["send", "coder", "--session", "c", "x"])
  chmodSync(join(dir, "c"), 0o700)
  t.not(closed.code, 0)
  t.notMatch(closed.stderr, /openat2|mkdirat/)
})
