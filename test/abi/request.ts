// The first frame of a connection.
import { readFileSync } from "node:fs"
import fc from "fast-check"
import t, { type Test } from "tap"
import { CtxError } from "../../src/abi/error.js"
import { OPS, parseRequest, type SendRequest } from "../../src/abi/frame.js"
import { ARG_MAX, FRAME_MAX, INPUT_MAX } from "../../src/abi/limit.js"

const EINVAL = { code: "EINVAL" }
const EMSGSIZE = { code: "EMSGSIZE" }
const RUN = "ctx-7f3a90c1d2e4455b8a6c0f1e2d3b4a59"
const line = (o: unknown) => Buffer.from(`${JSON.stringify(o)}\n`)
const parse = (o: unknown) => parseRequest(line(o))
const send = (more: object = {}) => parse({ op: "send", id: "m-1", input: "x", ...more }) as SendRequest
const refuse = (t: Test, o: unknown, error: { code: string } = EINVAL) =>
  t.throws(() => parse(o), error, JSON.stringify(o).slice(0, 200))

t.test("session.1 (parser) a ping is a request with or without its LF and with unknown fields", async t => {
  t.same(parseRequest(Buffer.from('{"op":"ping"}\n')), { op: "ping" })
  t.same(parseRequest(Buffer.from('{"op":"ping"}')), { op: "ping" })
  t.same(parse({ op: "ping", extra: { a: [1] }, session: 7 }), { op: "ping" })
  t.same(send({ extra: 1, __proto__x: null }), send())
})

t.test("session.1 (parser) a frame of 1,048,576 bytes is parsed and one byte more is EMSGSIZE", async t => {
  const head = '{"op":"ping","pad":"'
  const frame = (size: number, end: string) =>
    Buffer.from(`${head}${"x".repeat(size - head.length - 2 - end.length)}"}${end}`)
  for (const end of ["\n", ""]) {
    t.equal(frame(FRAME_MAX, end).length, FRAME_MAX)
    t.same(parseRequest(frame(FRAME_MAX, end)), { op: "ping" })
    t.throws(() => parseRequest(frame(FRAME_MAX + 1, end)), EMSGSIZE)
  }
  t.throws(() => parseRequest(Buffer.alloc(FRAME_MAX + 1)), EMSGSIZE)
})

t.test("session.1 (parser) what is no request is EINVAL", async t => {
  const texts = [
    '{"op":"dance"}',
    "[]",
    '{"op":"send","id":1,"input":"x"}',
    '{"op":"ping"}\n{"op":"ping"}\n',
    '{"op":"ping"}\n{',
    '{"op":"ping"}\n\n',
    "",
    "\n",
    " \n",
    "null",
    '"ping"',
    "{}",
    '{"op":null}',
    '{"op":"ping","op":"ping"}',
    '{"op":"send","id":"m","input":"x","\\u0069d":"m"}',
    '{"op":"ping"',
    "{op:'ping'}",
    '{"op":"approve","run":"x","id":"c","decision":"deny"}',
    `{"op":"ping","deep":${"[".repeat(100)}${"]".repeat(100)}}`,
  ]
  for (const text of texts) t.throws(() => parseRequest(Buffer.from(text)), EINVAL, text)
  t.throws(() => parseRequest(Buffer.from([0x7b, 0xff, 0x7d])), EINVAL)
  t.throws(() => parseRequest(Buffer.from('\ufeff{"op":"ping"}')), EINVAL)
})

t.test("the examples of the specification are requests", async t => {
  const text = readFileSync(new URL("../../spec/session-abi.md", import.meta.url), "utf8")
  const section = text.slice(text.indexOf("## 4. Requests"), text.indexOf("## 5."))
  const lines = section.split("\n").filter(l => l.startsWith('{"op":'))
  t.equal(lines.length, 8)
  t.same(
    lines.map(l => parseRequest(Buffer.from(`${l}\n`)).op),
    ["send", "send", "tsh", "resume", "cancel", "answer", "stop", "ping"],
  )
})

t.test("defaults are filled in", async t => {
  t.match(send(), { session: "default", scope: "private", suspendable: false, wait: false })
  t.match(parse({ op: "resume" }), { session: "default", scope: "private", follow: false })
  t.match(parse({ op: "tsh", id: "a", args: ["tools"] }), { session: "default", wait: false })
  t.equal((parse({ op: "cancel", id: RUN }) as { session?: string }).session, undefined)
  t.match(parse({ op: "status", session: "s", scope: "shared", shared: "lab" }), { session: "s", shared: "lab" })
})

t.test("required fields are required", async t => {
  const good: Record<(typeof OPS)[number], Record<string, unknown>> = {
    send: { id: "m", input: "x" },
    tsh: { id: "m", args: ["tools"] },
    resume: {},
    cancel: { id: RUN },
    status: {},
    answer: { id: "m", pending: `${RUN}.c-2`, decision: "deny" },
    reset: {},
    stop: { agent: "coder" },
    ping: {},
  }
  for (const op of OPS) {
    t.equal(parse({ op, ...good[op] }).op, op)
    for (const key of Object.keys(good[op])) {
      refuse(t, { op, ...good[op], [key]: undefined })
      for (const value of [null, 7, true, {}, []]) refuse(t, { op, ...good[op], [key]: value })
    }
  }
})

t.test("ids, sessions and spaces are names", async t => {
  for (const session of ["list", "current", "by-cwd", "a+b"]) t.equal(send({ session }).session, session)
  for (const session of ["index", "", ".x", "a/b", "x.d", "é", "a".repeat(65), null, 1])
    refuse(t, { op: "send", id: "m", input: "x", session })
  for (const id of ["", "x.sock", "a b", "a".repeat(65)]) refuse(t, { op: "send", id, input: "x" })
  for (const id of ["r1", "m-1", RUN.toUpperCase(), `${RUN}0`]) refuse(t, { op: "cancel", id })
  refuse(t, { op: "stop", agent: "x.d" })
})

t.test("an input has 1 to 262,144 bytes of UTF-8 without NUL", async t => {
  t.equal(send({ input: "é".repeat(INPUT_MAX / 2) }).input.length, INPUT_MAX / 2)
  refuse(t, { op: "send", id: "m", input: "x".repeat(INPUT_MAX + 1) }, EMSGSIZE)
  refuse(t, { op: "send", id: "m", input: `${"é".repeat(INPUT_MAX / 2)}x` }, EMSGSIZE)
  for (const input of ["", "a\0b", "\ud800", 1, null, ["x"]]) refuse(t, { op: "send", id: "m", input })
})

t.test("arguments of tsh are 1 to 64 strings of at most 65,536 bytes", async t => {
  const tsh = (args: unknown) => ({ op: "tsh", id: "m", args })
  t.match(parse(tsh(["load", "fs.read", ""])), { args: ["load", "fs.read", ""] })
  t.match(parse(tsh(Array(64).fill("x"))), { op: "tsh" })
  t.match(parse(tsh(["x".repeat(ARG_MAX)])), { op: "tsh" })
  for (const args of [[], Array(65).fill("x"), ["x".repeat(ARG_MAX + 1)], ["a\0"], [1], "x", {}]) refuse(t, tsh(args))
})

t.test("session.12 (fields) a space goes with scope shared and with no other", async t => {
  t.match(send({ scope: "shared", shared: "lab" }), { scope: "shared", shared: "lab" })
  t.equal(send({ scope: "temp" }).scope, "temp")
  for (const more of [
    { scope: "shared" },
    { shared: "lab" },
    { scope: "private", shared: "lab" },
    { scope: "temp", shared: "lab" },
  ]) {
    t.throws(() => send(more), EINVAL)
  }
  t.throws(() => send({ scope: "shared", shared: "x.d" }), EINVAL)
  t.throws(() => send({ scope: "public" }), EINVAL)
  for (const op of ["resume", "status", "reset"]) refuse(t, { op, scope: "temp" })
  refuse(t, { op: "cancel", id: RUN, scope: "temp" })
})

t.test("session.11 (grammar) a cwd that is no path is EINVAL", async t => {
  for (const cwd of ["/", "/workspace", "/workspace/专案"]) t.equal(send({ cwd }).cwd, cwd)
  for (const cwd of ["rel", "/a/../b", "/workspace/", "", "//a", "/a/./b", "/a\0", `/${"a".repeat(4096)}`, 1]) {
    t.throws(() => send({ cwd }), EINVAL)
    t.throws(() => send({ workspace: cwd }), EINVAL)
  }
})

t.test("the other fields of a send keep their rules", async t => {
  const window = "0123456789abcdef".repeat(2)
  const uuid = "01234567-89ab-cdef-0123-456789abcdef"
  const parent = { agent: "coder", session: "s", run: RUN }
  const all = { window, suspendable: true, wait: true, steps: 255, title: "😀".repeat(200), hash: "abc", uuid }
  t.match(send({ ...all, parent: { ...parent, x: 1 } }), all)
  t.strictSame(send({ parent: { ...parent, x: 1 } }).parent, parent)
  const bad = [
    { window: window.toUpperCase() },
    { window: "x" },
    { suspendable: "yes" },
    { suspendable: true, scope: "temp" },
    { wait: 1 },
    { wait: null },
    { steps: 0 },
    { steps: 256 },
    { steps: 1.5 },
    { steps: "1" },
    { title: "" },
    { title: "a\nb" },
    { title: "x".repeat(201) },
    { hash: "a/b" },
    { uuid: uuid.toUpperCase() },
    { parent: { ...parent, run: "r1" } },
    { parent: { agent: "a", session: "s" } },
    { parent: "coder" },
  ]
  for (const more of bad) t.throws(() => send(more), EINVAL, JSON.stringify(more))
})

t.test("session.10 (parser) resume takes a sequence number or an event id", async t => {
  for (const after of [0, 7, Number.MAX_SAFE_INTEGER, "c-1", RUN]) t.match(parse({ op: "resume", after }), { after })
  for (const after of [-1, 1.5, 2 ** 53, "", "a b", true, null, []]) refuse(t, { op: "resume", after })
  refuse(t, { op: "resume", follow: "yes" })
})

t.test("an answer has answers or a decision, and a pending id", async t => {
  const base = { op: "answer", id: "m", pending: `${RUN}.c-2` }
  const answers = [
    { id: "q1", value: "yes" },
    { id: "q2", value: ["a", ""] },
  ]
  t.match(parse({ ...base, decision: "allow_once" }), { decision: "allow_once", answers: undefined })
  t.match(parse({ ...base, answers }), { answers })
  for (const more of [
    {},
    { answers, decision: "deny" },
    { decision: "allow" },
    { answers: [] },
    { answers: [{ id: "q1" }] },
    { answers: [{ id: "q 1", value: "x" }] },
    { answers: [{ id: "q1", value: [1] }] },
    { answers: [{ id: "q1", value: "a\0" }] },
  ]) {
    refuse(t, { ...base, ...more })
  }
  for (const pending of [RUN, `${RUN}.`, "c-2", `x.${RUN}`, 1]) refuse(t, { ...base, decision: "deny", pending })
})

t.test("no byte string makes the parser throw anything but EINVAL and EMSGSIZE", async t => {
  const value = fc.oneof(fc.jsonValue({ maxDepth: 2 }), fc.constantFrom("m", RUN, "default", "/workspace", true))
  const keys = fc.constantFrom(
    ..."op id input args session scope shared cwd workspace window steps after pending answers".split(" "),
  )
  const object = fc.dictionary(keys, value).chain(o => fc.constantFrom(...OPS, "x").map(op => ({ ...o, op })))
  const anything = fc.oneof(
    object.map(line),
    fc.uint8Array({ maxLength: 200 }).map(b => Buffer.from(b)),
    fc.json().map(s => Buffer.from(s)),
  )
  fc.assert(
    fc.property(anything, frame => {
      try {
        parseRequest(frame)
      } catch (e) {
        return e instanceof CtxError && (e.code === "EINVAL" || e.code === "EMSGSIZE")
      }
      return true
    }),
    { numRuns: 5000 },
  )
  t.pass()
})
