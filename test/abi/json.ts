// Strict, canonical and one-line JSON.
import assert from "node:assert/strict"
import fc from "fast-check"
import t from "tap"
import { CtxError } from "../../src/abi/error.js"
import { canonicalJson, formatRow, isObject, parseFrameObject, parseJson, parseJsonObject } from "../../src/abi/json.js"

const EINVAL = { code: "EINVAL" }
const bytes = (...b: (number | string)[]) =>
  Buffer.concat(b.map(x => (typeof x === "number" ? Buffer.from([x]) : Buffer.from(x))))

t.test("strict JSON agrees with JSON.parse wherever keys are unique", async t => {
  fc.assert(
    fc.property(fc.json({ maxDepth: 6 }), text => {
      assert.deepEqual(parseJson(text), JSON.parse(text))
      assert.deepEqual(parseJson(Buffer.from(text)), JSON.parse(text))
    }),
    { numRuns: 2000 },
  )
  t.pass()
})

t.test("strict JSON refuses every text that JSON.parse refuses, with EINVAL", async t => {
  const mutated = fc
    .tuple(fc.json({ maxDepth: 4 }), fc.nat(), fc.constantFrom(..."{}[]\",:\\\n 0eu\u0000'"))
    .map(([text, at, c]) => text.slice(0, at % (text.length + 1)) + c + text.slice(at % (text.length + 1)))
  fc.assert(
    fc.property(fc.oneof(mutated, fc.string()), text => {
      let expected: { value: unknown } | undefined
      try {
        expected = { value: JSON.parse(text) }
      } catch {
        expected = undefined
      }
      try {
        assert.deepEqual({ value: parseJson(text) }, expected)
      } catch (e) {
        if (!(e instanceof CtxError) || e.code !== "EINVAL") throw e
        // A text that JSON.parse takes may only be refused for two equal keys.
        if (expected !== undefined) assert.match(e.message, /occurs twice/)
      }
    }),
    { numRuns: 3000 },
  )
  t.pass()
})

t.test("a duplicate key is EINVAL at any depth, however it is written", async t => {
  for (const text of [
    '{"a":1,"a":1}',
    '{"a":1,"\\u0061":2}',
    '[{"x":{"b":[],"c":{},"b":0}}]',
    '{"a\\\\":1,"b":{"a\\\\":1},"a\\\\":2}',
    '{"":1,"":2}',
    '{"__proto__":1,"__proto__":2}',
  ]) {
    t.throws(() => parseJson(text), EINVAL, text)
  }
  for (const text of [
    '{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}',
    '{"a":"a","b":"\\"a\\":1,"}',
    '{"a\\\\":1,"a":2,"a\\"":3}',
    "{}",
  ]) {
    t.same(parseJson(text), JSON.parse(text))
  }
})

t.test("any object with one key repeated is refused", async t => {
  fc.assert(
    fc.property(fc.dictionary(fc.string(), fc.jsonValue({ maxDepth: 3 }), { minKeys: 1 }), fc.nat(), (o, pick) => {
      const keys = Object.keys(o)
      const again = JSON.stringify(keys[pick % keys.length])
      const text = `${JSON.stringify(o).slice(0, -1)},${again}:null}`
      assert.throws(() => parseJson(text), EINVAL)
      assert.throws(() => parseJson(`[1,{"k":${text}}]`), EINVAL)
    }),
    { numRuns: 500 },
  )
  t.pass()
})

t.test("bytes that are not UTF-8 and a byte order mark are EINVAL", async t => {
  for (const bad of [
    bytes('"', 0xff, '"'),
    bytes('"', 0xc3, '"'),
    bytes('"', 0xed, 0xa0, 0x80, '"'),
    bytes('"', 0xc0, 0x80, '"'),
    bytes(0xef, 0xbb, 0xbf, "{}"),
  ]) {
    t.throws(() => parseJson(bad), EINVAL, bad.toString("hex"))
  }
  t.throws(() => parseJson("\ufeff{}"), EINVAL)
  t.equal(parseJson(bytes('"é"')), "é")
})

t.test("depth is bounded and a megabyte of brackets is refused in no time", async t => {
  t.ok(parseJson("[".repeat(64) + "]".repeat(64), 64))
  t.throws(() => parseJson("[".repeat(65) + "]".repeat(65), 64), EINVAL)
  const start = performance.now()
  for (const c of ["[", '{"a":', "[{}", "\\", '"']) t.throws(() => parseJson(c.repeat(200_000)), EINVAL)
  t.throws(() => parseJson("[".repeat(500_000) + "]".repeat(500_000)), EINVAL)
  t.equal((parseJson(`{"a":"${"\\\\".repeat(500_000)}"}`) as { a: string }).a.length, 500_000)
  t.ok(performance.now() - start < 2000)
})

t.test("an array, a null and a scalar are no objects", async t => {
  for (const text of ["[]", "null", '"x"', "1", "true"]) t.throws(() => parseJsonObject(text), EINVAL)
  t.same(parseJsonObject("{}"), {})
})

t.test("canonical JSON is that of RFC 8785", async t => {
  // The sorting example of RFC 8785 3.2.3 and the number samples of its appendix B.
  const keys = { "\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\u{1f600}": 5, "\u0080": 6, "\u00f6": 7 }
  t.equal(canonicalJson(keys), '{"\\r":2,"1":4,"\u0080":6,"ö":7,"€":1,"😀":5,"\ufb33":3}')
  const numbers: [number, string][] = [
    [0, "0"],
    [-0, "0"],
    [5e-324, "5e-324"],
    [1.7976931348623157e308, "1.7976931348623157e+308"],
    [9007199254740992, "9007199254740992"],
    [1e21, "1e+21"],
    [999999999999999700000, "999999999999999700000"],
    [0.000001, "0.000001"],
    [1e-7, "1e-7"],
    [333333333.3333332, "333333333.3333332"],
  ]
  for (const [n, text] of numbers) t.equal(canonicalJson(n), text)
  t.equal(
    canonicalJson({ b: [1, { d: null, c: true }], a: "\u0007\n\u2028/" }),
    '{"a":"\\u0007\\n\u2028/","b":[1,{"c":true,"d":null}]}',
  )
  t.equal(canonicalJson({ a: undefined, b: 1 }), '{"b":1}')
  for (const v of [Number.NaN, Number.POSITIVE_INFINITY, "\ud800", { "\udc00": 1 }, undefined, () => 0, 1n]) {
    t.throws(() => canonicalJson(v), EINVAL)
  }
})

t.test("canonical JSON does not depend on key order and reads back", async t => {
  const reversed = (v: unknown): unknown => {
    if (Array.isArray(v)) return v.map(reversed)
    if (!isObject(v)) return v
    return Object.fromEntries(
      Object.entries(v)
        .reverse()
        .map(([k, x]) => [k, reversed(x)]),
    )
  }
  fc.assert(
    fc.property(fc.jsonValue(), v => {
      assert.equal(canonicalJson(reversed(v)), canonicalJson(v))
      assert.equal(canonicalJson(parseJson(canonicalJson(v))), canonicalJson(v))
    }),
  )
  t.pass()
})

t.test("a row is one line that escapes only what it must and reads back", async t => {
  t.equal(
    formatRow({ b: '\u007f\u2028é"\\\n\u0001', a: 1, c: undefined }),
    '{"b":"\u007f\u2028é\\"\\\\\\n\\u0001","a":1}',
  )
  t.equal(formatRow({ a: "x\ud800y", "\udc00": ["\udfff"] }), '{"a":"x\ufffdy","\ufffd":["\ufffd"]}')
  t.equal(formatRow({ a: "\\ud800 😀" }), '{"a":"\\\\ud800 😀"}')
  fc.assert(
    fc.property(fc.dictionary(fc.string({ unit: "binary" }), fc.jsonValue()), o => {
      const row = formatRow(o)
      assert.doesNotMatch(row, /[\n\ud800-\udfff]/u)
      assert.deepEqual(parseJson(Buffer.from(row)), JSON.parse(row))
    }),
  )
})

t.test("a frame from outside holds no half of a surrogate pair, in a string or a key, at any depth", async t => {
  for (const text of [
    '{"path":"\\udfff"}',
    '{"a":{"b":["x\\ud800y"]}}',
    '{"\\ud83d":1}',
    '{"a":[{"\\udc00x":null}]}',
    '{"a":"\\ude00\\ud83d"}',
  ]) {
    t.throws(() => parseFrameObject(Buffer.from(text), 64), { code: "EINVAL" }, text)
    t.doesNotThrow(() => parseJsonObject(text), text)
  }
  const whole = '{"a\\ud83d\\ude00":["\\ud83d\\ude00","\u{1f600}","\\\\udfff"]}'
  t.strictSame(parseFrameObject(Buffer.from(whole), 64), { "a\u{1f600}": ["\u{1f600}", "\u{1f600}", "\\udfff"] })
})
