// needs: root
import { spawnSync } from "node:child_process"
import { chownSync, mkdirSync, readFileSync, rmSync, statfsSync, statSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t, { type Test } from "tap"
import { mount, umount2 } from "../../src/native/sys.js"
import type { Place } from "../../src/session/place.js"
import { verifyNamed } from "../../src/session/reader.js"
import {
  makePlace,
  openLocked,
  payloadOf,
  recordRun,
  rowsOf,
  Sessions,
  startOf,
  takePicture,
} from "../fixture/session/place.js"
import { makeDir } from "../harness/product.js"

// A place on a file system of its own, of 1 MiB.
function makeSmallPlace(t: Test): { place: Place; base: string } {
  const base = makeDir("cortexfs-space")
  mount("tmpfs", base, "tmpfs", 0, "size=1m,mode=0755")
  t.teardown(() => umount2(base, 2))
  return { place: makePlace(base), base }
}

// Leaves `pages` free pages.
function fillUp(base: string, pages: number): void {
  rmSync(join(base, "filler"), { force: true })
  const { bavail, bsize } = statfsSync(base)
  writeFileSync(join(base, "filler"), Buffer.alloc((bavail - pages) * bsize))
}

const proofs = async (place: Place) => (await verifyNamed(place.dir, "s")).map(proof => proof.damage)

t.test(
  "a send on a full file system is refused with ENOSPC, leaves no torn tail and stores nothing; with space it works",
  async t => {
    const { place, base } = makeSmallPlace(t)
    const sessions = new Sessions(place)
    await recordRun(sessions, "s", startOf(1))
    const files = ["messages.jsonl", "events.jsonl", "state"].map(name => join(place.dir, "s", name))
    const read = () => files.map(file => readFileSync(file, "utf8"))
    const before = read()
    for (const pages of [0, 1, 2]) {
      fillUp(base, pages)
      const session = await openLocked(sessions, "s")
      // Rows of many pages: the write of the first is cut short in its middle.
      await t.rejects(
        session.begin(startOf(2, { content: "x".repeat(200_000) })),
        { code: "ENOSPC" },
        `${pages} pages free`,
      )
      session.unlockRun()
      t.strictSame(read(), before, `${pages} pages free: files as they were`)
      t.strictSame(await proofs(place), [undefined, undefined])
    }
    rmSync(join(base, "filler"))
    const lines = await recordRun(sessions, "s", startOf(2))
    const fresh = new Sessions(place).find("s")!
    await fresh.open()
    t.equal(await fresh.replay("m-2", payloadOf(2)), lines.at(-1))
  },
)

t.test("a result that finds no space is cut back; the run can still settle with its error", async t => {
  const { place, base } = makeSmallPlace(t)
  const sessions = new Sessions(place)
  const session = await sessions.create("s", { cwd: "/workspace", model: "debug/echo" })
  const recorder = await session.begin(startOf(1))
  fillUp(base, 8)
  const sizes = () => ["messages.jsonl", "events.jsonl"].map(name => statSync(join(place.dir, "s", name)).size)
  const before = sizes()
  const result = { name: "fs.read", callId: "c-1", content: "x".repeat(25_000), status: "ok" as const }
  // The row fits, its event does not: both are taken back.
  await t.rejects(recorder.toolResult(result), { code: "ENOSPC" })
  t.strictSame(sizes(), before)
  await t.rejects(recorder.settle({ status: "ok", parts: [{ type: "text", text: "y".repeat(60_000) }] }), {
    code: "ENOSPC",
  })
  t.strictSame(sizes(), before)
  const lines = await recorder.settle({ status: "error", error: { code: "ENOSPC", message: "no space" } })
  t.equal(lines.length, 2)
  t.strictSame(
    rowsOf(join(place.dir, "s/events.jsonl")).map(row => row.type),
    ["session_created", "start", "error", "done"],
  )
  t.strictSame(await proofs(place), [undefined, undefined])
  session.close()
})

t.test("a run that cannot settle is given up and recovered when there is space again", async t => {
  const { place, base } = makeSmallPlace(t)
  const sessions = new Sessions(place)
  const session = await sessions.create("s", { cwd: "/workspace" })
  const recorder = await session.begin(startOf(1))
  // Fill the last page of the events, then the file system.
  const room = 4096 - (statSync(join(place.dir, "s/events.jsonl")).size % 4096)
  await recorder.event({ type: "tool_call", id: "c-1", name: "x", arguments: { text: "x".repeat(room - 160) } })
  fillUp(base, 0)
  const events = readFileSync(join(place.dir, "s/events.jsonl"), "utf8")
  await t.rejects(recorder.settle({ status: "error", error: { code: "ENOSPC", message: "x".repeat(400) } }), {
    code: "ENOSPC",
  })
  recorder.abandon()
  t.equal(readFileSync(join(place.dir, "s/events.jsonl"), "utf8"), events)
  rmSync(join(base, "filler"))
  await session.open()
  t.strictSame(
    rowsOf(join(place.dir, "s/events.jsonl"))
      .map(row => row.type)
      .slice(-2),
    ["error", "done"],
  )
  t.equal(session.readState(), "error")
  session.close()
})

t.test("a creation without space leaves nothing behind", async t => {
  const { place, base } = makeSmallPlace(t)
  mkdirSync(place.dir, { recursive: true })
  spawnSync("chown", ["-R", "12001:12001", join(base, "home/12001")])
  chownSync(join(base, "home/12001"), 12001, 12001)
  const before = Object.keys(takePicture(join(base, "home")))
  for (const pages of [0, 1, 4]) {
    fillUp(base, pages)
    await t.rejects(new Sessions(place).create("s", { cwd: "/workspace" }), { code: "ENOSPC" })
    t.strictSame(Object.keys(takePicture(join(base, "home"))), before)
  }
})
