import fc from "fast-check"
import t from "tap"
import { CtxError } from "../../src/abi/error.js"
import { escapeBytes, escapeTerminal, escapeText } from "../../src/client/escape.js"
import { describeFailure, formatFailure } from "../../src/client/failure.js"
import { findNearest } from "../../src/client/nearest.js"
import { RunReader } from "../../src/client/run.js"

/** The text that an escaped one stands for. */
function unescapeText(text: string): string {
  return text.replace(/\\(?:\\|n|t|x([0-9a-f]{2})|u\{([0-9a-f]+)\})/g, (whole, byte, point) => {
    if (whole === "\\\\") return "\\"
    if (whole === "\\n") return "\n"
    if (whole === "\\t") return "\t"
    return String.fromCodePoint(Number.parseInt(byte ?? point, 16))
  })
}

t.test("escaped text is one line without control characters, and leads back to the text", async t => {
  fc.assert(
    fc.property(fc.string({ unit: "binary", maxLength: 40 }), text => {
      const escaped = escapeText(text)
      return !/[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/.test(escaped) && unescapeText(escaped) === text
    }),
  )
  t.equal(escapeTerminal("a\tb\n\u001b"), "a\tb\n\\x1b")
  // Line and paragraph separator: one line here, two in what reads the output.
  for (const shown of [escapeText, escapeTerminal]) t.equal(shown("a\u2028b\u2029c"), "a\\u{2028}b\\u{2029}c")
})

t.test("bytes that are no UTF-8 are escaped one by one and differ from what they would decode to", async t => {
  t.equal(escapeBytes(Buffer.from([0x61, 0xc3, 0xa9, 0xff, 0xe2, 0x82, 0x0a])), "aé\\xff\\xe2\\x82\\n")
  t.equal(escapeBytes(Buffer.from([0xed, 0xa0, 0x80])), "\\xed\\xa0\\x80")
  const hasControls = (text: string) => /[\u0000-\u001f\u007f-\u009f]/.test(text)
  fc.assert(fc.property(fc.uint8Array({ maxLength: 24 }), bytes => !hasControls(escapeBytes(bytes))))
})

t.test("an error line keeps its form and its 1024 bytes for any text", async () => {
  fc.assert(
    fc.property(
      fc.string({ unit: "binary", maxLength: 3000 }),
      fc.string({ unit: "binary", maxLength: 3000 }),
      (what, hint) => {
        const line = formatFailure(describeFailure(new CtxError("EINVAL", what, { hint })))
        return /^ctx: EINVAL: [^\n]+: [^\n]+\n$/.test(line) && Buffer.byteLength(line) <= 1024
      },
    ),
  )
})

t.test("a thrown value that is no error of ours is internal, exit 70, and a system error is its errno", async t => {
  for (const value of [new TypeError("x is not a function"), "text", undefined, null, 7, {}]) {
    t.same([describeFailure(value).code, describeFailure(value).exit], ["internal", 70])
  }
  const missing = Object.assign(new Error("ENOENT: no such file or directory, open '/x'"), {
    code: "ENOENT",
    errno: -2,
    path: "/x",
  })
  t.match(formatFailure(describeFailure(missing)), /^ctx: ENOENT: \/x: [^\n]+\n$/)
})

t.test("the nearest word is near or none", async t => {
  t.equal(findNearest("stauts", ["status", "start"]), "status")
  t.equal(findNearest("ls", ["cat", "env"]), undefined)
  t.equal(findNearest("x".repeat(100000), ["status"]), undefined)
})

/** What the reader prints for these frames. */
async function printed(...frames: object[]): Promise<string> {
  let text = ""
  const reader = new RunReader(async piece => {
    text += piece
  })
  for (const frame of frames) await reader.take({ run: "ctx-1", ...frame })
  return text
}

const message = (text: string) => ({ type: "message", role: "assistant", content: [{ type: "text", text }] })
const delta = (text: string) => ({ type: "delta", text })
const done = { type: "done", status: "ok" }

t.test("assistant text is printed once, however it came, and ends in LF", async t => {
  t.equal(await printed(delta("a"), delta("b"), message("ab"), done), "ab\n")
  t.equal(await printed(delta("a"), message("ab"), done), "ab\n")
  t.equal(await printed(message("ab\n"), done), "ab\n")
  t.equal(await printed(delta("x"), message("ab"), done), "x\nab\n")
  t.equal(await printed(delta("a"), { type: "tool_call" }, delta("b"), message("b"), done), "a\nb\n")
  t.equal(await printed(delta("a"), { type: "tool_call" }, message("b"), done), "a\nb\n")
  t.equal(await printed(delta("a"), { type: "error", code: "EIO" }, { type: "done", status: "error" }), "a\n")
  t.equal(await printed(done), "")
})
