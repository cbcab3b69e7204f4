// needs: root fuse bwrap
import { chmodSync, chownSync, mkdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { Peer } from "../fixture/agent/peer.js"
import { call, fingerprint, type Stage } from "../fixture/agent/stage.js"
import { OTHER, OWNER } from "../harness/product.js"
import { runProgram } from "../harness/program.js"
import { checkProven, checkRefusal, makeWholeStage, rowsOf, type Tap } from "./fixture/kit.js"

const FRAME_MAX = 1_048_576
const INPUT_MAX = 262_144

t.test("bad input on an agent's socket", async t => {
  const stage: Stage = await makeWholeStage(t)
  const { owner, runtime } = stage
  await stage.send([{ say: "first" }], { session: "kept" }).over()

  let before = fingerprint(stage.sessionDir)
  const checkUnchanged = (t: Tap, what: string) => {
    t.strictSame(fingerprint(stage.sessionDir), before, `${what}: the session tree is unchanged`)
  }

  const refuse = async (t: Tap, code: string, what: string, request: object | string | Buffer, peer = owner) => {
    checkRefusal(t, await peer.ask(runtime.socket, request, 40_000), code, what)
    checkUnchanged(t, what)
  }
  const send = (more: object) => ({ op: "send", id: "b-1", session: "bad", input: "x", ...more })
  const padded = (request: object, sizeBytes: number) => {
    const frame = (n: number) => `${JSON.stringify({ ...request, pad: "x".repeat(n) })}\n`
    return frame(sizeBytes - frame(0).length)
  }

  t.test("session.1 (sends) a send of 1 MiB is parsed, one byte more is exactly one EMSGSIZE frame", async t => {
    const whole = padded(send({ op: "dance" }), FRAME_MAX)
    t.equal(whole.length, FRAME_MAX)
    await refuse(t, "EINVAL", "1 MiB with an unknown op", whole)
    await refuse(t, "EMSGSIZE", "1 MiB + 1", padded(send({}), FRAME_MAX + 1))
    await refuse(t, "EMSGSIZE", "8 MiB without LF", Buffer.alloc(8 * FRAME_MAX, 0x78))
    const kept = await owner.ask(
      runtime.socket,
      padded({ op: "send", id: "big", session: "big", input: SAY }, FRAME_MAX),
    )
    t.match(kept.frames.at(-1), { type: "done", status: "ok" }, "a send of 1 MiB runs")
    before = fingerprint(stage.sessionDir)
  })

  t.test("session.1 (the malformed) each is exactly one EINVAL frame and changes nothing", async t => {
    const text = JSON.stringify(send({}))
    const bad: Record<string, string | Buffer> = {
      "an unknown op": '{"op":"dance"}\n',
      "an op that is a number": '{"op":1}\n',
      "an op of the prototype": '{"op":"constructor"}\n',
      "no op": '{"id":"x"}\n',
      "bad JSON": '{"op":"ping"\n',
      "text behind the JSON": '{"op":"ping"} x\n',
      "a comment": '{"op":"ping"/**/}\n',
      NaN: '{"op":"ping","x":NaN}\n',
      "a list": `[${text}]\n`,
      "a string": '"ping"\n',
      null: "null\n",
      "an empty line": "\n",
      "duplicate keys": '{"op":"send","id":"b-1","session":"bad","input":"x","input":"y"}\n',
      "duplicate keys written differently": '{"op":"ping","\\u006fp":"send"}\n',
      "duplicate keys below": '{"op":"ping","x":{"a":1,"a":2}}\n',
      "two lines at once": `${text}\n${text}\n`,
      "an empty line behind": `${text}\n\n`,
      "a byte-order mark": Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), Buffer.from(`${text}\n`)]),
      "no UTF-8": Buffer.concat([Buffer.from('{"op":"ping","x":"'), Buffer.from([0xc3, 0x28]), Buffer.from('"}\n')]),
      "a deep nest": `{"op":"ping","x":${"[".repeat(100_000)}${"]".repeat(100_000)}}\n`,
      "an id that is a number": `${JSON.stringify(send({ id: 1 }))}\n`,
      "an id that is a path": `${JSON.stringify(send({ id: "../x" }))}\n`,
      "no id": `${JSON.stringify(send({ id: undefined }))}\n`,
      "a session that is a path": `${JSON.stringify(send({ session: "../../x" }))}\n`,
      "the session index": `${JSON.stringify(send({ session: "index" }))}\n`,
      "a hidden session": `${JSON.stringify(send({ session: ".x" }))}\n`,
      "an unknown scope": `${JSON.stringify(send({ scope: "all" }))}\n`,
      "an approval first": '{"op":"approve","run":"x","id":"y","decision":"deny"}\n',
    }
    for (const [what, request] of Object.entries(bad)) await refuse(t, "EINVAL", what, request)
  })

  t.test("session.1 (input) empty, with NUL, and over 256 KiB of input are refused, 256 KiB are not", async t => {
    await refuse(t, "EINVAL", "empty input", send({ input: "" }))
    await refuse(t, "EINVAL", "no input", send({ input: undefined }))
    await refuse(t, "EINVAL", "input with NUL", send({ input: "a\0b" }))
    await refuse(t, "EINVAL", "half a surrogate pair", '{"op":"send","id":"b-1","session":"bad","input":"\\ud800"}\n')
    await refuse(t, "EMSGSIZE", "256 KiB + 1", send({ input: "x".repeat(INPUT_MAX + 1) }))
    await refuse(
      t,
      "EMSGSIZE",
      "256 KiB + 1 in bytes, fewer characters",
      send({ input: "é".repeat(INPUT_MAX / 2 + 1) }),
    )
    const input = `${SAY}${" ".repeat(INPUT_MAX - SAY.length)}`
    const run = await owner.ask(runtime.socket, send({ session: "full", input }))
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
    t.equal(rowsOf(stage, "full")[0]!.content, input, "all of it is stored")
    before = fingerprint(stage.sessionDir)
  })

  t.test("a half-closed line without LF is served, one left open is ETIMEDOUT after 5 s", async t => {
    const closed = owner
      .open(runtime.socket)
      .send(JSON.stringify({ op: "ping" }))
      .end()
    await closed.over()
    t.strictSame(
      closed.lines.map(l => l.text),
      ['{"type":"pong"}'],
    )
    const cut = owner.open(runtime.socket).send('{"op":"send","id":"b').end()
    checkRefusal(t, await cut.over(), "EINVAL", "half a line, half-closed")
    const open = owner.open(runtime.socket).send(JSON.stringify(send({})))
    checkRefusal(t, await open.over(), "ETIMEDOUT", "left open")
    const waitedMs = open.lines[0]!.t - open.openedAt
    t.ok(waitedMs > 4_900 && waitedMs < 6_500, `after ${waitedMs} ms`)
    const drip = owner.open(runtime.socket)
    const timer = setInterval(() => drip.send("{"), 200)
    await drip.over()
    clearInterval(timer)
    checkRefusal(t, drip, "ETIMEDOUT", "a byte now and then")
    checkUnchanged(t, "lines left open")
  })

  t.test("session.11 (on a whole stack) each cwd that cannot be is refused by its own code", async t => {
    writeFileSync(join(stage.workspace, "file"), "x")
    mkdirSync(join(stage.workspace, "shut"), { mode: 0o700 })
    chownSync(stage.workspace, OWNER, OWNER)
    chmodSync(join(stage.workspace, "shut"), 0o700)
    const { workspace } = stage
    const cases: [string, string][] = [
      ["/etc", "EACCES"],
      ["/", "EACCES"],
      ["/proc/self/root", "EACCES"],
      [stage.stack.dataRoot, "EACCES"],
      ["/workspace/none", "ENOENT"],
      ["/nowhere/at/all", "ENOENT"],
      ["/workspace/file", "ENOTDIR"],
      ["/workspace/file/below", "ENOTDIR"],
      ["/workspace/shut/below", "EACCES"],
      ["rel", "EINVAL"],
      [".", "EINVAL"],
      ["", "EINVAL"],
      ["/a/../b", "EINVAL"],
      ["/workspace/", "EINVAL"],
      ["/workspace//x", "EINVAL"],
      ["/workspace/./x", "EINVAL"],
      ["/workspace/\0", "EINVAL"],
      [`/workspace/${"x/".repeat(2100)}x`, "EINVAL"],
      [`/workspace/${"x".repeat(300)}`, "ENAMETOOLONG|ENOENT"],
    ]
    for (const [cwd, code] of cases) await refuse(t, `(?:${code})`, `cwd ${cwd.slice(0, 40)}`, send({ cwd, workspace }))
  })

  t.test("a workspace that cannot be is refused by its own code", async t => {
    const cases: [string, string][] = [
      ["/", "EACCES"],
      ["/etc/cortexfs", "EACCES|ENOENT"],
      [stage.stack.dataRoot, "EACCES"],
      [stage.stack.ctx, "EACCES"],
      [`${stage.stack.run}/mount/coder`, "EACCES"],
      ["/root", "EACCES"],
      [`${stage.workspace}/none`, "ENOENT"],
      [`${stage.workspace}/file`, "ENOTDIR|EACCES|ENOENT"],
      ["rel", "EINVAL"],
      [`${stage.workspace}/../..`, "EINVAL"],
    ]
    for (const [workspace, code] of cases) await refuse(t, `(?:${code})`, `workspace ${workspace}`, send({ workspace }))
  })

  t.test(
    "session.2 (peer uid, on a whole stack), security.26 (uid 0 only) other uids are refused, uid 0 may ping",
    async t => {
      const other = await Peer.start(OTHER, stage.stack.prefix)
      const root = await Peer.start(0, stage.stack.prefix)
      t.teardown(() => {
        other.stop()
        root.stop()
      })
      await refuse(t, "EACCES", "ping of another uid", { op: "ping" }, other)
      await refuse(t, "EACCES", "send of another uid", send({}), other)
      await refuse(t, "EACCES", "garbage of another uid", "\0\0\0", other)
      await refuse(t, "EACCES", "8 MiB of another uid", Buffer.alloc(8 * FRAME_MAX, 0x78), other)
      const silent = other.open(runtime.socket)
      checkRefusal(t, await silent.over(), "EACCES", "another uid that says nothing")
      await refuse(t, "EACCES", "send of uid 0", send({}), root)
      t.match((await root.ask(runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
      for (const group of [[OWNER], [0]])
        t.equal(
          (await runProgram(["/usr/bin/stat", "-c", "%a", runtime.socket], { uid: OTHER, gid: OTHER, groups: group }))
            .stdout,
          "666\n",
        )
      checkUnchanged(t, "other uids")
    },
  )

  t.test("clients that break off in every way leave a runtime that serves, and history that is proven", async t => {
    // Never a whole request: end of file would end its frame, and it would run.
    const text = JSON.stringify(send({}))
    for (let i = 0; i < 200; i++) {
      const c = owner.open(runtime.socket)
      if (i % 4 > 0) c.send(text.slice(0, i % text.length))
      c.destroy()
    }
    t.match((await owner.ask(runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
    checkUnchanged(t, "broken off")
    const run = await stage.send([call("fs.list", { path: "." }), { say: "end" }], { session: "kept" }).over()
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
    await checkProven(t, stage, "kept")
    t.notMatch(runtime.stderr(), /internal|TypeError|Unhandled/i)
  })
})

const SAY = JSON.stringify({ schema: "cortexfs.script/v1", steps: [{ say: "taken" }] })
