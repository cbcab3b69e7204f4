// cortexfs-mount: serves one FUSE mount, and does nothing else (fuse.md 1, 2, 11).
import { lstatSync, readFileSync, realpathSync } from "node:fs"
import { homedir } from "node:os"
import { dirname, resolve } from "node:path"
import { parseArgs } from "node:util"
import { CtxError, codeOf, toCtxError } from "../abi/error.js"
import { isName } from "../abi/name.js"
import { CONFIG_DIR, isAtOrBelow, RUN_DIR, userConfigDir, userRootPath, userRunDir } from "../abi/path.js"
import { VERSION } from "../abi/product.js"
import { abortPoint, clearPoint, ensurePoint, removePoint, resolvePoint } from "../fs/point.js"
import { openServer, type Server } from "../fs/serve.js"
import { describeInternal, oneLine, type Severity, writeJournal } from "../native/journal.js"
import { listMountsAt } from "../native/mounts.js"
import { sdNotify, setNofileLimit } from "../native/sys.js"
import { checkTree } from "../store/source.js"

const USAGE = "cortexfs-mount --source DIR [--agent NAME] [--config DIR] [--run DIR] MOUNTPOINT, or --abort MOUNTPOINT"
const STOP_MS = 4_500
const WATCHDOG_MS = 10_000
const NOFILE = 1_048_576

interface Arguments {
  source: string
  agent?: string
  config: string
  run: string
  mountPoint: string
}

/** Errors: `usage` for anything but the forms; an invalid NAME too. */
function parseArguments(argv: string[]): Arguments | { abort: string } | { show: string } {
  const string = { type: "string" } as const
  const boolean = { type: "boolean" } as const
  const refuse = (why: string): never => {
    throw new CtxError("usage", why, { hint: USAGE })
  }
  let parsed: ReturnType<typeof parse>
  const parse = () =>
    parseArgs({
      args: argv,
      options: {
        source: string,
        agent: string,
        config: string,
        run: string,
        abort: string,
        help: boolean,
        version: boolean,
      },
      allowPositionals: true,
    })
  try {
    parsed = parse()
  } catch (error) {
    return refuse(error instanceof Error ? error.message.split("\n")[0]! : "bad arguments")
  }
  const { values, positionals } = parsed
  if (values.help) return { show: `usage: ${USAGE}` }
  if (values.version) return { show: `cortexfs/${VERSION}` }
  if (values.abort !== undefined) {
    if (positionals.length > 0 || Object.keys(values).length > 1) refuse("--abort takes a mount point and nothing else")
    return { abort: values.abort }
  }
  if (values.source === undefined) refuse("--source is missing")
  if (positionals.length !== 1) refuse("exactly one mount point is needed")
  // The service manager writes + of a name as \x2b.
  const agent = values.agent?.replaceAll("\\x2b", "+")
  if (agent !== undefined && !isName(agent)) refuse(`${JSON.stringify(agent)} is no agent name`)
  const uid = process.getuid!()
  const user = { env: process.env, home: homedir() }
  return {
    source: values.source!,
    agent,
    config: values.config ?? (uid === 0 ? CONFIG_DIR : userConfigDir(user)),
    run: values.run ?? (uid === 0 ? RUN_DIR : userRunDir(uid)),
    mountPoint: positionals[0]!,
  }
}

/** Many descriptors are held for nodes and handles; as much as this process may have is asked for. */
function raiseFileLimit(): void {
  const hard = Number(/^Max open files\s+\d+\s+(\d+)/m.exec(readFileSync("/proc/self/limits", "utf8"))?.[1] ?? NOFILE)
  for (const limit of [NOFILE, hard]) {
    try {
      setNofileLimit(limit)
      return
    } catch {
      // Not allowed to go that far; the next try is lower.
    }
  }
}

/** True when the program makes and removes this mount point itself: it lies below `<run>/mount`. */
function isOwnPoint(mountPoint: string, run: string): boolean {
  try {
    return mountPoint !== `${run}/mount` && isAtOrBelow(mountPoint, `${realpathSync.native(run)}/mount`)
  } catch {
    return isAtOrBelow(mountPoint, `${run}/mount`)
  }
}

/** True for the host view of a per-user installation: its mount point is made too, and stays. */
function isUserRoot(mountPoint: string): boolean {
  const uid = process.getuid!()
  return uid !== 0 && mountPoint === userRootPath(uid)
}

function report(error: unknown): number {
  const { code, message, hint = code === "ENODEV" ? "modprobe fuse" : undefined, errno } = toCtxError(error)
  journal([code, message, ...(hint === undefined ? [] : [hint])].join(": "), "error")
  if (errno !== 0) sdNotify(`STATUS=cannot mount: ${oneLine(`${code}: ${message}`)}\nERRNO=${-errno}`)
  if (code === "usage") return 2
  return code === "internal" ? 70 : 69
}

function journal(line: string, severity?: Severity): void {
  writeJournal("cortexfs-mount", line, severity)
}

/** Pings the service manager from the loop that answers requests, when it wants that (units.md 4). */
function startWatchdog(): void {
  const usec = Number(process.env.WATCHDOG_USEC)
  if (!Number.isSafeInteger(usec) || usec <= 0) return
  setInterval(() => sdNotify("WATCHDOG=1"), Math.min(WATCHDOG_MS, usec / 3000)).unref()
}

/** Waits for SIGTERM, SIGINT, or the end of the mount from outside; `stop` does what is left to do. */
async function serve(args: Arguments): Promise<number> {
  const run = resolve(args.run)
  const isOwn = isOwnPoint(resolve(args.mountPoint), run)
  const isMade = isOwn || isUserRoot(resolve(args.mountPoint))
  const sourcePath = resolve(args.source)
  raiseFileLimit()
  // Other uids must get through what root makes here, whatever the caller's umask; a user's own is nobody else's.
  process.umask(process.getuid!() === 0 ? 0o022 : 0o077)
  checkTree(sourcePath, isMade ? resolve(args.mountPoint) : resolvePoint(args.mountPoint))
  if (isMade) ensurePoint(dirname(resolve(args.mountPoint)), true)
  const mountPoint = resolvePoint(args.mountPoint)
  process.chdir("/")
  process.on("uncaughtException", error => {
    journal(`internal: ${mountPoint}: ${describeInternal(error)}`, "error")
    try {
      abortPoint(mountPoint)
    } finally {
      process.exit(70)
    }
  })

  let endReason: string | undefined
  let wake = () => {}
  const ended = new Promise<void>(done => {
    wake = done
  })
  let isAsked = false
  for (const signal of ["SIGTERM", "SIGINT"] as const)
    process.on(signal, () => {
      isAsked = true
      wake()
    })
  const server = await openServer({
    sourcePath,
    agent: args.agent,
    mountPoint,
    run,
    isPassthroughAllowed: process.env.CORTEXFS_PASSTHROUGH !== "0",
    onEnd(reason) {
      endReason = reason
      wake()
    },
    onJournal: journal,
  })
  await clearPoint(mountPoint)
  ensurePoint(mountPoint, isMade)
  if (!isAsked) await server.start()
  const status = `mounted ${mountPoint} generation=${server.state.generation} passthrough=${server.passthrough}`
  journal(status)
  sdNotify(`READY=1\nSTATUS=${oneLine(status)}`)
  startWatchdog()
  await ended
  sdNotify("STOPPING=1\nSTATUS=stopping")
  const isInternal = endReason?.startsWith("error") === true
  await stop(server, mountPoint, isOwn)
  if (!isInternal) {
    journal(`stopped ${mountPoint}`)
    return 0
  }
  journal(`internal: ${mountPoint}: ${endReason}`, "error")
  return 70
}

/** Takes the mount down; what does not end in time is cut off, so that the process always exits within 5 s. */
async function stop(server: Server, mountPoint: string, isOwn: boolean): Promise<void> {
  const clock = setTimeout(() => {
    try {
      abortPoint(mountPoint)
    } catch (error) {
      journal(`${mountPoint}: ${toCtxError(error).message}`, "error")
    }
    process.exit(0)
  }, STOP_MS)
  await server.stop()
  clearTimeout(clock)
  if (isOwn) removePoint(mountPoint)
}

/**
 * Takes what is mounted at a place off it; nothing there is no error, but there has to be such a place. A mount point
 * that a clean stop removes itself may be gone. Errors: `ENOENT`, `ENOTDIR`, `EBUSY` for a mount of another type.
 */
function abort(path: string): void {
  const absolute = resolve(path)
  try {
    const mountPoint = resolvePoint(path)
    abortPoint(mountPoint)
    if (listMountsAt(mountPoint).length > 0 || lstatSync(mountPoint).isDirectory()) return
    throw new CtxError("ENOTDIR", `${mountPoint} is not a directory`, { path: mountPoint, hint: "name a mount point" })
  } catch (error) {
    if (codeOf(error) !== "ENOENT") throw error
    const uid = process.getuid!()
    if (isOwnPoint(absolute, uid === 0 ? RUN_DIR : userRunDir(uid)) || isUserRoot(absolute)) return
    throw new CtxError("ENOENT", `${absolute} does not exist`, { path, hint: "name a mount point", cause: error })
  }
}

async function main(): Promise<number> {
  try {
    const args = parseArguments(process.argv.slice(2))
    if ("show" in args) process.stdout.write(`${args.show}\n`)
    else if ("abort" in args) abort(args.abort)
    else return await serve(args)
    return 0
  } catch (error) {
    return report(error)
  }
}

// A loop with nothing left to wait for, before the end, is a fault.
process.exitCode = 70
void main().then(code => process.exit(code))
