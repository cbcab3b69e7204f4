// needs: root strace
// A gc that is killed between any two of its steps, or whose steps fail.
import { existsSync } from "node:fs"
import { join } from "node:path"
import t, { type Test } from "tap"
import { ctxGc, digest, GcHome, namesIn, readIndex } from "../fixture/session/gc.js"

const NAMES = ["a", "b"]
/** Calls that change a directory; the tracer counts each kind by itself. */
const CALLS = ["mkdirat", "renameat", "renameat2", "unlinkat", "unlink", "rmdir"]
/** More steps than any of these runs has: the loop must end by itself before. */
const STEPS_MAX = 120

interface Before {
  home: GcHome
  digests: Map<string, string>
  index: ReturnType<typeof readIndex>
}

async function makeHome(): Promise<Before> {
  const home = new GcHome()
  await home.record(["a"], "coder", { hash: "ka" })
  await home.record(["b"], "coder", { uuid: "0f0e0d0c-0b0a-4908-8706-050403020100" })
  await home.record(["sent"])
  const digests = new Map(NAMES.map(name => [name, digest(join(home.dir(), name))]))
  return { home, digests, index: readIndex(home.dir()) }
}

function isLive(home: GcHome, name: string): boolean {
  return existsSync(join(home.dir(), name))
}

// Each session whole and at exactly one place.
function checkPlaces(t: Test, { home, digests }: Before, isDelete: boolean, title: string): void {
  for (const name of NAMES) {
    const [live, kept] = [isLive(home, name), existsSync(join(home.archive(), name))]
    if (isDelete) t.notOk(kept, `${title}: ${name} is not archived`)
    else t.not(live, kept, `${title}: ${name} is live or archived`)
    const place = live ? join(home.dir(), name) : join(home.archive(), name)
    if (live || kept) t.equal(digest(place), digests.get(name), `${title}: ${name} is byte for byte as it was`)
  }
}

// Nothing is left over, and the index names exactly the live ones.
function checkSettled(t: Test, before: Before, isDelete: boolean, title: string): void {
  const { home, index } = before
  checkPlaces(t, before, isDelete, title)
  t.strictSame(
    namesIn(home.dir()).filter(name => name.startsWith(".")),
    [],
    `${title}: no residue`,
  )
  const now = readIndex(home.dir())
  const live = new Set([...NAMES, "sent"].filter(name => isLive(home, name)))
  t.strictSame([...now.list].sort(), [...live].sort(), `${title}: list`)
  const keys = Object.entries(index.keys).filter(([, body]) => live.has(body.trim()))
  t.strictSame(now.keys, Object.fromEntries(keys), `${title}: keys`)
}

// Kills at each call of each kind, until a run has no more of that kind.
async function killAtEach(t: Test, args: string[]) {
  const seen = new Set<string>()
  const counts: Record<string, number> = {}
  for (const call of CALLS) {
    let n = 1
    while (n <= STEPS_MAX && (await killAt(t, args, call, n, seen))) n++
    t.ok(n <= STEPS_MAX, `${call}: ${n - 1} calls`)
    counts[call] = n - 1
  }
  t.ok((counts.renameat2 ?? 0) >= NAMES.length && (counts.renameat ?? 0) > 0, JSON.stringify(counts))
  t.ok(
    ["a,b", "b", ""].every(live => seen.has(live)),
    `before, between and after: ${[...seen].join(" | ")}`,
  )
}

// False when the run ended by itself.
async function killAt(t: Test, args: string[], call: string, n: number, seen: Set<string>): Promise<boolean> {
  const isDelete = args.includes("--delete")
  const before = await makeHome()
  const { home } = before
  const title = `${call} ${n}`
  const ended = await ctxGc(home, args, { before: tracer(call, n) })
  checkPlaces(t, before, isDelete, title)
  const live = NAMES.filter(name => isLive(home, name))
  seen.add(live.join())
  if (ended.code !== 0) {
    t.ok(ended.signal === "SIGKILL" || ended.code === 137, `${title}: killed: ${ended.code} ${ended.stderr}`)
    // Selects nothing; a gc makes good what another one left all the same.
    const next = await ctxGc(home, ["gc", "--yes", "--match", "none"])
    t.strictSame([next.code, next.stdout, next.stderr], [0, "", ""], title)
    t.strictSame(
      NAMES.filter(name => isLive(home, name)),
      live,
      `${title}: what was live is live`,
    )
    checkSettled(t, before, isDelete, title)
    const last = await ctxGc(home, args)
    t.strictSame([last.code, last.stderr], [0, ""], title)
    t.strictSame(namesIn(home.dir()), ["index", "sent"], `${title}: and then the rest goes`)
  }
  home.close()
  return ended.code !== 0
}

const tracer = (call: string, n: number) => [
  "/usr/bin/strace",
  ...`-f -qq -o /dev/null -e trace=${call}`.split(" "),
  "-e",
  `inject=${call}:signal=KILL:when=${n}`,
]

t.test(
  "session.17 (killed between any two steps) an archiving gc leaves each session live or archived, and the next one puts the index right",
  t => killAtEach(t, ["gc", "--yes"]),
)

t.test(
  "session.17 (killed while deleting) a deleting gc leaves each session live or gone, and the next one removes the rest",
  t => killAtEach(t, ["gc", "--delete", "--yes"]),
)

t.test(
  "session.17 (killed after each sync) an archiving gc killed after a sync leaves nothing at two places",
  async t => {
    for (let n = 1; n <= 20; n++) {
      const before = await makeHome()
      const ended = await ctxGc(before.home, ["gc", "--yes"], { fault: `session.sync:${n}:kill` })
      checkPlaces(t, before, false, `sync ${n}`)
      if (ended.code === 0) {
        t.ok(n > 5, `${n - 1} syncs`)
        before.home.close()
        return
      }
      t.equal(ended.signal, "SIGKILL")
      await ctxGc(before.home, ["gc", "--yes", "--match", "none"])
      checkSettled(t, before, false, `sync ${n}`)
      before.home.close()
    }
    t.fail("more syncs than can be")
  },
)

t.test("a gc whose n-th sync or rename fails leaves a session whole at one place, with its index entries", async t => {
  for (const point of ["sync:ENOSPC", "rename:EIO"]) {
    const [kind, errno] = point.split(":") as [string, string]
    let n = 1
    for (; n <= 20; n++) {
      const before = await makeHome()
      const { home } = before
      const title = `${kind} ${n}`
      const ended = await ctxGc(home, ["gc", "--yes"], { fault: `session.${kind}:${n}:${errno}` })
      checkPlaces(t, before, false, title)
      if (ended.stderr === "") break
      t.equal(ended.code, 1, title)
      t.match(ended.stderr, new RegExp(`^(ctx: ${errno}: [^\\n]+: [^\\n]+\\n)+$`), title)
      for (const line of ended.stdout.split("\n").filter(line => line.startsWith("failed")))
        t.match(line, new RegExp(`^failed\\tcoder\\t[ab]\\t${errno}$`), title)
      for (const name of NAMES) {
        const verb = isLive(home, name) ? "failed" : "archived"
        if (ended.stdout !== "") t.match(ended.stdout, new RegExp(`^${verb}\\tcoder\\t${name}\\t`, "m"), title)
      }
      await ctxGc(home, ["gc", "--yes", "--match", "none"])
      checkSettled(t, before, false, title)
      home.close()
    }
    t.ok(n > 4 && n <= 20, `${n - 1} ${kind} points`)
  }
})

t.test("two gc at once take each session once", async t => {
  for (let round = 0; round < 5; round++) {
    const before = await makeHome()
    const both = await Promise.all([ctxGc(before.home, ["gc", "--yes"]), ctxGc(before.home, ["gc", "--yes"])])
    for (const { code, stderr } of both) t.strictSame([code, stderr], [0, ""])
    const lines = both.flatMap(({ stdout }) => stdout.split("\n").filter(line => line.startsWith("archived")))
    t.strictSame(
      lines.sort(),
      NAMES.map(name => `archived\tcoder\t${name}\t${before.home.archive()}/${name}`),
    )
    checkSettled(t, before, false, `round ${round}`)
    before.home.close()
  }
})
