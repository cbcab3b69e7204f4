// Control file formats.

import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import fc from "fast-check"
import t from "tap"
import {
  AGENT_CONTROLS,
  CONTROL_MAX,
  formatList,
  formatPairs,
  formatValue,
  isAgentAbi,
  MODEL_CONTROLS,
  parseBoolean,
  parseList,
  parsePairs,
  parseValue,
  TOOL_CONTROLS,
} from "../../src/abi/control.js"

const EINVAL = { code: "EINVAL" }
const ROOT_ABI = readFileSync(new URL("../../spec/root-abi.md", import.meta.url), "utf8")

t.test("root.11 (parsers) a value is one LF-terminated line without blanks at its ends", async t => {
  t.equal(parseValue(Buffer.from("/workspace\n"), "cwd"), "/workspace")
  t.equal(parseValue(Buffer.from("\n"), "parent"), "")
  t.equal(parseValue(Buffer.from("a b\n"), "x"), "a b")
  for (const bad of ["", "a", "a\nb\n", "a\n\n", " a\n", "a \n", "\ta\n", "a\t\n", "a\r\n", "a\0\n", "\ufeffa\n"]) {
    t.throws(() => parseValue(Buffer.from(bad), "cwd"), EINVAL, JSON.stringify(bad))
  }
  t.throws(() => parseValue(Buffer.from([0xff, 0x0a]), "cwd"), EINVAL)
})

t.test("root.11 (parsers) a list may have no bytes and has no blank or unended line", async t => {
  t.same(parseList(Buffer.alloc(0), "cap"), [])
  t.same(parseList(Buffer.from("text\nread\n"), "cap"), ["text", "read"])
  for (const bad of ["\n", "text", "text\n\nread\n", " text\n", "text \n", "text\nread"]) {
    t.throws(() => parseList(Buffer.from(bad), "cap"), EINVAL, JSON.stringify(bad))
  }
})

t.test("root.11 (parsers) pairs keep everything behind the first = and refuse a second KEY", async t => {
  t.same(
    [...parsePairs(Buffer.from("A=1\n_b=x=y $HOME \nC=\n"), "env")],
    [
      ["A", "1"],
      ["_b", "x=y $HOME "],
      ["C", ""],
    ],
  )
  for (const bad of ["A=1", "A=1\nA=1\n", "A\n", "=1\n", "1A=1\n", "A-B=1\n", " A=1\n", "\n", "export A=1\n"]) {
    t.throws(() => parsePairs(Buffer.from(bad), "env"), EINVAL, JSON.stringify(bad))
  }
})

t.test("root.11 (parsers) a boolean is 0 or 1", async t => {
  t.equal(parseBoolean(Buffer.from("0\n"), "x"), false)
  t.equal(parseBoolean(Buffer.from("1\n"), "x"), true)
  for (const bad of ["", "0", "2\n", "true\n", "00\n", "\n"])
    t.throws(() => parseBoolean(Buffer.from(bad), "x"), EINVAL)
})

t.test("a control has at most 65536 bytes and its error names it and the line", async t => {
  t.equal(parseValue(Buffer.from(`${"a".repeat(CONTROL_MAX - 1)}\n`), "x").length, CONTROL_MAX - 1)
  t.throws(() => parseValue(Buffer.from(`${"a".repeat(CONTROL_MAX)}\n`), "x"), EINVAL)
  t.throws(() => formatValue("a".repeat(CONTROL_MAX)), EINVAL)
  t.throws(() => parsePairs(Buffer.from("A=1\nA=2\n"), "agent/coder.d/env"), {
    message: /^agent\/coder\.d\/env line 2: /,
  })
})

const line = fc.string({ unit: "grapheme", maxLength: 40 }).filter(s => !/[\n\r\0\ufeff]|^[ \t]|[ \t]$/.test(s))

t.test("values, lists and pairs survive format and parse", async t => {
  const key = fc.stringMatching(/^[A-Za-z_][A-Za-z0-9_]{0,20}$/)
  fc.assert(fc.property(line, s => parseValue(formatValue(s), "x") === s))
  fc.assert(
    fc.property(fc.array(line.filter(s => s !== "")), items => {
      assert.deepEqual(parseList(formatList(items), "x"), items)
    }),
  )
  fc.assert(
    fc.property(fc.uniqueArray(fc.tuple(key, line), { selector: pair => pair[0] }), pairs => {
      assert.deepEqual([...parsePairs(formatPairs(new Map(pairs)), "x")], pairs)
    }),
  )
  t.pass()
})

t.test("what a reader would refuse is not written", async t => {
  for (const s of ["a\nb", "a\0", " a", "a\t"]) t.throws(() => formatValue(s), EINVAL)
  for (const items of [[""], ["a\nb"], [" a"]]) t.throws(() => formatList(items), EINVAL)
  const bad: Record<string, string>[] = [{ "1": "a" }, { A: "a\nb" }, { "A=B": "" }]
  for (const pairs of bad) t.throws(() => formatPairs(pairs), EINVAL)
})

function tableNames(from: string, to: string, pattern: RegExp): string[] {
  const section = ROOT_ABI.slice(ROOT_ABI.indexOf(from), ROOT_ABI.indexOf(to))
  return section.split("\n").flatMap(row => {
    const cell = row.startsWith("| `") ? row.split("|")[1]! : ""
    return [...cell.matchAll(pattern)].map(match => match[1]!)
  })
}

t.test("the lists of controls are those of the tables, in order", async t => {
  const agent = tableNames("| control | kind |", "This is the closed list", /`([a-z.]+)\/?[a-z./]*`/g)
  t.same(
    AGENT_CONTROLS.map(c => c.name),
    [...new Set(agent)],
  )
  const tool = tableNames("### 4.5", "Reference tools:", /`<name>\.d\/([a-z.]+)/g)
  t.same(
    TOOL_CONTROLS.map(c => c.name),
    tool,
  )
  t.same(
    MODEL_CONTROLS.map(c => c.name),
    "id driver cap effort default fallback limit session status log".split(" "),
  )
})

t.test("what stands for an absent agent control parses as its kind", async t => {
  for (const c of AGENT_CONTROLS) {
    const text = c.absent?.(1000, "coder")
    if (text === undefined) continue
    const bytes = Buffer.from(text)
    if (c.kind === "value") t.type(parseValue(bytes, c.name), "string")
    if (c.kind === "list") t.type(parseList(bytes, c.name), Array)
    if (c.kind === "pairs") t.type(parsePairs(bytes, c.name), Map)
  }
  const byName = new Map(AGENT_CONTROLS.map(c => [c.name, c.absent?.(1000, "coder")]))
  t.equal(byName.get("root"), "/ctx/home/1000/agent/coder/root\n")
  t.equal(byName.get("path"), "/ctx/tool\n/ctx/home/1000/tool\n")
  t.equal(byName.get("cwd"), "/workspace\n")
})

t.test("only the exact bytes are the agent abi", async t => {
  t.equal(isAgentAbi(Buffer.from("sdk-envelope-v1\n")), true)
  for (const s of ["sdk-envelope-v1", "sdk-envelope-v1\n\n", "argv-v1\n", ""])
    t.equal(isAgentAbi(Buffer.from(s)), false)
})
