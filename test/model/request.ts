// The input of a direct run and the messages of a request.
import fc from "fast-check"
import t from "tap"
import { CtxError } from "../../src/abi/error.js"
import { parseMessages, parseSampling, parseTools } from "../../src/model/message.js"
import { callOf, parseModelRequest } from "../../src/model/request.js"

const EINVAL = { code: "EINVAL" }
const json = (o: unknown) => parseModelRequest([], Buffer.from(JSON.stringify(o)))
const user = { role: "user", content: "hi" }
const called = { role: "assistant", content: [{ type: "tool_call", id: "c-1", name: "fs.read", arguments: {} }] }
const answered = { role: "tool", content: [{ type: "tool_result", tool_call_id: "c-1", content: "", status: "ok" }] }

t.test("model.1 (input) arguments, plain stdin and JSON give the same request", async t => {
  const expected = { messages: [{ role: "user", content: "ping" }], tools: [] }
  t.same(parseModelRequest(["ping"]), expected)
  t.same(parseModelRequest([], Buffer.from("ping")), expected)
  t.same(parseModelRequest([], Buffer.from("ping\n")), expected)
  t.same(json({ messages: [{ role: "user", content: "ping" }] }), expected)
  t.same(parseModelRequest(["a", "b"]).messages, [{ role: "user", content: "a b" }])
  t.same(parseModelRequest([], Buffer.from("a\n\n")).messages, [{ role: "user", content: "a\n" }])
  t.same(parseModelRequest([], Buffer.from(' \n {"messages":[{"role":"user","content":"x"}],"unknown":1}')).messages, [
    { role: "user", content: "x" },
  ])
})

t.test("model.2 (validation) what is no request is EINVAL", async t => {
  for (const text of [
    '{"messages":',
    "{}",
    '{"messages":[]}',
    "",
    "\n",
    '{"messages":[{"role":"user","content":""}]}',
  ]) {
    t.throws(() => parseModelRequest([], Buffer.from(text)), EINVAL, text)
  }
  t.throws(() => json({ messages: [user, answered] }), EINVAL)
  t.throws(() => json({ messages: [user], temperature: 3 }), EINVAL)
  t.throws(() => parseModelRequest([], Buffer.from([0xff])), EINVAL)
  t.throws(() => parseModelRequest([""]), EINVAL)
})

t.test("input above 1 MiB is EMSGSIZE", async t => {
  t.ok(parseModelRequest([], Buffer.alloc(1_048_576, "x")))
  t.throws(() => parseModelRequest([], Buffer.alloc(1_048_577, "x")), { code: "EMSGSIZE" })
  t.throws(() => parseModelRequest(["x".repeat(1_048_577)]), { code: "EMSGSIZE" })
})

t.test("each part belongs to its role and a result follows its call", async t => {
  const image = { type: "image", path: "/a.png", media_type: "image/png" }
  const text = { type: "text", text: "x" }
  const good = [user, called, answered, { role: "user", content: [text, image] }, { role: "system", content: "s" }]
  t.same(parseMessages(good), good)
  const call = called.content[0]
  const result = answered.content[0]
  const bad: unknown[][] = [
    [answered, called],
    [{ role: "user", content: [call] }],
    [called, { role: "assistant", content: [result] }],
    [{ role: "assistant", content: [image] }],
    [called, { role: "tool", content: [text] }],
    [called, { role: "tool", content: "x" }],
    [{ role: "user", content: [] }],
    [{ role: "user", content: [{ type: "text", text: "" }] }],
    [{ role: "user", content: [{ type: "video", path: "x" }] }],
    [{ role: "user", content: [{ ...image, media_type: undefined }] }],
    [{ role: "user", content: null }],
    [{ role: "robot", content: "x" }],
    [{ role: "assistant", content: [{ ...call, arguments: "{}" }] }],
    [{ role: "assistant", content: [{ ...call, id: "a/b" }] }],
    [called, { role: "tool", content: [{ ...result, status: "maybe" }] }],
    [called, { role: "tool", content: [{ ...result, content: 1 }] }],
    ["x"],
    [],
    Array(1025).fill(user),
  ]
  for (const messages of bad) t.throws(() => parseMessages(messages), EINVAL, JSON.stringify(messages).slice(0, 100))
  t.throws(() => parseMessages([{ role: "system", content: "s" }], ["user", "assistant", "tool"]), EINVAL)
  t.strictSame(parseMessages([{ ...user, extra: 1 }]), [user])
})

t.test("tools have unique names, at most 128 of them", async t => {
  const tool = (name: string) => ({ name, description: "d", schema: {} })
  t.same(parseTools(undefined), [])
  t.same(parseTools([tool("a"), tool("b")]).length, 2)
  for (const tools of [[tool("a"), tool("a")], [tool("a/b")], [{ name: "a" }], {}, [{ ...tool("a"), schema: [] }]]) {
    t.throws(() => parseTools(tools), EINVAL)
  }
  t.throws(() => parseTools(Array.from({ length: 129 }, (_, i) => tool(`t${i}`))), EINVAL)
})

t.test("sampling values keep their ranges", async t => {
  const good = { effort: "max", max_output_tokens: 4294967295, seed: 0, temperature: 2, top_p: 0.5 }
  t.same(parseSampling(good), good)
  t.same(parseSampling({}), {})
  for (const bad of [
    { effort: "huge" },
    { effort: 1 },
    { max_output_tokens: 0 },
    { max_output_tokens: 4294967296 },
    { max_output_tokens: 1.5 },
    { seed: -1 },
    { temperature: 2.1 },
    { temperature: "1" },
    { top_p: -0.1 },
    { top_p: null },
  ]) {
    t.throws(() => parseSampling(bad), EINVAL, JSON.stringify(bad))
  }
})

t.test("a request becomes a call with every value it gives", async t => {
  const signal = new AbortController().signal
  const request = json({ messages: [user], max_output_tokens: 5, top_p: 1, temperature: 0, seed: 7, effort: "low" })
  t.match(callOf(request, "debug/echo", signal), {
    model: "debug/echo",
    maxOutputTokens: 5,
    topP: 1,
    temperature: 0,
    seed: 7,
    effort: "low",
    tools: [],
    signal,
  })
})

t.test("no input makes the reader throw anything but EINVAL and EMSGSIZE", async t => {
  const object = fc.record(
    { messages: fc.jsonValue(), tools: fc.jsonValue(), effort: fc.jsonValue(), seed: fc.jsonValue() },
    { requiredKeys: [] },
  )
  fc.assert(
    fc.property(
      fc.oneof(
        fc.string(),
        object.map(o => JSON.stringify(o)),
      ),
      text => {
        try {
          parseModelRequest([], Buffer.from(text))
        } catch (e) {
          return e instanceof CtxError && (e.code === "EINVAL" || e.code === "EMSGSIZE")
        }
        return true
      },
    ),
    { numRuns: 1000 },
  )
  t.pass()
})
