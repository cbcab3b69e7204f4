// Names and the other small grammars.
import fc from "fast-check"
import t from "tap"
import {
  formatObject,
  isCleanPath,
  isGenerationName,
  isModel,
  isModelReference,
  isName,
  isPendingId,
  isRunId,
  isSessionName,
  isTs,
  isUid,
  isUuid,
  parseModel,
  parseObject,
  parseUid,
  validateComponent,
  validateName,
  validateSessionName,
} from "../../src/abi/name.js"
import { formatTs, parseTs } from "../../src/abi/time.js"

const EINVAL = { code: "EINVAL" }
const VALID = ["a", "fs.read", "a+b_c-1", "9", "sock", "d", "x.D", "x.sock.1", "a".repeat(64), "v1.2"]
const INVALID = [
  "",
  ".",
  "..",
  ".hidden",
  "-x",
  "_x",
  "+x",
  "a/b",
  "a b",
  "a:b",
  "x.sock",
  "x.d",
  "y.d.sock",
  "a".repeat(65),
  "é",
  "a\n",
  "a\0",
  "a\x7f",
]

/** The grammar of `root-abi.md` 2, spelled out byte by byte. */
function isNameByGrammar(s: string): boolean {
  const bytes = Buffer.from(s)
  const isAlnum = (b: number) => (b >= 48 && b <= 57) || (b >= 65 && b <= 90) || (b >= 97 && b <= 122)
  if (bytes.length < 1 || bytes.length > 64 || !isAlnum(bytes[0]!)) return false
  for (const b of bytes) if (!isAlnum(b) && b !== 0x2e && b !== 0x5f && b !== 0x2b && b !== 0x2d) return false
  return s.slice(-5) !== ".sock" && s.slice(-2) !== ".d"
}

t.test("root.3 ctx.12 (grammar) every row of the name table has the verdict shown", async t => {
  for (const name of VALID) t.equal(validateName(name), name, JSON.stringify(name))
  for (const name of INVALID) t.throws(() => validateName(name), EINVAL, JSON.stringify(name))
  for (const value of [undefined, null, 1, {}, ["a"]]) t.throws(() => validateName(value), EINVAL)
})

t.test("root.3 64 bytes are a name and 65 are none, whatever they end in", async t => {
  for (const tail of ["a", "9", ".", "_", "+", "-"]) {
    t.equal(isName("a".repeat(63) + tail), true)
    t.equal(isName("a".repeat(64) + tail), false)
  }
  t.equal(isName(`${"a".repeat(59)}.sock`), false)
  t.equal(isName(`${"a".repeat(62)}.d`), false)
})

t.test("root.3 names agree with the grammar for any text", async t => {
  const near = fc.string({ unit: fc.constantFrom(..."aZ09._+-/ :\n\0\x7fésockd"), maxLength: 70 })
  const ending = fc.tuple(near, fc.constantFrom(".sock", ".d", ".D", ".sock.1", "")).map(([a, b]) => a + b)
  fc.assert(
    fc.property(fc.oneof(near, ending, fc.string()), s => isName(s) === isNameByGrammar(s)),
    { numRuns: 5000 },
  )
  t.pass()
})

t.test("root.4 (components) every case of the item has its verdict", async t => {
  for (const s of ["a", ".tshrc", "x".repeat(255), "é".repeat(127)]) t.equal(validateComponent(s), s)
  for (const s of ["", ".", "..", "a/b", "a\0", "x".repeat(256), "é".repeat(128), undefined, 7]) {
    t.throws(() => validateComponent(s), EINVAL)
  }
})

t.test("a uid is canonical and at most 4294967294", async t => {
  for (const s of ["0", "1", "1000", "4294967294"]) t.equal(parseUid(s), Number(s))
  for (const s of ["", "01000", "x", "-1", "+1", "1.0", "4294967295", "99999999999", "1\n", " 1"]) {
    t.equal(isUid(s), false, JSON.stringify(s))
    t.throws(() => parseUid(s), EINVAL)
  }
})

t.test("a model is two names, an alias is a reference and no object", async t => {
  t.same(parseModel("acme/small-1"), { provider: "acme", model: "small-1" })
  t.equal(isModelReference("main"), true)
  for (const s of ["main", "small", "a/b/c", "/b", "a/", "a/x.d", "a/b\n"])
    t.equal(isModel(s), false, JSON.stringify(s))
  t.throws(() => parseModel("main"), EINVAL)
  t.same(parseObject("model/acme/small-1"), { class: "model", name: "acme/small-1" })
  for (const s of ["model/main", "agent/x.d", "skill/x", "agent/", "/agent/x", "tool/a/b", "agent"]) {
    t.throws(() => parseObject(s), EINVAL, s)
  }
})

t.test("object strings survive parse and format", async t => {
  const name = fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$/).filter(isName)
  const object = fc.oneof(
    fc.record({ class: fc.constantFrom("agent" as const, "tool" as const), name }),
    fc.record({ class: fc.constant("model" as const), name: fc.tuple(name, name).map(pair => pair.join("/")) }),
  )
  fc.assert(
    fc.property(object, o => {
      const parsed = parseObject(formatObject(o))
      return parsed.class === o.class && parsed.name === o.name
    }),
  )
  t.pass()
})

t.test("session, run, pending, uuid and generation names keep their grammars", async t => {
  const run = `ctx-${"0123456789abcdef".repeat(2)}`
  t.equal(validateSessionName("list"), "list")
  t.throws(() => validateSessionName("index"), EINVAL)
  t.equal(isSessionName("index"), false)
  t.equal(isRunId(run), true)
  for (const s of [run.toUpperCase(), `${run}0`, run.slice(0, -1), `${run}\n`, "r1"]) t.equal(isRunId(s), false)
  t.equal(isName(run), true)
  t.equal(isPendingId(`${run}.c-2`), true)
  for (const s of [run, `${run}.`, `${run}.x.d`, `r.${run}`]) t.equal(isPendingId(s), false)
  t.equal(isUuid("01234567-89ab-cdef-0123-456789abcdef"), true)
  t.equal(isUuid("01234567-89AB-cdef-0123-456789abcdef"), false)
  t.equal(isGenerationName("v3-20260301T081500Z-9f31c2d0"), true)
  for (const s of ["", ".stage-x", "a/b", "a_b", `a${"b".repeat(128)}`, "a\n"]) t.equal(isGenerationName(s), false)
})

t.test("a path is absolute, clean and at most 4096 bytes", async t => {
  for (const s of ["/", "/a", "/workspace/api", "/workspace/专案", "/...", `/${"a".repeat(4095)}`])
    t.equal(isCleanPath(s), true, s)
  const bad = ["", "rel", "/a/../b", "/workspace/", "//a", "/./a", "/a\0", `/${"a".repeat(4096)}`, "/\ud800", 1, null]
  for (const s of bad) t.equal(isCleanPath(s), false, JSON.stringify(s))
})

t.test("a time has exactly three fraction digits and a day that exists", async t => {
  t.equal(formatTs(0), "1970-01-01T00:00:00.000Z")
  t.equal(isTs("2026-01-01T00:00:00.000Z"), true)
  for (const s of [
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:00.00Z",
    "2026-02-30T00:00:00.000Z",
    "2026-01-01T24:00:00.000Z",
    "2026-01-01T00:00:60.000Z",
    "2026-01-01 00:00:00.000Z",
    "2026-01-01T00:00:00.000+00:00",
  ]) {
    t.equal(isTs(s), false, s)
    t.throws(() => parseTs(s), EINVAL)
  }
  for (const ms of [Number.NaN, Number.POSITIVE_INFINITY, 8.64e15, -8.64e15]) t.throws(() => formatTs(ms), EINVAL)
  fc.assert(fc.property(fc.integer({ min: -62167219200000, max: 253402300799999 }), ms => parseTs(formatTs(ms)) === ms))
})
