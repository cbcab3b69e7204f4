// The policy interpreter may only tighten.
import { chmodSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import type { Decision } from "../../src/policy/decision.js"
import { type PolicyRequest, readInterpreter, tighten } from "../../src/policy/interpreter.js"

const REQUEST: PolicyRequest = {
  subject: "coder_t",
  class: "tool",
  object: "fs.read",
  permission: "execute",
  agent: "coder",
  uid: 1000,
  session: "default",
  run: "ctx-7f3a90c1d2e4455b8a6c0f1e2d3b4a59",
}
const ALLOWED: Decision = { allow: true, rule: "allow coder_t tool:fs.read execute" }
const REFUSED: Decision = { allow: false, code: "EACCES" }
const ME = process.getuid!()

interface Host {
  dir: string
  module: string
  decide: (decision: Decision, request?: PolicyRequest) => Promise<{ decision: Decision; faults: number }>
}

function makeHost(t: { teardown: (fn: () => void) => void }, body: string | undefined, config?: object): Host {
  const dir = mkdtempSync(join(tmpdir(), "cx-interpreter-"))
  t.teardown(() => rmSync(dir, { recursive: true }))
  const module = join(dir, "policy.mjs")
  if (body !== undefined) writeFileSync(module, body, { mode: 0o644 })
  writeFileSync(join(dir, "policy.json"), JSON.stringify(config ?? { module }), { mode: 0o644 })
  const decide = async (decision: Decision, request = REQUEST) => {
    let faults = 0
    const interpreter = await readInterpreter(dir, ME, () => faults++)
    return { decision: await tighten(decision, interpreter, request), faults }
  }
  return { dir, module, decide }
}

const ROWS: [string, string, boolean][] = [
  ["allow", 'export const decide = () => "allow"', true],
  ["a promise of allow", 'export const decide = async () => "allow"', true],
  ["deny", 'export const decide = () => "deny"', false],
  ["yes", 'export const decide = () => "yes"', false],
  ["true", "export const decide = () => true", false],
  ["an exception", 'export const decide = () => { throw new Error("x") }', false],
  ["a rejection", 'export const decide = async () => { throw new Error("x") }', false],
  ["a thenable that throws", "export const decide = () => ({ get then() { throw 1 } })", false],
  [
    "101 ms of work",
    'export const decide = () => { const s = performance.now(); while (performance.now() - s < 101); return "allow" }',
    false,
  ],
  ["101 ms of waiting", 'export const decide = () => new Promise(r => setTimeout(r, 101, "allow"))', false],
  ["a promise that never settles", "export const decide = () => new Promise(() => {})", false],
]

for (const [what, body, isAllowed] of ROWS) {
  t.test(
    `policy.20 an interpreter that answers with ${what} ${isAllowed ? "lets an allowed call through" : "denies"}`,
    async t => {
      const host = makeHost(t, body)
      t.same((await host.decide(ALLOWED)).decision, isAllowed ? ALLOWED : REFUSED)
      t.same((await host.decide(REFUSED)).decision, REFUSED)
    },
  )
}

const ALLOWING = 'export const decide = () => "allow"'
const UNSAFE: [string, (h: Host) => void][] = [
  ["a group-writable file", h => chmodSync(join(h.dir, "policy.json"), 0o664)],
  ["a world-writable file", h => chmodSync(join(h.dir, "policy.json"), 0o646)],
  ["a group-writable module", h => chmodSync(h.module, 0o664)],
  ["a world-writable module", h => chmodSync(h.module, 0o646)],
  ["a missing module", h => rmSync(h.module)],
  [
    "a linked module",
    h => {
      writeFileSync(join(h.dir, "real.mjs"), ALLOWING, { mode: 0o644 })
      rmSync(h.module)
      symlinkSync(join(h.dir, "real.mjs"), h.module)
    },
  ],
  ["a module that throws at load", h => writeFileSync(h.module, 'throw new Error("x")')],
  ["a module without decide", h => writeFileSync(h.module, "export const other = 1")],
  ["a module that is no JavaScript", h => writeFileSync(h.module, "{{{")],
  ["a file that is no JSON", h => writeFileSync(join(h.dir, "policy.json"), "{")],
  [
    "a file with another key",
    h => writeFileSync(join(h.dir, "policy.json"), JSON.stringify({ module: h.module, x: 1 })),
  ],
  ["a relative module", h => writeFileSync(join(h.dir, "policy.json"), '{"module":"policy.mjs"}')],
]

for (const [what, damage] of UNSAFE) {
  t.test(`policy.20 ${what} denies what the policy allows and is reported`, async t => {
    const host = makeHost(t, ALLOWING)
    damage(host)
    const { decision, faults } = await host.decide(ALLOWED)
    t.same(decision, REFUSED)
    t.equal(faults, 1)
  })
}

t.test("policy.20 a file or module of another owner denies", async t => {
  const host = makeHost(t, ALLOWING)
  t.equal(await (await readInterpreter(host.dir, ME + 1)).isAllowed(REQUEST), false)
})

t.test("without a file everything that the policy allows is allowed", async t => {
  const host = makeHost(t, ALLOWING)
  rmSync(join(host.dir, "policy.json"))
  const { decision, faults } = await host.decide(ALLOWED)
  t.same(decision, ALLOWED)
  t.equal(faults, 0)
  t.same((await host.decide(REFUSED)).decision, REFUSED)
})

t.test("a denied request is not asked about, and an allowed one is asked with all its facts", async t => {
  const body = `
    export const asked = globalThis.cxAsked = []
    export const decide = request => { asked.push(request); return "allow" }`
  const host = makeHost(t, body)
  const asked = () => (globalThis as unknown as { cxAsked: unknown[] }).cxAsked
  await host.decide(REFUSED)
  t.same(asked(), [])
  await host.decide(ALLOWED)
  t.same(asked(), [REQUEST])
  t.same((await host.decide(ALLOWED, { ...REQUEST, class: "session" })).decision, REFUSED)
  t.equal(asked().length, 1)
})
