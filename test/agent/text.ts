import t from "tap"
import { formatHistory, formatHistoryRow, NO_HISTORY } from "../../src/agent/history.js"
import { shortenText } from "../../src/agent/observation.js"
import { BUILT_IN_TEMPLATE, renderPrompt } from "../../src/agent/prompt.js"
import { computeWindow, parseLimit, selectWindow } from "../../src/agent/window.js"
import type { MessageRow } from "../../src/session/row.js"

const TS = "2026-01-01T00:00:00.000Z"
const user = (content: string): MessageRow => ({ role: "user", ts: TS, content })

t.test("runtime.14 (numbers) the window table, all columns but skills", async t => {
  const rows = [
    [1, 4, 1, 0, 0],
    [3, 12, 1, 8, 4],
    [4096, 16384, 1024, 12288, 6144],
    [8192, 32768, 2048, 24576, 12288],
    [16384, 65536, 4096, 49152, 24576],
    [32768, 131072, 4096, 114688, 57344],
    [200000, 800000, 4096, 783616, 65536],
    [4294967295, 17179869180, 4096, 17179852796, 65536],
  ]
  for (const [tokens, chars, reserve, budget, history] of rows) {
    t.strictSame(computeWindow(tokens), { tokens, chars, reserve, budget, history })
  }
  t.strictSame(computeWindow(), { history: 8_000 })
  t.equal(selectWindow("auto", 4096).tokens, 4096)
  t.equal(selectWindow(4096, 4096).tokens, 4096)
  t.throws(() => selectWindow(20000, 16384), { code: "EINVAL" })
  t.throws(() => selectWindow(20000, undefined), { code: "EINVAL" })
})

t.test("model.4 (parser of a limit) each cell of the table has its verdict", async t => {
  for (const [text, limit] of [
    ["unknown\n", undefined],
    ["1\n", 1],
    ["32768\n", 32768],
    ["4294967295\n", 4294967295],
  ] as const) {
    t.equal(parseLimit(text), limit)
  }
  const bad = [
    "0\n",
    "00\n",
    "01\n",
    "+5\n",
    "-5\n",
    "5.0\n",
    "5e3\n",
    "0x5\n",
    " 5\n",
    "5 \n",
    "5\r\n",
    "4294967296\n",
  ]
  for (const text of [...bad, "5", "5\n6\n", "5\n\n", "", "Unknown\n", "5_000\n"]) {
    t.throws(() => parseLimit(text), { code: "EINVAL" }, JSON.stringify(text))
  }
})

t.test("a long text keeps head and tail with one marker line, cut at characters", async t => {
  const exact = "x".repeat(16_384)
  t.strictSame(shortenText(exact), { text: exact, isShortened: false })
  const { text, isShortened } = shortenText(`${exact}y`)
  t.ok(isShortened)
  t.equal(text, `${"x".repeat(12_000)}\n[... 385 bytes omitted ...]\n${"x".repeat(3_999)}y`)
  // Three bytes each: neither 12,000 nor 4,000 bytes from the end fall on a boundary of a text that begins with one byte.
  const odd = shortenText(`a${"猫".repeat(8_000)}`).text
  t.notMatch(odd, /\ufffd/)
  t.ok(Buffer.byteLength(odd) <= 16_384)
  const [head, tail] = odd.split(/\n\[\.\.\. [0-9]+ bytes omitted \.\.\.\]\n/)
  t.equal(Buffer.byteLength(head!), 11_998)
  t.equal(Buffer.byteLength(tail!), 3_999)
})

t.test("rows become prompt lines, newest first within the budget, and what is left out is counted", async t => {
  t.equal(formatHistoryRow(user("one\ntwo")), "- user: one\n  two")
  const tool: MessageRow = {
    role: "tool",
    ts: TS,
    name: "fs.read",
    content: [{ type: "tool_result", tool_call_id: "c", content: "all: app\n", status: "ok" }],
  }
  t.equal(formatHistoryRow(tool), "- tool fs.read: all: app")
  t.equal(formatHistory([], 0, 8_000), NO_HISTORY)
  t.equal(formatHistory([user("a"), user("b"), user("c")], 0, 20), "[1 earlier messages omitted]\n- user: b\n- user: c")
  t.equal(formatHistory([user("a")], 4, 8_000), "[4 earlier messages omitted]\n- user: a")
  t.equal(formatHistory([user("x".repeat(100))], 0, 20), "[1 earlier messages omitted]")
})

t.test(
  "runtime.11 (template) one pass: values are not scanned again, blank is (empty), unknown placeholders stay",
  async t => {
    const blocks = {
      agent: "coder",
      current_time_unix: "1",
      runtime_contract: "contract",
      agent_instructions: " \n ",
      rules: "",
      skills: "  {{agent}}  ",
      tool_injection: "$& $1 {{rules}}",
      history_messages: "{{rules}}",
    }
    const template = Object.keys(blocks)
      .map(key => `{{${key}}}`)
      .join("|")
    t.equal(
      renderPrompt(`${template}|{{nothing}}|{{ agent }}|{{toString}}`, blocks),
      "coder|1|contract|(empty)|(empty)|{{agent}}|$& $1 {{rules}}|{{rules}}|{{nothing}}|{{ agent }}|{{toString}}",
    )
    const headings = renderPrompt(BUILT_IN_TEMPLATE, blocks).match(/^# .*$/gm)
    t.strictSame(headings, [
      "# Agent",
      "# Contract",
      "# Instructions",
      "# Rules",
      "# Skills",
      "# Tools",
      "# History",
      "# Time",
    ])
  },
)
