// needs: root
import { fstatSync, mkdirSync, openSync, readFileSync, statSync, symlinkSync, unlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import { findReceipt, formatReceipt, issueReceipt, parseReceipt, type Receipt } from "../../src/store/receipt.js"
import { makeStore, updateHere } from "../fixture/store/kit.js"
import { makeDir } from "../harness/product.js"

const INVOCATION = "7d1e0c5b2a3948f6a1b2c3d4e5f60718"
const SYSTEM = { unit: "cortexfs-agent@coder.service", invocation: INVOCATION, isOwnedStart: true }
const TERMINAL = {
  session: "default",
  unit: "cortexfs-agent-coder-default-terminal.service",
  invocation: INVOCATION,
  pid: 4242,
  identity: { uid: 1000, gid: 1000, groups: [1000] },
}

function identityOf(dir: string) {
  const { dev, ino } = statSync(dir, { bigint: true })
  return { dev, ino }
}

function readMeta(dir: string): { runtime_receipt: Record<string, unknown>; [key: string]: unknown } {
  return JSON.parse(readFileSync(join(dir, "meta.json"), "utf8"))
}

test("a receipt has the exact form of agent-runtime 16 and is read back as it was", async t => {
  const receipt: Receipt = { control: { dev: 64769n, ino: 9117n }, terminal: TERMINAL, system: SYSTEM }
  const bytes = formatReceipt(Buffer.from('{"mine":[1,{"a":null}]}'), receipt)
  t.equal(
    bytes.toString(),
    `{"mine":[1,{"a":null}],"runtime_receipt":{"version":1,"control":{"dev":64769,"ino":9117},"terminal":{"session":"default","unit":"cortexfs-agent-coder-default-terminal.service","invocation":"${INVOCATION}","pid":4242,"identity":{"uid":1000,"gid":1000,"groups":[1000]}},"system":{"unit":"cortexfs-agent@coder.service","invocation":"${INVOCATION}","owned_start":true}}}\n`,
  )
  t.strictSame(parseReceipt(bytes), receipt)
  t.equal(parseReceipt(Buffer.from("{}")), undefined)
  const large = { control: { dev: 1n, ino: 2n ** 63n + 1n } }
  t.match(parseReceipt(formatReceipt(Buffer.from("{}"), large)), large)
})

test("a receipt with a key too much or too few, or a value of another kind, is EINVAL", async t => {
  const good = JSON.parse(
    formatReceipt(Buffer.from("{}"), { control: { dev: 1n, ino: 2n }, terminal: TERMINAL, system: SYSTEM }).toString(),
  ).runtime_receipt
  const bad = [
    null,
    [],
    { ...good, version: 2 },
    { ...good, more: 1 },
    { version: 1 },
    { ...good, control: { dev: 1 } },
    { ...good, control: { dev: 1, ino: -2 } },
    { ...good, control: { dev: 1, ino: "2" } },
    { ...good, control: { dev: 1, ino: 2.5 } },
    { ...good, system: { ...good.system, invocation: "x" } },
    { ...good, system: { ...good.system, invocation: INVOCATION.toUpperCase() } },
    { ...good, system: { ...good.system, unit: "a b" } },
    { ...good, system: { ...good.system, unit: "../x" } },
    { ...good, system: { ...good.system, owned_start: 1 } },
    { ...good, terminal: { ...good.terminal, identity: {} } },
    { ...good, terminal: { ...good.terminal, session: "a/b" } },
  ]
  for (const value of bad) {
    const text = JSON.stringify({ runtime_receipt: value })
    t.throws(() => parseReceipt(Buffer.from(text)), { code: "EINVAL" }, text.slice(0, 40))
  }
  for (const text of ["", "{", "[]", '{"a":1,"a":2}'])
    t.throws(() => parseReceipt(Buffer.from(text)), { code: "EINVAL" })
})

test("a new launch replaces the receipt in one step and keeps a terminal of the same directory and other keys", async t => {
  const dir = join(makeDir(), "coder.d")
  mkdirSync(dir)
  issueReceipt(dir, SYSTEM)
  const fd = openSync(dir, "r")
  t.strictSame(findReceipt(fd), { control: identityOf(dir), terminal: undefined, system: SYSTEM })
  writeFileSync(
    join(dir, "meta.json"),
    formatReceipt(Buffer.from('{"mine":1}'), { control: identityOf(dir), terminal: TERMINAL }),
  )
  const before = fstatSync(openSync(join(dir, "meta.json"), "r")).ino
  issueReceipt(dir, SYSTEM)
  t.strictSame(findReceipt(fd), { control: identityOf(dir), terminal: TERMINAL, system: SYSTEM })
  t.equal(readMeta(dir).mine, 1)
  t.not(statSync(join(dir, "meta.json")).ino, before)
  writeFileSync(
    join(dir, "meta.json"),
    formatReceipt(Buffer.from("{}"), { control: { dev: 1n, ino: 1n }, terminal: TERMINAL }),
  )
  issueReceipt(dir, undefined)
  t.strictSame(findReceipt(fd), { control: identityOf(dir), terminal: undefined, system: undefined })
})

test("a meta.json that is no JSON object, a link, or has no room is left as it is", async t => {
  const dir = join(makeDir(), "coder.d")
  mkdirSync(dir)
  const path = join(dir, "meta.json")
  for (const text of ["{", "[1]", `{"a":"${"x".repeat(65500)}"}`]) {
    writeFileSync(path, text)
    t.throws(() => issueReceipt(dir, SYSTEM), { code: "EINVAL" })
    t.equal(readFileSync(path, "utf8"), text)
  }
  unlinkSync(path)
  symlinkSync("/etc/hostname", path)
  t.throws(() => issueReceipt(dir, SYSTEM), { code: "EINVAL" })
})

test("roll.26 (receipts only) a roll re-issues a receipt that verifies for the new control directory, and no other", async t => {
  const store = await makeStore()
  const old = await updateHere(store)
  const [coder, reviewer, worker] = ["coder", "reviewer", "worker"].map(agent => join(old, `agent/${agent}.d`)) as [
    string,
    string,
    string,
  ]
  const own = (dir: string) => ({ control: identityOf(dir), terminal: TERMINAL, system: SYSTEM })
  writeFileSync(join(coder, "meta.json"), formatReceipt(Buffer.from('{"mine":1}'), own(coder)))
  const stale = formatReceipt(Buffer.from("{}"), own(coder))
  writeFileSync(join(reviewer, "meta.json"), stale)
  const malformed = Buffer.from('{"runtime_receipt":{"version":1}, "mine" : 2}')
  writeFileSync(join(worker, "meta.json"), malformed)
  writeFileSync(join(old, "shared/cortexfs-docs/stale.md"), "")
  const next = await updateHere(store)
  t.not(next, old)
  const dir = join(next, "agent/coder.d")
  t.strictSame(findReceipt(openSync(dir, "r")), own(dir))
  t.equal(readMeta(dir).mine, 1)
  t.not(identityOf(dir).ino, identityOf(coder).ino)
  t.strictSame(readFileSync(join(next, "agent/reviewer.d/meta.json")), stale)
  t.strictSame(readFileSync(join(next, "agent/worker.d/meta.json")), malformed)
  t.equal(
    statSync(join(dir, "meta.json"), { bigint: true }).mtimeMs,
    statSync(join(coder, "meta.json"), { bigint: true }).mtimeMs,
  )
})
