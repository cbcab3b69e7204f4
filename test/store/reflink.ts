// needs: root strace xfs
// A clone on a file system that shares extents, and on one that does not.
import { execFileSync } from "node:child_process"
import { appendFileSync, mkdirSync, readFileSync, statfsSync, truncateSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { type Test, test } from "tap"
import { ctxPath, makeCurrent, makeStore, OWNER, run, type Store } from "../fixture/store/kit.js"
import { makeDir } from "../harness/product.js"

const SIZE = 8 * 1024 * 1024

/** A new XFS in a sparse file. */
function makeXfs(t: Test): string {
  const dir = makeDir()
  const [image, point] = [join(dir, "image"), join(dir, "xfs")]
  writeFileSync(image, "")
  truncateSync(image, 512 * 1024 * 1024)
  execFileSync("mkfs.xfs", ["-q", "-m", "reflink=1", image])
  mkdirSync(point)
  execFileSync("mount", ["-o", "loop", image, point])
  t.teardown(() => execFileSync("umount", [point]))
  return point
}

/** A roll of a generation with a large file of a person's; its calls that clone, and the bytes that it took. */
async function rollLarge(dir: string): Promise<{ store: Store; calls: string[]; tookBytes: number; from: string }> {
  const store = await makeStore(dir)
  const old = await makeCurrent(store)
  const from = join(old, "tool/large")
  writeFileSync(from, Buffer.alloc(SIZE, "large"))
  writeFileSync(join(old, "shared/cortexfs-docs/more.md"), "")
  execFileSync("sync", ["-f", dir])
  const free = () => statfsSync(dir).bavail * statfsSync(dir).bsize
  const before = free()
  const trace = join(makeDir(), "trace")
  const strace = ["/usr/bin/strace", "-f", "-y", "-e", "trace=ioctl,copy_file_range,write", "-o", trace]
  const command = [await ctxPath(), "storage", "update", "--owner", String(OWNER), store.storage]
  const ended = await run([...strace, ...command])
  if (ended.code !== 0) throw new Error(ended.stderr)
  execFileSync("sync", ["-f", dir])
  const calls = readFileSync(trace, "utf8")
    .split("\n")
    .filter(line => line.includes("/tool/large>"))
  return { store, calls, tookBytes: before - free(), from }
}

test("a clone shares the extents of files where the file system can, and they part when one is written", async t => {
  const { store, calls, tookBytes, from } = await rollLarge(makeXfs(t))
  t.equal(calls.length, 1, calls.join("; "))
  t.match(calls[0], /ioctl\(.*(?:FICLONE|BTRFS_IOC_CLONE).* = 0$/)
  t.ok(tookBytes < SIZE / 2, `${tookBytes} bytes were taken`)
  const to = join(store.current(), "tool/large")
  t.ok(readFileSync(to).equals(readFileSync(from)))
  appendFileSync(from, "more")
  t.equal(readFileSync(to).length, SIZE)
})

test("a clone copies in the kernel where the file system shares nothing", async t => {
  const dir = makeDir()
  execFileSync("mount", ["-t", "tmpfs", "-o", "mode=755", "none", dir])
  t.teardown(() => execFileSync("umount", ["-l", dir]))
  const { store, calls, tookBytes, from } = await rollLarge(dir)
  t.match(calls[0], /FICLONE.* = -1 EOPNOTSUPP|BTRFS_IOC_CLONE.* = -1 EOPNOTSUPP/)
  t.ok(calls.slice(1).every(call => /copy_file_range/.test(call)))
  t.ok(tookBytes >= SIZE, `${tookBytes} bytes were taken`)
  t.ok(readFileSync(join(store.current(), "tool/large")).equals(readFileSync(from)))
})
