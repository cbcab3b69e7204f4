// needs: root fuse bwrap
import { execFileSync } from "node:child_process"
import { closeSync, mkdtempSync, openSync, readdirSync, rmdirSync, rmSync, statfsSync, writeSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import { fingerprint, type Stage } from "../fixture/agent/stage.js"
import { installedPrefix } from "../harness/product.js"
import {
  checkEnded,
  checkProven,
  checkSends,
  checkTold,
  makeWholeStage,
  rowsOf,
  stateOf,
  until,
} from "./fixture/kit.js"

t.test("a full disk below the data root", async t => {
  // The installation stays outside: only what this test's stack writes is on the small disk.
  process.env.CORTEXFS_TEST_PREFIX = await installedPrefix()
  const disk = mkdtempSync(join(tmpdir(), "cortexfs-disk-"))
  execFileSync("mount", ["-t", "tmpfs", "-o", "size=8m,mode=0755", "none", disk])
  t.teardown(() => {
    execFileSync("umount", [disk])
    rmdirSync(disk)
  })
  const outside = process.env.TMPDIR
  process.env.TMPDIR = disk
  const stage: Stage = await makeWholeStage(t).finally(() => {
    if (outside === undefined) delete process.env.TMPDIR
    else process.env.TMPDIR = outside
  })
  const ballast = join(disk, "ballast")
  const freeBytes = () => {
    const { bavail, bsize } = statfsSync(disk)
    return bavail * bsize
  }
  /** Fills the disk up to `leftBytes`. */
  const fill = (leftBytes: number) => {
    const fd = openSync(ballast, "a")
    const page = Buffer.alloc(4096, 1)
    try {
      while (freeBytes() > leftBytes) writeSync(fd, page)
    } catch (e) {
      if ((e as NodeJS.ErrnoException).code !== "ENOSPC") throw e
    } finally {
      closeSync(fd)
    }
  }
  /** SHA-256 of every session file: a row that did not fit is cut off again, which moves its file's mtime. */
  const contents = () =>
    Object.entries(fingerprint(stage.sessionDir)).map(([path, facts]) => `${path} ${facts.split(" ")[0]}`)
  const long = `${JSON.stringify({ schema: "cortexfs.script/v1", steps: [{ say: "stored" }] })}${" ".repeat(60_000)}`

  t.test("a send that finds no space is refused or ends in ENOSPC, and history stays proven", async t => {
    const run = await stage.send(long, { session: "old" }).over()
    t.match(run.frames.at(-1), { type: "done", status: "ok" })
    fill(0)
    const before = contents()
    for (const session of ["old", "new"]) {
      const refused = await stage.send(long, { session, id: "full" }).over()
      t.match(refused.frames, [{ type: "error", code: /^(ENOSPC|EIO)$/ }], `${session} is refused`)
    }
    t.strictSame(contents(), before, "nothing is recorded")
    t.strictSame(
      readdirSync(stage.sessionDir).filter(name => name.startsWith(".")),
      [],
      "no residue",
    )
    await checkProven(t, stage, "old")
    t.match((await stage.owner.ask(stage.runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
    const told = await stage.stack.runCtx(["agent", "send", "coder", "--session", "old", long])
    t.not(told.code, 0)
    t.match(told.stderr, /^ctx: (ENOSPC|EIO): [^\n]+\n$/)
    rmSync(ballast)
    for (const session of ["old", "new"]) {
      const run = await stage.send(long, { session, id: "full" }).over()
      t.match(run.frames.at(-1), { type: "done", status: "ok" }, `${session}: the same id runs when there is space`)
      await checkProven(t, stage, session)
    }
  })

  t.test("with any amount of space left, no send leaves torn history or loses what was told", async t => {
    const pages = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40]
    let refused = 0
    let broken = 0
    for (const [i, page] of pages.entries()) {
      const session = i % 2 === 0 ? "edge" : `edge-${i}`
      fill(page * 4096)
      const told = await stage.send(long, { session, id: `e-${i}` }).over()
      const kinds = told.frames.map(f => f.type)
      if (kinds.length === 1 && kinds[0] === "error") refused++
      else if (told.frames.at(-1)?.status !== "ok") broken++
      rmSync(ballast)
      const again = await stage.send(long, { session, id: `e-${i}` }).over()
      // Refused: it runs now. Begun: its done is told, also when it could not be stored before.
      t.equal(
        again.frames.at(-1)?.type,
        "done",
        `${page} pages: ${JSON.stringify(kinds)} then ${again.lines.at(-1)?.text}`,
      )
      await checkProven(t, stage, session)
      t.equal(rowsOf(stage, session).filter(r => r.client_id === `e-${i}`).length, 1, `${page} pages: one row`)
      await checkSends(t, stage, session)
    }
    t.ok(refused > 0, `${refused} refused, ${broken} broken off`)
  })

  t.test(
    "a run whose answer finds no space ends in ENOSPC, stored in the space its events have, and state follows",
    async t => {
      const steps = [{ say: "x".repeat(100_000) }, { sleep_ms: 1500 }]
      const run = stage.send(steps, { session: "end", id: "end-1" })
      await run.frame("delta")
      fill(0)
      await run.over(30_000)
      t.match(run.frames.slice(-2), [
        { type: "error", code: "ENOSPC" },
        { type: "done", status: "error" },
      ])
      checkTold(t, stage, "end", run)
      await checkProven(t, stage, "end")
      rmSync(ballast)
      await stage.restart()
      await until("the state", () => stateOf(stage, "end") === "error\n")
      checkEnded(t, stage, "end", run.frames[0]!.run, "ENOSPC")
      const again = await stage.send(steps, { session: "end", id: "end-1" }).over()
      t.strictSame(
        again.lines.map(l => l.text),
        [run.lines.at(-1)!.text],
      )
      t.same(
        rowsOf(stage, "end").map(r => r.role),
        ["user"],
      )
      await checkSends(t, stage, "end")
      await checkProven(t, stage, "end")
    },
  )

  t.test("the runtime starts on a full disk, serves, and records again when there is space", async t => {
    fill(0)
    await stage.restart()
    t.match((await stage.owner.ask(stage.runtime.socket, { op: "ping" })).frames, [{ type: "pong" }])
    t.match((await stage.send(long, { session: "old" }).over()).frames, [{ type: "error", code: /^(ENOSPC|EIO)$/ }])
    rmSync(ballast)
    await checkSends(t, stage, "old")
  })
})
