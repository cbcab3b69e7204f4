// needs: root
import { execFileSync } from "node:child_process"
import {
  appendFileSync,
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  unlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import { test } from "tap"
import { differences, leftovers, makeStore, OWNER, picture, type Store, updateHere } from "../fixture/store/kit.js"

/** Changes one byte of the release's own content, so that a roll is needed. */
function needRoll(current: string): void {
  const path = join(current, "shared/cortexfs-docs/README.md")
  writeFileSync(path, readFileSync(path, "utf8").replace("CortexFS", "CortexFs"))
}

const mtimeNs = (path: string) => statSync(path, { bigint: true }).mtimeNs

async function roll(store: Store): Promise<string> {
  const before = store.current()
  needRoll(before)
  const after = await updateHere(store)
  if (after === before) throw new Error("no new generation was made")
  return after
}

test("roll.5 what a person edits survives a roll byte for byte and causes none", async t => {
  const store = await makeStore()
  const current = await updateHere(store)
  unlinkSync(join(current, "model/fast"))
  symlinkSync("/ctx/model/acme/small", join(current, "model/fast"))
  const edits: Record<string, string> = {
    "agent/coder.d/policy": "# mine\nallow coder_t tool:fs.read execute\n",
    "agent/coder.d/system.md": "Be brief.\n",
    "agent/coder.d/model": "debug/echo\n",
    "agent/reviewer.d/mount": "",
    "tool/fs.read.d/policy": "",
    "tool/fs.read.d/timeout": "7\n",
  }
  for (const [path, text] of Object.entries(edits)) writeFileSync(join(current, path), text)
  t.equal(await updateHere(store), current, "none of them causes a roll")
  const next = await roll(store)
  t.not(next, current)
  t.equal(readlinkSync(join(next, "model/fast")), "/ctx/model/acme/small")
  for (const [path, text] of Object.entries(edits)) t.equal(readFileSync(join(next, path), "utf8"), text, path)
})

test("roll.6 a changed byte of the release's content causes a roll that restores it", async t => {
  const store = await makeStore()
  let current = await updateHere(store)
  for (const path of ["shared/cortexfs-docs/man/ctx.tool.md", "tool/fs.read.d/schema", "agent/worker", "bin/ctx"]) {
    const good = readFileSync(join(current, path))
    writeFileSync(join(current, path), Buffer.concat([Buffer.from([good[0]! ^ 1]), good.subarray(1)]))
    const next = await updateHere(store)
    t.not(next, current, path)
    t.strictSame(readFileSync(join(next, path)), good, path)
    current = next
  }
  writeFileSync(join(current, "bin/old"), "")
  mkdirSync(join(current, "shared/cortexfs-docs/man/more"))
  writeFileSync(join(current, "shared/cortexfs-docs/man/more/ctx.old.md"), "")
  const next = await updateHere(store)
  t.notOk(existsSync(join(next, "bin/old")), "a stale file in bin is removed")
  t.notOk(existsSync(join(next, "shared/cortexfs-docs/man/more")), "and one in the docs, with its directory")
})

test("roll.7 an agent and a tool of a person are carried with bytes, owner, mode and mtime", async t => {
  const store = await makeStore()
  const current = await updateHere(store)
  for (const [name, uid] of [
    ["agent/mine", OWNER],
    ["tool/my.tool", 0],
  ] as const) {
    mkdirSync(join(current, `${name}.d/sub`), { recursive: true })
    writeFileSync(join(current, name), "#!/bin/true\n", { mode: 0o751 })
    writeFileSync(join(current, `${name}.d/description`), "x\n".repeat(100_000), { mode: 0o640 })
    symlinkSync("/nowhere", join(current, `${name}.d/link`))
    writeFileSync(Buffer.concat([Buffer.from(join(current, `${name}.d/`)), Buffer.from([0x62, 0xff])]), "not UTF-8\n")
    execFileSync("chown", ["-hR", `${uid}:${uid}`, join(current, name), join(current, `${name}.d`)])
    for (const path of [name, `${name}.d/description`]) utimesSync(join(current, path), 1_000_000, 1_234_567.89)
    execFileSync("touch", ["-hd", "@7654321", join(current, `${name}.d/link`)])
  }
  chmodSync(join(current, "agent/mine"), 0o6755)
  const next = await roll(store)
  for (const name of ["agent/mine", "tool/my.tool"]) {
    const wanted = picture(join(current, `${name}.d`))
    t.strictSame(differences(wanted, picture(join(next, `${name}.d`))), [], name)
    t.strictSame(readFileSync(join(next, name)), readFileSync(join(current, name)))
    t.equal(mtimeNs(join(next, name)), mtimeNs(join(current, name)))
    t.equal(statSync(join(next, name)).uid, statSync(join(current, name)).uid)
    t.equal(mtimeNs(join(next, `${name}.d/sub`)), mtimeNs(join(current, `${name}.d/sub`)))
  }
  let last = next
  for (let i = 0; i < 3; i++) last = await roll(store)
  t.equal(mtimeNs(join(last, "agent/mine")), mtimeNs(join(current, "agent/mine")), "nor does it drift")
  t.equal((statSync(join(next, "agent/mine")).mode & 0o7777).toString(8), "755", "set-id bits are gone")
  t.equal((statSync(join(next, "tool/my.tool")).mode & 0o7777).toString(8), "751")
})

test("roll.7 (FIFO, socket, hard link) a planted FIFO makes a roll fail, a socket is left out, a hard link becomes a file", async t => {
  const store = await makeStore()
  const current = await updateHere(store)
  const fifo = join(current, "agent/coder.d/x")
  execFileSync("mkfifo", [fifo])
  needRoll(current)
  const before = picture(store.dataRoot)
  await t.rejects(updateHere(store), { code: "EINVAL", message: /^agent\/coder\.d\/x: / })
  t.strictSame(differences(before, picture(store.dataRoot)), [])
  rmSync(fifo)
  execFileSync("python3", [
    "-c",
    `import socket; socket.socket(socket.AF_UNIX).bind("${join(current, "agent/s.sock")}")`,
  ])
  execFileSync("ln", [join(current, "agent/coder.d/cwd"), join(current, "agent/coder.d/cwd2")])
  const next = await updateHere(store)
  t.notOk(existsSync(join(next, "agent/s.sock")))
  t.equal(statSync(join(next, "agent/coder.d/cwd2")).nlink, 1)
  t.equal(readFileSync(join(next, "agent/coder.d/cwd2"), "utf8"), "/workspace\n")
})

test("an object log above 1 MiB is carried as its newest whole lines", async t => {
  const store = await makeStore()
  const current = await updateHere(store)
  const log = join(current, "agent/coder.d/log")
  for (let i = 0; i < 40; i++) appendFileSync(log, `${JSON.stringify({ i, text: "x".repeat(49_000) })}\n`)
  writeFileSync(join(current, "tool/fs.read.d/log"), "short\n")
  const next = await roll(store)
  const kept = readFileSync(join(next, "agent/coder.d/log"), "utf8")
  t.ok(kept.length <= 1024 * 1024 && kept.length > 950_000, `${kept.length} bytes`)
  t.ok(readFileSync(log, "utf8").endsWith(kept))
  t.match(kept, /^\{"i":\d+,/, "it begins with a whole line")
  t.equal(readFileSync(join(next, "tool/fs.read.d/log"), "utf8"), "short\n")
})

test("a directory nested deeper than any tree of ours is refused, and prune can still remove it", async t => {
  const store = await makeStore()
  const current = await updateHere(store)
  let dir = join(current, "agent/coder.d")
  for (let i = 0; i < 900; i++) {
    dir = join(dir, "d")
    mkdirSync(dir)
  }
  needRoll(current)
  await t.rejects(updateHere(store), { code: "EINVAL", message: /^agent\/coder\.d\/d\/d\/.*deeper than 64/ })
  t.strictSame(leftovers(store), [])
  // Selected by hand is another valid tree, as an operator would do it.
  const other = join(store.storage, "generations/other")
  execFileSync("cp", ["-a", current, other])
  rmSync(join(other, "agent/coder.d/d"), { recursive: true })
  unlinkSync(join(store.storage, "current"))
  symlinkSync("generations/other", join(store.storage, "current"))
  await updateHere(store, { prune: true })
  t.notOk(lstatSync(current, { throwIfNoEntry: false }))
})

test("a home or another space in a generation is refused", async t => {
  for (const name of ["home", "shared/lab"]) {
    const store = await makeStore()
    const current = await updateHere(store)
    mkdirSync(join(current, name))
    await t.rejects(updateHere(store), { code: "EINVAL", message: /^(?:home|shared): / }, name)
    t.equal(store.current(), current)
    t.strictSame(leftovers(store), [])
  }
})

test("an operator's control that was removed is made again, a managed agent that was removed too", async t => {
  const store = await makeStore()
  const current = await updateHere(store)
  chownSync(join(current, "agent/coder.d/owner"), OWNER, OWNER)
  rmSync(join(current, "agent/coder.d/cwd"))
  rmSync(join(current, "agent/worker"))
  rmSync(join(current, "agent/worker.d"), { recursive: true })
  const next = await updateHere(store)
  t.equal(readFileSync(join(next, "agent/coder.d/cwd"), "utf8"), "/workspace\n")
  t.equal(readFileSync(join(next, "agent/worker.d/model"), "utf8"), "helper\n")
  t.equal(statSync(join(next, "agent/worker")).uid, OWNER)
})
