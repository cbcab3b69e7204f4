// needs: root fuse
// Every row of fuse.md 10 and of the operation table 5.1 as a table of small cases, made by one program through the host view
// and on the backing file system, as real users. What differs is exactly what fuse.md names.
import { execFileSync, spawn } from "node:child_process"
import { mkdirSync, readFileSync, readlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import type { Mount } from "../harness/mount.js"
import { makeStack } from "../harness/product.js"
import { cleanEnv, runProgram, stopProgram } from "../harness/program.js"
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

type Results = Record<string, string>

/** What every case said: `row: label` -> result. `prefix` is the command that runs the program. */
async function runCases(dir: string, isLong = false, prefix: string[] = []): Promise<Results> {
  const command = [...prefix, client, dir, ...(isLong ? ["all"] : [])]
  const ended = await runProgram(command, { timeoutMs: 130_000 })
  if (ended.code !== 0) throw new Error(`${dir}: ${ended.stderr}`)
  const results: Results = {}
  for (const line of ended.stdout.trimEnd().split("\n")) {
    const [row, label, result] = line.split("\t")
    const key = `${row}: ${label}`
    if (key in results) throw new Error(`two results are called ${key}`)
    results[key] = result!
  }
  return results
}

const client = buildClient("posix")
let onBacking: Results | undefined

for (const isPassthrough of [true, false]) {
  const how = isPassthrough ? "with passthrough" : "without passthrough"
  t.test(`fuse.34 every row of section 10 comes out as on the backing file system, ${how}`, async t => {
    const f = await makeFixture(isPassthrough ? {} : { env: cleanEnv({ CORTEXFS_PASSTHROUGH: "0" }) })
    try {
      makeBehind(f.behind(`home/${OWNER}`), OWNER, 0o711)
      const cases = join(f.stack.dir, "cases")
      mkdirSync(cases)
      onBacking ??= await runCases(cases, true)
      t.same([...new Set(Object.keys(onBacking).map(key => key.split(": ")[0]!))].sort(), [...ROWS].sort())
      for (const zone of [`home/${OWNER}/cases`, "shared/lab/data/cases"]) {
        // The longest case (65,000 links) once with passthrough and once without, in another zone each.
        const isLong = zone.startsWith("home") === isPassthrough
        const expected = { ...onBacking, ...DIFFERENT }
        if (!isLong) delete expected[MANY_LINKS]
        mkdirSync(f.at(zone))
        t.same(await runCases(f.at(zone), isLong), expected, zone)
      }
    } finally {
      await f.stack.stop()
    }
  })
}

t.test(
  "fuse.29 (refused registration) a home on an overlay is served without passthrough, with equal results",
  async t => {
    const stack = await makeStack()
    const behind = join(stack.dataRoot, `home/${OWNER}`)
    mkdirSync(behind, { recursive: true })
    const layers = ["lower", "upper", "workdir"].map(name => join(stack.dir, name))
    for (const layer of layers) mkdirSync(layer)
    const [lower, upper, workdir] = layers
    const options = `lowerdir=${lower},upperdir=${upper},workdir=${workdir}`
    execFileSync("mount", ["-t", "overlay", "none", "-o", options, behind])
    let host: Mount | undefined
    try {
      makeBehind(behind, OWNER, 0o711)
      host = await stack.startHost()
      const at = join(stack.ctx, `home/${OWNER}`)
      t.match(readFileSync(join(stack.ctx, "status"), "utf8"), "passthrough=1\n")
      const before = countRequests(stack.ctx)
      writeFileSync(join(at, "big"), Buffer.alloc(16 << 20))
      t.ok(countRequests(stack.ctx) - before >= 16, "writes come to the mount")
      for (const dir of ["base", "cases"]) mkdirSync(join(behind, dir), { mode: 0o755 })
      t.same(await runCases(join(at, "cases")), { ...(await runCases(join(behind, "base"))), ...DIFFERENT })
    } finally {
      await host?.stop()
      execFileSync("umount", ["-l", behind])
      await stack.stop()
    }
  },
)

t.test("fuse.29 (no CAP_SYS_ADMIN) a mount in a user namespace says passthrough=0, with equal results", async t => {
  const stack = await makeStack()
  makeBehind(join(stack.dataRoot, `home/${OWNER}`), OWNER, 0o711)
  const mount = [join(stack.prefix, "bin/cortexfs-mount"), "--source", join(stack.storage, "current")]
  const options = ["--config", stack.config, "--run", stack.run, stack.ctx]
  // All uids are there under their own numbers; what is missing are rights over the machine.
  const enter = ["--user", "--mount", "--propagation", "private", "/bin/sh", "-c", 'read go && exec "$@"', "sh"]
  const command = ["-i", "PATH=/usr/bin:/bin", "/usr/bin/unshare", ...enter, ...mount, ...options]
  const server = spawn("/usr/bin/env", command, { stdio: ["pipe", "inherit", "pipe"] })
  let stderr = ""
  server.stderr.setEncoding("utf8").on("data", text => (stderr += text))
  const inside = ["/usr/bin/nsenter", "-t", String(server.pid), "-U", "-m", "-S", "0", "-G", "0", "--"]
  const own = readlinkSync("/proc/self/ns/user")
  const until = async (isTrue: () => boolean | Promise<boolean>) => {
    for (let waitedMs = 0; !(await isTrue()); waitedMs += 20) {
      if (waitedMs > 10_000 || server.exitCode !== null) throw new Error(`the server does not come up: ${stderr}`)
      await new Promise(resolve => setTimeout(resolve, 20))
    }
  }
  try {
    await until(() => readlinkSync(`/proc/${server.pid}/ns/user`) !== own)
    for (const map of ["uid_map", "gid_map"]) writeFileSync(`/proc/${server.pid}/${map}`, "0 0 65536")
    server.stdin.write("go\n")
    const status = () => runProgram([...inside, "/bin/cat", join(stack.ctx, "status")])
    await until(async () => (await status()).code === 0)
    t.match((await status()).stdout, "passthrough=0\n")
    const [base, cases] = [join(stack.dir, "cases"), join(stack.dataRoot, `home/${OWNER}/cases`)]
    for (const dir of [base, cases]) mkdirSync(dir)
    const expected = { ...(await runCases(base, false, inside)), ...DIFFERENT }
    // Nor is the mount told of the rights of this uid 0.
    for (const key of Object.keys(expected))
      if (/^chmod: .* of 6767 by 0$/.test(key)) expected[key] = expected[key]!.replace("2767", "0767")
    t.same(await runCases(join(stack.ctx, `home/${OWNER}/cases`), false, inside), expected)
  } finally {
    await stopProgram(server)
    await stack.stop()
  }
})

function countRequests(ctx: string): number {
  return Number(/^requests=(\d+)$/m.exec(readFileSync(join(ctx, "status"), "utf8"))![1])
}
