// The built-in models: echo, script, guide.
import t from "tap"
import { getDriver, type Message, type ModelCall, type ModelEvent } from "../../src/model/driver.js"
import { findPaths, GUIDE_LINE } from "../../src/model/guide.js"
import { callLines } from "../../src/model/request.js"

const TOOLS = ["fs.read", "fs.list"].map(name => ({ name, description: name, schema: { type: "object" } }))
const RUN = "ctx-7f3a90c1d2e4455b8a6c0f1e2d3b4a59"

interface Given {
  tools?: ModelCall["tools"]
  signal?: AbortSignal
}

const user = (content: string): Message => ({ role: "user", content })

/** The turn of an assistant that called `name`, and the tool's answer. */
function turn(id: string, name: string, content: string, status: "ok" | "error" = "ok"): Message[] {
  return [
    { role: "assistant", content: [{ type: "tool_call", id, name, arguments: {} }] },
    { role: "tool", content: [{ type: "tool_result", tool_call_id: id, content, status }] },
  ]
}

function call(model: string, messages: Message[], { tools = TOOLS, signal }: Given = {}): ModelCall {
  return { model, messages, tools, signal: signal ?? new AbortController().signal }
}

async function play(model: string, messages: Message[], given?: Given): Promise<ModelEvent[]> {
  const events: ModelEvent[] = []
  for await (const event of (await getDriver(undefined, model)).call(call(model, messages, given))) events.push(event)
  return events
}

function script(...steps: unknown[]): Message {
  return user(JSON.stringify({ schema: "cortexfs.script/v1", steps }))
}

const textOf = (events: ModelEvent[]) => events.filter(e => e.type === "delta").map(e => e.text)
const callsOf = (events: ModelEvent[]) => events.filter(e => e.type === "tool_call")
const start = (model: string) => ({ type: "start", model })
const OK = { type: "done", status: "ok" }

t.test("model.1 (driver) debug/echo answers with start, delta, message, usage and done", async t => {
  t.strictSame(await play("debug/echo", [user("ping")]), [
    start("debug/echo"),
    { type: "delta", text: "ping" },
    { type: "message", content: [{ type: "text", text: "ping" }] },
    { type: "usage", input_tokens: 1, output_tokens: 1 },
    OK,
  ])
})

t.test("model.1 (driver) usage of debug/echo is a quarter of the bytes, rounded up", async t => {
  const usage = async (text: string) => (await play("debug/echo", [user(text)])).find(e => e.type === "usage")
  t.match(await usage("éé"), { input_tokens: 1, output_tokens: 1 })
  t.match(await usage("x".repeat(20)), { input_tokens: 5, output_tokens: 5 })
  t.match(await usage("x".repeat(21)), { input_tokens: 6, output_tokens: 6 })
})

t.test("model.1 (driver) the frames carry one run, in the order of the fields", async t => {
  const lines: string[] = []
  const driver = await getDriver(undefined, "debug/echo")
  for await (const line of callLines(driver, call("debug/echo", [user("ping")]), RUN)) lines.push(line)
  t.strictSame(lines, [
    `{"type":"start","run":"${RUN}","model":"debug/echo"}`,
    `{"type":"delta","run":"${RUN}","text":"ping"}`,
    `{"type":"message","run":"${RUN}","role":"assistant","content":[{"type":"text","text":"ping"}]}`,
    `{"type":"usage","run":"${RUN}","input_tokens":1,"output_tokens":1}`,
    `{"type":"done","run":"${RUN}","status":"ok"}`,
  ])
})

t.test("debug/echo joins the text parts of the last user message by LF", async t => {
  const parts: Message = {
    role: "user",
    content: [
      { type: "text", text: "a" },
      { type: "image", path: "/x.png", media_type: "image/png" },
      { type: "text", text: "b" },
    ],
  }
  t.same(textOf(await play("debug/echo", [user("old"), { role: "assistant", content: "z" }, parts])), ["a\nb"])
})

const EXAMPLE = [
  { say: "Reading." },
  { call: { name: "fs.read", arguments: { path: "Makefile" } } },
  { expect: "app" },
  { say: ["The target ", "is app."] },
]

t.test("model.21 the example of debug/script plays turns 0 and 1 exactly", async t => {
  const size = Math.ceil(JSON.stringify({ schema: "cortexfs.script/v1", steps: EXAMPLE }).length / 4)
  t.strictSame(await play("debug/script", [script(...EXAMPLE)]), [
    start("debug/script"),
    { type: "delta", text: "Reading." },
    { type: "message", content: [{ type: "text", text: "Reading." }] },
    { type: "tool_call", id: "c-1", name: "fs.read", arguments: { path: "Makefile" } },
    { type: "usage", input_tokens: size, output_tokens: 2, tool_calls: ["c-1"] },
    OK,
  ])
  t.strictSame(await play("debug/script", [script(...EXAMPLE), ...turn("c-1", "fs.read", "all: app\n")]), [
    start("debug/script"),
    { type: "delta", text: "The target " },
    { type: "delta", text: "is app." },
    { type: "message", content: [{ type: "text", text: "The target is app." }] },
    { type: "usage", input_tokens: size, output_tokens: 5 },
    OK,
  ])
})

const EINVAL_END = [
  { type: "error", code: "EINVAL" },
  { type: "done", status: "error" },
]

t.test("model.21 an expectation that fails is EINVAL", async t => {
  const events = await play("debug/script", [script(...EXAMPLE), ...turn("c-1", "fs.read", "nothing")])
  t.match(events.slice(-2), [{ ...EINVAL_END[0], message: "expectation failed" }, EINVAL_END[1]])
  t.match((await play("debug/script", [script({ expect: "x" })])).slice(-2), EINVAL_END)
})

t.test("model.21 an unknown key, 1,025 steps and a text that is no script are EINVAL", async t => {
  const bad = [
    script({ shout: "x" }),
    script({ say: "x", sleep_ms: 1 }),
    script({ call: { name: "x", arguments: {} }, ids: "c" }),
    script({ call: { name: "x.d", arguments: {} } }),
    script({ call: { name: "x", arguments: [] } }),
    script({ call: { name: "x", arguments: {}, more: 1 } }),
    script({ sleep_ms: 60001 }),
    script({ sleep_ms: -1 }),
    script({ usage: { input_tokens: 1 } }),
    script({ error: { code: "EWRONG", message: "x" } }),
    script({ say: 1 }),
    script({}),
    script("say"),
    script(...Array(1025).fill({ say: "x" })),
    script(),
    user("no JSON"),
    user("[]"),
    user('{"schema":"cortexfs.script/v2","steps":[{"say":"x"}]}'),
    user('{"schema":"cortexfs.script/v1","steps":[{"say":"x"}],"more":1}'),
    user('{"schema":"cortexfs.script/v1","steps":[{"say":"x"}],"steps":[{"say":"x"}]}'),
  ]
  for (const message of bad) {
    const events = await play("debug/script", [message])
    t.match(events, [start("debug/script"), ...EINVAL_END], String(message.content).slice(0, 80))
    t.equal(events.length, 3)
  }
  const most = await play("debug/script", [script(...Array(1024).fill({ say: "x" }))])
  t.equal(textOf(most).length, 1024)
  t.same(
    (
      await play("debug/script", [
        user(`  \n${JSON.stringify({ schema: "cortexfs.script/v1", steps: [{ say: "x" }] })}\n`),
      ])
    ).at(-1),
    OK,
  )
})

t.test("model.21 past the last turn the answer is (end of script)", async t => {
  const messages = [script({ call: { name: "fs.read", arguments: {} } }), ...turn("c-1", "fs.read", "x")]
  const events = await play("debug/script", messages)
  t.same(textOf(events), ["(end of script)"])
  t.match(events.slice(2), [{ type: "message", content: [{ text: "(end of script)" }] }, { type: "usage" }, OK])
})

t.test("model.21 a sleep of 60 s ends within 1 s of a cancel", async t => {
  const abort = new AbortController()
  setTimeout(() => abort.abort(), 50)
  const begin = performance.now()
  const events = await play("debug/script", [script({ say: "a" }, { sleep_ms: 60000 }, { say: "b" })], {
    signal: abort.signal,
  })
  t.ok(performance.now() - begin < 1050)
  t.strictSame(events, [
    start("debug/script"),
    { type: "delta", text: "a" },
    { type: "error", code: "EINTR", message: "the call was cancelled" },
    { type: "done", status: "cancelled" },
  ])
})

t.test("model.21 two runs of one script differ only in RUN", async t => {
  const lines = async (run: string) => {
    const all: string[] = []
    const driver = await getDriver(undefined, "debug/script")
    for await (const line of callLines(driver, call("debug/script", [script(...EXAMPLE)]), run)) all.push(line)
    return all
  }
  const other = RUN.replace("7f3a", "0000")
  t.same(
    (await lines(other)).map(line => line.replace(other, RUN)),
    await lines(RUN),
  )
})

t.test("debug/script numbers its calls by the results it was given", async t => {
  const call = { call: { name: "a", arguments: {} } }
  const messages = [script(call, call, call), ...turn("c-1", "a", ""), ...turn("c-2", "a", "")]
  for (const results of [0, 1, 2]) {
    t.match(callsOf(await play("debug/script", messages.slice(0, 1 + 2 * results))), [{ id: `c-${results + 1}` }])
  }
})

t.test("debug/script reasons, sets usage and ids, and ends by an error", async t => {
  const events = await play("debug/script", [
    script(
      { reason: "hm" },
      { sleep_ms: 1 },
      { usage: { input_tokens: 700, output_tokens: 20 } },
      { call: { name: "a", arguments: { x: 1 } }, id: "mine" },
      { say: "late" },
    ),
  ])
  t.strictSame(events, [
    start("debug/script"),
    { type: "reasoning_delta", text: "hm" },
    { type: "tool_call", id: "mine", name: "a", arguments: { x: 1 } },
    { type: "usage", input_tokens: 700, output_tokens: 20 },
    OK,
  ])
  t.strictSame(
    await play("debug/script", [script({ say: "a" }, { error: { code: "EHOSTDOWN", message: "gone" } }, { say: "b" })]),
    [
      start("debug/script"),
      { type: "delta", text: "a" },
      { type: "error", code: "EHOSTDOWN", message: "gone" },
      { type: "done", status: "error" },
    ],
  )
})

const FILE = Array.from({ length: 20 }, (_, i) => `line ${i + 1}`)

t.test("model.27 (driver) debug/guide reads the named file, then answers with its first 12 lines", async t => {
  const first = await play("debug/guide", [user("what is in README.md?")])
  t.strictSame(callsOf(first), [{ type: "tool_call", id: "c-1", name: "fs.read", arguments: { path: "README.md" } }])
  t.equal(textOf(first).length, 1)
  t.match(first.slice(-2), [{ type: "usage", tool_calls: ["c-1"] }, OK])
  const second = await play("debug/guide", [
    user("what is in README.md?"),
    ...turn("c-1", "fs.read", `${FILE.join("\n")}\n`),
  ])
  const answer = textOf(second).join("")
  t.same(callsOf(second), [])
  t.match(answer, "README.md: 20 lines\n")
  for (const line of FILE.slice(0, 12)) t.match(answer, new RegExp(`^> ${line}$`, "m"))
  t.notMatch(answer, "line 13")
  t.ok(answer.endsWith(`\n${GUIDE_LINE}`))
  t.match(second.at(-3), { type: "message", content: [{ type: "text", text: answer }] })
})

t.test("model.27 (driver) debug/guide without a path lists the working directory", async t => {
  const first = await play("debug/guide", [user("hello")])
  t.strictSame(callsOf(first), [{ type: "tool_call", id: "c-1", name: "fs.list", arguments: { path: "." } }])
  const listing = Array.from({ length: 25 }, (_, i) => `f\t${i}\tname-${i}\n`).join("")
  const answer = textOf(await play("debug/guide", [user("hello"), ...turn("c-1", "fs.list", listing)])).join("")
  t.match(answer, "25 entries\n")
  t.match(answer, "name-19\n")
  t.notMatch(answer, "name-20")
  t.ok(answer.endsWith(GUIDE_LINE))
})

t.test("model.27 (driver) debug/guide finds no path in ../x and /etc/passwd", async t => {
  t.same(findPaths("../x /etc/passwd"), [])
  t.strictSame(callsOf(await play("debug/guide", [user("../x /etc/passwd")])), [
    { type: "tool_call", id: "c-1", name: "fs.list", arguments: { path: "." } },
  ])
})

t.test("model.27 (driver) debug/guide without tools answers with its last line alone", async t => {
  for (const text of ["hello", "what is in README.md?"]) {
    const events = await play("debug/guide", [user(text)], { tools: [] })
    t.same(textOf(events), [GUIDE_LINE])
    t.same(callsOf(events), [])
    t.same(events.at(-1), OK)
  }
  const onlyRead = { tools: TOOLS.slice(0, 1) }
  t.same(textOf(await play("debug/guide", [user("hello")], onlyRead)), [GUIDE_LINE])
})

t.test("model.27 (driver) two runs of debug/guide are equal", async t => {
  const messages = [user("read a.txt and b/c"), ...turn("c-1", "fs.read", "x\n")]
  t.strictSame(await play("debug/guide", messages), await play("debug/guide", messages))
})

t.test(
  "debug/guide reads up to three different files, one a turn, and shows a failed read by its error line",
  async t => {
    const text = 'compare "src/a.ts", src/b.ts; src/a.ts and (docs/c.md) with d.txt.'
    t.same(findPaths(text), ["src/a.ts", "src/b.ts", "(docs/c.md)"])
    const question = user("compare 'a.ts', b.ts and ./c!")
    let messages = [question]
    for (const [i, path] of ["a.ts", "b.ts", "./c"].entries()) {
      t.match(callsOf(await play("debug/guide", messages)), [
        { id: `c-${i + 1}`, name: "fs.read", arguments: { path } },
      ])
      messages = [
        ...messages,
        ...(i === 1
          ? turn("c-2", "fs.read", "ERROR: ENOENT: b.ts\nmore", "error")
          : turn(`c-${i + 1}`, "fs.read", "one\n")),
      ]
    }
    const answer = textOf(await play("debug/guide", messages)).join("")
    t.equal(answer, `a.ts: 1 lines\n> one\n\nERROR: ENOENT: b.ts\n\n./c: 1 lines\n> one\n\n${GUIDE_LINE}`)
  },
)

t.test("debug/guide takes the length of a file that goes on from the tool's last line", async t => {
  const content = `${FILE.join("\n")}\n[cut: lines 1-20 of 900; next line=21]`
  const answer = textOf(await play("debug/guide", [user("see x.log"), ...turn("c-1", "fs.read", content)])).join("")
  t.match(answer, "x.log: 900 lines\n")
  t.notMatch(answer, "[cut:")
})

t.test("a path among words is relative, short, has a / or . inside and no ..", async t => {
  const long = `${"a".repeat(254)}.b`
  const yes = ["README.md", "a/b", "./x", "src/a.ts", "a.b.c", "é/x"]
  const no = ["hello", "/etc/passwd", "../x", "a/../b", ".env", "end.", "src/", "...", "", long, "/", "./"]
  for (const word of yes) t.same(findPaths(`see ${word} now`), [word], word)
  for (const word of no) t.same(findPaths(`see ${word} now`), [], word)
  t.same(findPaths("“README.md”?!, `x.y`; 'z.w':"), ["README.md", "x.y", "z.w"])
})

t.test("only results after the last user message count", async t => {
  const messages = [
    user("a.txt"),
    ...turn("c-1", "fs.read", "x\n"),
    { role: "assistant", content: "done" } as Message,
    user("a.txt"),
  ]
  t.match(callsOf(await play("debug/guide", messages)), [{ id: "c-1", arguments: { path: "a.txt" } }])
})

t.test("a call that is aborted before it begins says so and nothing else", async t => {
  for (const model of ["debug/echo", "debug/script", "debug/guide"]) {
    const events = await play(model, [user("x")], { signal: AbortSignal.abort() })
    t.match(events, [start(model), { type: "error", code: "EINTR" }, { type: "done", status: "cancelled" }])
    t.equal(events.length, 3)
  }
})

t.test("a model without a driver is ENOENT", async t => {
  await t.rejects(getDriver({ dir: "/srv/x" }, "acme/large"), { code: "ENOENT", message: /\/srv\/x/ })
  await t.rejects(getDriver(undefined, "debug/other"), { code: "ENOENT" })
})
