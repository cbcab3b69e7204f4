// Policy v0: grammar and decisions.
import assert from "node:assert/strict"
import fc from "fast-check"
import t from "tap"
import { CtxError } from "../../src/abi/error.js"
import { DENIED, policyAllows, policyAllowsModel, policyAllowsTool } from "../../src/policy/decision.js"
import { checkPolicy, formatPolicy, formatRule, type PolicyClass, parsePolicy } from "../../src/policy/policy.js"

const EINVAL = { code: "EINVAL" }
const file = (...lines: string[]) => Buffer.from(lines.map(line => `${line}\n`).join(""), "latin1")

/** The word of a file's first fault, or its rules as lines. */
function verdict(bytes: Uint8Array): string | string[] {
  const { policy, issue } = checkPolicy(bytes)
  return issue === undefined ? policy.rules.map(formatRule) : issue.why.split(":")[0]!
}

const LONG = "a".repeat(65)
const VECTORS: [number, string[], string | null][] = [
  [1, ["allow coder_t tool:fs.read execute"], null],
  [2, ["allow coder_t model:acme/small-1 use"], null],
  [3, ["allow coder_t model:main use"], null],
  [4, ["allow coder_t shared:lab write"], null],
  [5, ["allow coder_t agent:rev-7 create"], null],
  [6, ["allow coder_t network:default connect"], null],
  [7, ["allow coder_t session:default read"], null],
  [10, ["allow coder_t tool:fs.read read"], "permission"],
  [11, ["allow coder_t file:/etc read"], "class"],
  [12, ["allow coder_t agent:* create"], "object"],
  [13, ["allow coder_t model:small use"], "object"],
  [14, ["allow coder_t network:lan connect"], "object"],
  [15, ["deny coder_t tool:fs.read execute"], "verb"],
  [16, ["allow coder_t tool:fs.read", "allow coder_t tool:fs.read execute now"], "fields"],
  [
    17,
    [
      "allow  coder_t tool:fs.read execute",
      " allow coder_t tool:fs.read execute",
      "allow coder_t tool:fs.read execute ",
    ],
    "fields",
  ],
  [18, ["allow\tcoder_t tool:fs.read execute", "allow coder_t tool:fs.read execute\r"], "character"],
  [19, ["allow coder-t tool:fs.read execute"], "subject"],
  [
    20,
    ["allow coder_t tool:x.sock execute", "allow coder_t tool:a/b execute", `allow coder_t tool:${LONG} execute`],
    "object",
  ],
  [21, ["Allow coder_t tool:fs.read execute"], "verb"],
  [22, [" # note"], "fields"],
]

t.test("policy.17 (parser) every line vector of 7.2 is as printed", async t => {
  for (const [number, lines, word] of VECTORS) {
    for (const line of lines) t.same(verdict(file(line)), word ?? [line], `${number}: ${JSON.stringify(line)}`)
  }
})

t.test("policy.17 (parser) the file vectors 8, 9 and 23 are as printed", async t => {
  t.same(verdict(file("", "# note", "#")), [])
  t.same(verdict(Buffer.from("allow coder_t tool:fs.read execute")), "end")
  const broken = file("allow coder_t tool:fs.read execute", "deny coder_t tool:fs.read execute")
  t.same(verdict(broken), "verb")
  t.throws(() => parsePolicy(broken, "agent/coder.d/policy"), {
    code: "EINVAL",
    message: /^agent\/coder\.d\/policy line 2: verb: /,
  })
  t.same(policyAllows(checkPolicy(broken).policy, "coder_t", "tool", "fs.read", "execute"), DENIED)
})

t.test("the first word that fails is reported, in the order of the words", async t => {
  const line = (verb: string, subject: string, target: string, permission: string) =>
    `${verb} ${subject} ${target} ${permission}`
  t.equal(verdict(Buffer.from(" deny\t")), "character")
  t.equal(verdict(Buffer.from("deny -")), "end")
  t.equal(verdict(file("deny - x:y")), "fields")
  for (const blank of ["allow a tool:b ", " a tool:b execute", "allow  tool:b execute"])
    t.equal(verdict(file(blank)), "fields")
  t.equal(verdict(file(line("deny", "-", "x:y", "z"))), "verb")
  t.equal(verdict(file(line("allow", "-", "x:y", "z"))), "subject")
  t.equal(verdict(file(line("allow", "a", "x:y", "z"))), "class")
  t.equal(verdict(file(line("allow", "a", "tool", "z"))), "object")
  t.equal(verdict(file(line("allow", "a", "tool:", "z"))), "object")
  t.equal(verdict(file(line("allow", "a", "tool:b", "z"))), "permission")
  t.equal(verdict(file(line("allow", "a".repeat(81), "tool:b", "execute"))), "subject")
  t.equal(verdict(file(line("allow", "a", "constructor:b", "execute"))), "class")
})

t.test("comments hold any byte but NUL, and the last line ends in LF even when it is a comment", async t => {
  t.same(verdict(Buffer.concat([Buffer.from("# "), Buffer.from([0xff, 0x0d, 0x09]), Buffer.from("\n")])), [])
  t.equal(verdict(Buffer.from("# a\0\n")), "character")
  t.equal(verdict(Buffer.from("# a")), "end")
  t.same(verdict(Buffer.alloc(0)), [])
})

t.test("a file has at most 1024 rules and 64 KiB, and a repeated rule is one rule", async t => {
  const rules = (n: number) => Array.from({ length: n }, (_, i) => `allow a tool:t${i} execute`)
  t.equal(parsePolicy(file(...rules(1024))).rules.length, 1024)
  t.throws(() => parsePolicy(file(...rules(1025))), EINVAL)
  t.throws(() => parsePolicy(file(...Array(1025).fill(rules(1)[0]!))), EINVAL)
  t.same(verdict(file(...rules(2), ...rules(2))), rules(2))
  t.throws(() => parsePolicy(file(`#${"x".repeat(65536)}`)), EINVAL)
})

// A second reader of the grammar, written from 7.1 alone: one expression for a rule, the name rule apart.
const RULE =
  /^allow ([A-Za-z0-9_]{1,80}) (?:(tool|agent|shared):([A-Za-z0-9][A-Za-z0-9._+-]{0,63})|(model):([^ ]+)|(network):(default)|(session|mount):([!-~]{1,256})) (execute|use|read|write|create|start|stop|connect|resume)$/
const PERMISSIONS: Record<string, string> = {
  tool: "execute",
  model: "use",
  shared: "read write",
  agent: "create start stop read write",
  network: "connect",
  session: "read write resume",
  mount: "read write",
}
const nameOk = (s: string) => /^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$/.test(s) && !/\.(?:sock|d)$/.test(s)

function referenceRules(bytes: Buffer): Set<string> | undefined {
  const text = bytes.toString("latin1")
  if (text.length > 65536 || (text !== "" && !text.endsWith("\n"))) return undefined
  const rules = new Set<string>()
  let count = 0
  for (const line of text.split("\n").slice(0, -1)) {
    if (line === "") continue
    if (line.startsWith("#")) {
      if (line.includes("\0")) return undefined
      continue
    }
    const match = RULE.exec(line)
    if (match === null || ++count > 1024) return undefined
    const kind = (match[2] ?? match[4] ?? match[6] ?? match[8])!
    const object = (match[3] ?? match[5] ?? match[7] ?? match[9])!
    if (["tool", "agent", "shared"].includes(kind) && !nameOk(object)) return undefined
    if (kind === "model" && !/^(?:main|helper|fast|reason|code|vision)$/.test(object)) {
      const halves = object.split("/")
      if (halves.length !== 2 || !halves.every(nameOk)) return undefined
    }
    if (!PERMISSIONS[kind]!.split(" ").includes(match[10]!)) return undefined
    rules.add(line)
  }
  return rules
}

const word = fc.constantFrom(
  ..."allow deny coder_t a-b tool model shared agent network session mount execute use read connect resume".split(" "),
)
const object = fc.constantFrom(
  "fs.read",
  "a/b",
  "main",
  "default",
  "x.sock",
  "x.d",
  "*",
  "",
  "lab",
  LONG,
  "a:b",
  "é",
  "a".repeat(64),
)
const goodRule = fc.constantFrom(...VECTORS.filter(v => v[2] === null).flatMap(v => v[1]))
const nearRule = fc
  .tuple(word, fc.constantFrom("coder_t", "a", "", "x-"), word, object, word)
  .map(([verb, subject, kind, name, permission]) => `${verb} ${subject} ${kind}:${name} ${permission}`)
const mutatedRule = fc
  .tuple(goodRule, fc.nat(), fc.constantFrom(..."\t\r\0 :/.#a*", ""))
  .map(([line, at, c]) => line.slice(0, at % line.length) + c + line.slice((at % line.length) + 1))
const nearFile = fc
  .array(fc.oneof(goodRule, goodRule, nearRule, mutatedRule, fc.constant("# x"), fc.constant("")), { maxLength: 6 })
  .chain(lines =>
    fc.constantFrom("\n", "").map(end => Buffer.from(lines.join("\n") + (lines.length > 0 ? end : ""), "latin1")),
  )
const anyFile = fc.oneof(
  nearFile,
  fc.uint8Array({ maxLength: 300 }).map(b => Buffer.from(b)),
)

t.test("policy.19 any byte string is read without a throw and allows only what a reference reader allows", async t => {
  fc.assert(
    fc.property(anyFile, bytes => {
      const { policy, issue } = checkPolicy(bytes)
      const reference = referenceRules(bytes)
      assert.equal(issue === undefined, reference !== undefined, JSON.stringify(bytes.toString("latin1")))
      assert.deepEqual(policy.rules.map(formatRule), [...(reference ?? [])])
      try {
        parsePolicy(bytes)
      } catch (e) {
        assert.ok(e instanceof CtxError && e.code === "EINVAL")
      }
    }),
    { numRuns: 4000 },
  )
  t.pass()
})

t.test("policy.19 the largest and the ugliest files are read in under 100 ms", async t => {
  const sources = [
    "\n",
    "#",
    "# \n",
    " ",
    ":",
    "a",
    "allow ",
    "allow a tool:b execute\n",
    "allow a session:",
    "\0",
    "\xff",
  ]
  for (const source of sources) {
    for (const size of [65536, 65537, 10_000_000]) {
      const bytes = Buffer.alloc(size, source, "latin1")
      const start = performance.now()
      checkPolicy(bytes)
      t.ok(performance.now() - start < 100, `${size} bytes of ${JSON.stringify(source)}`)
    }
  }
})

t.test("policies survive format and parse", async t => {
  fc.assert(
    fc.property(nearFile, bytes => {
      const { policy } = checkPolicy(bytes)
      assert.deepEqual(parsePolicy(formatPolicy(policy)), policy)
    }),
  )
  t.pass()
})

t.test("a decision compares subject, class, object and permission exactly and names its rule", async t => {
  const policy = parsePolicy(
    file("allow coder_t shared:lab write", "allow coder_t tool:fs.read execute", "allow other_t tool:fs.stat execute"),
  )
  t.same(policyAllows(policy, "coder_t", "shared", "lab", "write"), {
    allow: true,
    rule: "allow coder_t shared:lab write",
  })
  const denied: [string, PolicyClass, string, string][] = [
    ["coder_t", "shared", "lab", "read"],
    ["coder_t", "tool", "fs.stat", "execute"],
    ["coder_t", "tool", "FS.READ", "execute"],
    ["coder", "tool", "fs.read", "execute"],
    ["coder_t", "agent", "fs.read", "execute"],
  ]
  for (const [subject, kind, object, permission] of denied) {
    t.same(policyAllows(policy, subject, kind, object, permission), { allow: false, code: "EACCES" })
  }
  t.same(policyAllows(undefined, "coder_t", "tool", "fs.read", "execute"), DENIED)
})

t.test("a model is allowed by its reference or by what it resolves to", async t => {
  const byAlias = parsePolicy(file("allow a model:main use"))
  const byModel = parsePolicy(file("allow a model:debug/echo use"))
  t.equal(policyAllowsModel(byAlias, "a", "main", "debug/echo").allow, true)
  t.equal(policyAllowsModel(byModel, "a", "main", "debug/echo").allow, true)
  t.equal(policyAllowsModel(byAlias, "a", "debug/echo", "debug/echo").allow, false)
  t.equal(policyAllowsModel(byModel, "a", "main", "debug/script").allow, false)
})

t.test("a tool needs both the agent's and its own policy", async t => {
  const both = parsePolicy(file("allow a tool:x execute"))
  const none = parsePolicy(file())
  t.equal(policyAllowsTool(both, both, "a", "x").allow, true)
  for (const [agent, tool] of [
    [both, none],
    [none, both],
    [both, undefined],
    [undefined, both],
  ] as const) {
    t.same(policyAllowsTool(agent, tool, "a", "x"), DENIED)
  }
})

t.test("policy.21 session and mount rules change no decision", async t => {
  const idle = fc.constantFrom("allow a session:default read", "allow a mount:/srv write", "allow a session:* resume")
  const real = fc.constantFrom(
    "allow a tool:x execute",
    "allow a model:main use",
    "allow a shared:lab read",
    "allow a agent:b stop",
  )
  const questions: [PolicyClass, string, string][] = [
    ["tool", "x", "execute"],
    ["model", "main", "use"],
    ["shared", "lab", "read"],
    ["agent", "b", "stop"],
    ["session", "default", "read"],
    ["session", "*", "resume"],
    ["mount", "/srv", "write"],
  ]
  fc.assert(
    fc.property(fc.array(real), fc.array(idle), (rules, more) => {
      const without = parsePolicy(file(...rules))
      for (const lines of [
        [...rules, ...more],
        [...more, ...rules],
      ]) {
        const policy = parsePolicy(file(...lines))
        for (const [kind, object, permission] of questions) {
          assert.deepEqual(
            policyAllows(policy, "a", kind, object, permission),
            policyAllows(without, "a", kind, object, permission),
          )
        }
      }
    }),
  )
  t.same(policyAllows(parsePolicy(file("allow a session:default read")), "a", "session", "default", "read"), DENIED)
})
