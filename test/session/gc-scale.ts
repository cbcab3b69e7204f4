// needs: root strace
// What a gc of thousands of sessions reads and writes, counted by its system calls.
import { chownSync, mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { cwdKey } from "../../src/abi/hash.js"
import { ctxGc, GcHome, namesIn, readIndex } from "../fixture/session/gc.js"
import { makeDir, OWNER } from "../harness/product.js"

const COUNT = 4000

t.test(
  "session.27 gc --yes of 4,000 sessions opens each of 4,000 by-cwd files once and publishes list at most 16 times",
  async t => {
    const home = new GcHome()
    const dir = home.dir()
    const own = (path: string) => chownSync(path, OWNER, OWNER)
    const make = (path: string) => {
      mkdirSync(path, { mode: 0o700 })
      own(path)
    }
    const write = (path: string, text: string) => {
      writeFileSync(path, text, { mode: 0o600 })
      own(path)
    }
    for (const path of ["agent", "agent/coder", "agent/coder/session"]) make(join(home.path, path))
    for (const path of ["index", "index/by-cwd", "index/by-hash", "index/by-uuid"]) make(join(dir, path))
    const names = Array.from({ length: COUNT }, (_, i) => `s-${String(i).padStart(4, "0")}`)
    for (const name of names) {
      make(join(dir, name))
      write(join(dir, name, "messages.jsonl"), "")
      write(join(dir, name, "state"), "done\n")
      write(join(dir, "index/by-cwd", cwdKey(`/workspace/${name}`)), `${name}\n`)
    }
    write(join(dir, "index/list"), `${names.join("\n")}\n`)

    const out = makeDir("cortexfs-trace")
    own(out)
    const trace = join(out, "calls")
    const before = ["/usr/bin/strace", "-f", "-qq", "-y", "-o", trace, "-e", "trace=openat,openat2,renameat,renameat2"]
    const ended = await ctxGc(home, ["gc", "--yes"], { before })
    t.strictSame([ended.code, ended.stderr], [0, ""])
    t.equal(ended.stdout.split("\n").filter(line => line.startsWith("archived\tcoder\ts-")).length, COUNT)
    t.equal(namesIn(home.archive()).length, COUNT)
    t.strictSame(namesIn(dir), ["index"])
    t.strictSame(readIndex(dir), { list: [], keys: {} })
    t.strictSame(namesIn(join(dir, "index/by-cwd")), [])

    const lines = readFileSync(trace, "utf8").split("\n")
    const opens = new Map<string, number>()
    for (const line of lines) {
      const key = /openat2?\(.*"[^"]*(cwd-[0-9a-f]{16})"/.exec(line)?.[1]
      if (key !== undefined) opens.set(key, (opens.get(key) ?? 0) + 1)
    }
    t.equal(opens.size, COUNT, "each by-cwd file is opened")
    t.strictSame(
      [...opens].filter(([, count]) => count !== 1),
      [],
      "and only once",
    )
    const published = lines.filter(line => /renameat2?\(.*"list"/.test(line)).length
    t.ok(published > 0 && published <= 16, `list is published ${published} times`)
  },
)
