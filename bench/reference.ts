// The C reference: `passthrough_ll` of libfuse's examples, compiled from what Debian's libfuse3-dev installs.
import { type ChildProcess, execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync, mkdirSync } from "node:fs"
import { join } from "node:path"
import { detachMount, findMountLine } from "../test/harness/mount.js"
import { ROOT } from "../test/harness/product.js"

const SOURCE = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"
const PROGRAM = join(ROOT, "build/passthrough-ll")

/** Compiles the reference. Throws one line when what it needs is not installed. */
export function buildReference(): void {
  if (!existsSync(SOURCE) || !existsSync("/usr/bin/pkg-config"))
    throw new Error("the C reference is missing: run as root: apt-get install libfuse3-dev pkg-config")
  const flags = execFileSync("pkg-config", ["--cflags", "--libs", "fuse3"], { encoding: "utf8" }).trim().split(/\s+/)
  execFileSync("gcc", ["-O2", "-w", "-DHAVE_COPY_FILE_RANGE", "-o", PROGRAM, SOURCE, ...flags])
}

export interface Reference {
  pid: number
  stop(): Promise<void>
}

/** Mounts `source` on the new directory `mountPoint`, multi-threaded. `more` are its own options, `cache=never,timeout=0`. */
export async function startReference(source: string, mountPoint: string, more: string): Promise<Reference> {
  mkdirSync(mountPoint)
  const options = `source=${source},allow_other,default_permissions,max_threads=10,${more}`
  const child: ChildProcess = spawn(PROGRAM, ["-f", "-o", options, mountPoint], { stdio: "ignore" })
  const stop = async () => {
    detachMount(mountPoint)
    if (child.exitCode !== null || child.signalCode !== null) return
    const ended = once(child, "exit")
    const clock = setTimeout(() => child.kill("SIGKILL"), 5_000)
    await ended
    clearTimeout(clock)
  }
  for (let waitedMs = 0; findMountLine(mountPoint) === undefined; waitedMs += 10) {
    if (child.exitCode !== null || waitedMs > 5_000) {
      await stop()
      throw new Error("the C reference did not mount")
    }
    await new Promise(resolve => setTimeout(resolve, 10))
  }
  return { pid: child.pid!, stop }
}
