// needs: root fuse
// Every row of fuse.md 10 and of the operation table 5.1 as a table of small cases, made by one program through the host view
// and on the backing file system, as real users. What differs is exactly what fuse.md names.
import { mkdirSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { cleanEnv, runProgram } from "../harness/program.js"
import { buildClient } from "./fixture/client.js"
import { makeBehind, makeFixture, OWNER } from "./fixture/stack.js"

t.setTimeout(280_000)

/** The rows of fuse.md 10; the cases of the program name them. */
const ROWS = [
  "create",
  "open",
  "rename",
  "hard links",
  "symlink",
  "special files",
  "truncate, ftruncate",
  "sparse files",
  "big offsets",
  "fallocate",
  "copy_file_range, sendfile, splice",
  "mmap",
  "utimens",
  "chmod",
  "chown",
  "permission",
  "sticky directory",
  "unlink, rmdir",
  "statfs",
  "names",
  "xattr",
  "locks",
  "inotify",
  "exec",
]

/** What comes out otherwise on the mount: the last column of fuse.md 10. */
const DIFFERENT: Record<string, string> = {
  "open: O_TMPFILE": "EOPNOTSUPP",
  "open: O_DIRECT unaligned": "100 100",
  "rename: whiteout": "refused",
  "special files: character device": "EPERM",
  "special files: block device": "EPERM",
  "fallocate: COLLAPSE_RANGE": "EOPNOTSUPP",
  "fallocate: INSERT_RANGE": "EOPNOTSUPP",
  "statfs: type": "0x65735546",
  "xattr: set": "EOPNOTSUPP",
  "xattr: remove": "EOPNOTSUPP",
  "locks: OFD: GETLK": "write 0+50 by the holder",
  "locks: close of a reader from before": "EAGAIN",
  "exec: running, O_RDONLY|O_TRUNC": "ETXTBSY empty",
  // The bit is not honoured.
  "chmod: a setuid program": "12002\\x0a",
  // The mount is not told of supplementary groups.
  "chmod: write of 6767 by a member": "1 0767",
  "chmod: append of 6767 by a member": "1 0767",
  "chmod: truncate of 6767 by a member": "0 0767",
  "chmod: ftruncate of 6767 by a member": "0 0767",
  "chmod: O_TRUNC of 6767 by a member": "0 0767",
  "chmod: fallocate of 6767 by a member": "0 0767",
}
const MANY_LINKS = "hard links: up to"

/** What every case said: `row: label` -> result. */
async function runCases(client: string, dir: string, isLong: boolean): Promise<Record<string, string>> {
  mkdirSync(dir, { mode: 0o755 })
  const ended = await runProgram([client, dir, ...(isLong ? ["all"] : [])], { timeoutMs: 130_000 })
  if (ended.code !== 0) throw new Error(`${dir}: ${ended.stderr}`)
  const results: Record<string, string> = {}
  for (const line of ended.stdout.trimEnd().split("\n")) {
    const [row, label, result] = line.split("\t")
    const key = `${row}: ${label}`
    if (key in results) throw new Error(`two results are called ${key}`)
    results[key] = result!
  }
  return results
}

const client = buildClient("posix")
let onBacking: Record<string, string> | undefined

for (const isPassthrough of [true, false]) {
  const how = isPassthrough ? "with passthrough" : "without passthrough"
  t.test(`fuse.34 every row of section 10 comes out as on the backing file system, ${how}`, async t => {
    const f = await makeFixture(isPassthrough ? {} : { env: cleanEnv({ CORTEXFS_PASSTHROUGH: "0" }) })
    try {
      makeBehind(f.behind(`home/${OWNER}`), OWNER, 0o711)
      onBacking ??= await runCases(client, join(f.stack.dir, "cases"), true)
      t.same([...new Set(Object.keys(onBacking).map(key => key.split(": ")[0]!))].sort(), [...ROWS].sort())
      for (const zone of [`home/${OWNER}/cases`, "shared/lab/data/cases"]) {
        // The longest case (65,000 links) once with passthrough and once without, in another zone each.
        const isLong = zone.startsWith("home") === isPassthrough
        const expected = { ...onBacking, ...DIFFERENT }
        if (!isLong) delete expected[MANY_LINKS]
        t.same(await runCases(client, f.at(zone), isLong), expected, zone)
      }
    } finally {
      await f.stack.stop()
    }
  })
}
