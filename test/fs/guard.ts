// needs: root fuse strace
// The serving process never uses its own mount, and does nothing while nobody asks.
import { spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { startMount } from "../harness/mount.js"
import { makeStack, ROOT } from "../harness/product.js"
import { cleanEnv } from "../harness/program.js"

const sleep = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

t.test(
  "fuse.4 a path call of the serving process on its own mount is EDEADLK at once and sends no request",
  async t => {
    const stack = await makeStack()
    t.teardown(() => stack.stop())
    const lib = join(stack.prefix, "lib/cortexfs")
    const out = join(stack.dir, "probe.json")
    const env = cleanEnv({
      CORTEXFS_PROBE_PATH: join(stack.ctx, "status"),
      CORTEXFS_PROBE_ADDON: join(lib, "build/Release/cortexfs.node"),
      CORTEXFS_PROBE_OUT: out,
    })
    const probe = new URL("./fixture/probe.mjs", import.meta.url).pathname
    const program = [process.execPath, "--import", probe, join(lib, "dist/bin/mount.js")]
    const args = ["--source", join(stack.storage, "current"), "--run", stack.run, stack.ctx]
    const host = await startMount([...program, ...args], stack.ctx, { env })
    const readRequests = () => Number(/^requests=(\d+)$/m.exec(readFileSync(join(stack.ctx, "status"), "utf8"))![1])
    const first = readRequests()
    const before = readRequests()
    const readCost = before - first
    process.kill(host.child.pid!, "SIGUSR2")
    while (!existsSync(out)) await sleep(10)
    const grown = readRequests() - before
    await sleep(50)
    const results = Object.entries(JSON.parse(readFileSync(out, "utf8")) as Record<string, [string, number]>)
    t.ok(results.length >= 15)
    for (const [name, [code, elapsedMs]] of results) {
      t.equal(code, name.endsWith("beside") ? "ENOENT" : "EDEADLK", name)
      t.ok(elapsedMs < 100, name)
    }
    // A call that went through would have sent a LOOKUP at least.
    t.ok(grown <= readCost + 2, `${grown} requests, ${readCost} of them the test's own read of status`)
    t.equal(await host.stop(), 0)
  },
)

t.test("src/fs starts no program but fusermount3 and opens paths only where it must", async t => {
  const dir = join(ROOT, "src/fs")
  // Named for each file: the calls of node:fs it may import. Everything else goes by directory descriptor.
  const allowed: Record<string, string[]> = {
    "control.ts": ["closeSync", "constants", "readdirSync"],
    "publish.ts": ["closeSync", "constants", "fchmodSync", "fchownSync", "fstatSync", "fsync"],
    "point.ts": ["mkdirSync", "promises", "realpathSync", "rmdirSync", "statSync", "writeFileSync"],
    "source.ts": ["closeSync", "constants", "readdirSync"],
    "home.ts": ["closeSync", "fsyncSync"],
    "serve.ts": ["closeSync", "constants"],
  }
  const files = readdirSync(dir)
  t.ok(files.length > 10)
  for (const file of files) {
    if (file === "guard.ts") continue
    const text = readFileSync(join(dir, file), "utf8")
    const names = [...text.matchAll(/import \{([^}]*)\} from "node:fs(?:\/promises)?"/g)].flatMap(match =>
      match[1]!.split(",").map(name => name.trim()),
    )
    t.same(
      names.filter(name => name && !allowed[file]?.includes(name)),
      [],
      file,
    )
    t.notMatch(
      text,
      /import \w+ from "node:fs|import \* as \w+ from "node:fs|require\(|node:net|node:http|inotify/,
      file,
    )
    if (file !== "point.ts") t.notMatch(text, /child_process/, file)
  }
  const source = readFileSync(join(dir, "source.ts"), "utf8")
  t.same(source.match(/readdirSync\(`[^$`]*/g), ["readdirSync(`/proc/self/fd/"])
})

t.test("fuse.5 an idle mount makes no system call and watches nothing", { timeout: 120_000 }, async t => {
  const stack = await makeStack()
  t.teardown(() => stack.stop())
  const host = await stack.startHost()
  readFileSync(join(stack.ctx, "status"))
  readdirSync(join(stack.ctx, "tool"))
  const fds = readdirSync(`/proc/${host.child.pid}/fd`).map(fd => {
    try {
      return readlinkSync(`/proc/${host.child.pid}/fd/${fd}`)
    } catch {
      return ""
    }
  })
  t.notOk(fds.some(target => /inotify|fanotify/.test(target)))
  await sleep(60_000)
  const tracer = spawn("strace", ["-f", "-q", "-p", String(host.child.pid)], { stdio: ["ignore", "ignore", "pipe"] })
  let trace = ""
  tracer.stderr!.setEncoding("utf8").on("data", text => (trace += text))
  await sleep(10_000)
  tracer.kill("SIGINT")
  await once(tracer, "exit")
  // Calls that were waiting when the tracer came are shown as unfinished; one that ended would show a result.
  const calls = trace.split("\n").filter(line => /\) += -?\w/.test(line) || /resumed>/.test(line))
  t.same(calls, [])
  t.equal(await host.stop(), 0)
})
