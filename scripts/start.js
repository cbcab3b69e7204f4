// `npm start -- [--keep] [TEXT...]`: the main job on this machine, from nothing to an answer, with everything of its own.
// It sets up, installs the built product into a temporary prefix, makes a storage tree, mounts the host view and coder's
// view, serves coder's socket, sends it TEXT, and shows the result as files. At the end nothing of it is left.
import { spawn, spawnSync } from "node:child_process"
import {
  accessSync,
  chmodSync,
  closeSync,
  constants,
  existsSync,
  fchmodSync,
  fchownSync,
  fstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  statSync,
  writeSync,
} from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join, resolve } from "node:path"
import { installProduct } from "./install.js"
import { findMountType, readStartTime } from "./reaper.js"
import { ensureAll, newest, root, SetupFault, say } from "./setup.js"

const { O_RDONLY, O_WRONLY, O_CREAT, O_EXCL, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK } = constants
const COPY_MAX = 64 * 1024 * 1024
const USAGE = `usage: npm start -- [--keep] [TEXT...]
  TEXT     what coder is asked; default "what is in README.md?"
  --keep   stay up until Ctrl+C for ctx in a second terminal
  CORTEXFS_STORAGE=DIR/storage in the environment keeps everything in DIR
`
const words = process.argv.slice(2)
const isKept = words.includes("--keep")
const text = words.filter(word => word !== "--keep").join(" ") || "what is in README.md?"
const here = process.env.INIT_CWD ?? process.cwd()
const isRoot = process.getuid() === 0

if (words.some(word => word === "--help" || word === "-h")) {
  process.stdout.write(USAGE)
  process.exit(0)
}

/** Ends with one line and exit 1. */
function fail(line) {
  process.stderr.write(`cortexfs: ${line}\n`)
  process.exit(1)
}

// ---- whose agents ------------------------------------------------------------------------------------------------

/** uid and gid of the agents' owner: never 0. */
function chooseOwner() {
  if (!isRoot) return { uid: process.getuid(), gid: process.getgid(), why: "you" }
  const accounts = readFileSync("/etc/passwd", "utf8")
    .split("\n")
    .map(line => line.split(":"))
  const gidOf = uid => Number(accounts.find(fields => Number(fields[2]) === uid && fields[2] !== "")?.[3] ?? uid)
  if (Number(process.env.SUDO_UID) > 0) {
    const uid = Number(process.env.SUDO_UID)
    return { uid, gid: gidOf(uid), why: "SUDO_UID" }
  }
  const { uid } = statSync(here)
  if (uid !== 0) return { uid, gid: gidOf(uid), why: "owner of the current directory" }
  const nobody = accounts.find(fields => fields[0] === "nobody")
  return { uid: Number(nobody?.[2] ?? 65534), gid: Number(nobody?.[3] ?? 65534), why: "nobody" }
}

/** spawn options and command that run with the owner's identity and no other group. */
function asOwner(owner, command) {
  if (!isRoot) return command
  return ["setpriv", `--reuid=${owner.uid}`, `--regid=${owner.gid}`, "--clear-groups", "--", ...command]
}

function canUse(owner, path) {
  const [file, ...args] = asOwner(owner, ["sh", "-c", 'test -r "$1" -a -w "$1" -a -x "$1"', "sh", path])
  return spawnSync(file, args, { cwd: "/" }).status === 0
}

/**
 * Copies the files and directories of `from` to `to`, which only the owner may enter: no links, node_modules, .git or
 * build output, at most COPY_MAX bytes. Everything is opened without following a link, since somebody else may change
 * the original meanwhile. Gives what was copied and left out.
 */
function copyWorkspace(from, to, owner) {
  const count = { sizeBytes: 0, leftOut: 0 }
  const give = fd => isRoot && fchownSync(fd, owner.uid, owner.gid)
  const copyFile = (sourceFd, path, mode) => {
    const fd = openSync(path, O_WRONLY | O_CREAT | O_EXCL, 0o600)
    const part = Buffer.alloc(65536)
    for (let size = 1; size > 0; ) {
      size = readSync(sourceFd, part, 0, part.length, null)
      count.sizeBytes += writeSync(fd, part, 0, Math.min(size, COPY_MAX - count.sizeBytes))
    }
    give(fd)
    fchmodSync(fd, mode & 0o777)
    closeSync(fd)
  }
  const copyDir = (dirFd, path) => {
    mkdirSync(path, { mode: 0o700 })
    for (const name of readdirSync(`/proc/self/fd/${dirFd}`)) {
      const fd = isLeftOut(name) ? undefined : tryOpen(`/proc/self/fd/${dirFd}/${name}`)
      const stat = fd === undefined ? undefined : fstatSync(fd)
      if (stat?.isDirectory()) copyDir(fd, join(path, name))
      else if (stat?.isFile() && count.sizeBytes + stat.size <= COPY_MAX) copyFile(fd, join(path, name), stat.mode)
      else count.leftOut++
      if (fd !== undefined) closeSync(fd)
    }
    const madeFd = openSync(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
    give(madeFd)
    closeSync(madeFd)
  }
  const fromFd = openSync(from, O_RDONLY | O_DIRECTORY)
  copyDir(fromFd, to)
  closeSync(fromFd)
  return count
}

const isLeftOut = name => ["node_modules", ".git", "build", "dist"].includes(name)

function tryOpen(path) {
  try {
    return openSync(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK)
  } catch {
    return undefined
  }
}

// ---- processes ---------------------------------------------------------------------------------------------------

const environment = more => ({ PATH: "/usr/local/bin:/usr/bin:/bin", LANG: "C.UTF-8", HOME: "/", ...more })

const reaper = spawn(process.execPath, [join(root, "scripts/reaper.js")], {
  detached: true,
  stdio: ["pipe", "inherit", "inherit"],
})
reaper.stdin.on("error", () => {})
let isLeaving = false
let onSignal = () => leave(130)
const keepTrack = thing => reaper.stdin.write(`${JSON.stringify(thing)}\n`)

/** Takes everything down and ends with `code`. */
async function leave(code) {
  isLeaving = true
  reaper.stdin.end()
  if (reaper.exitCode === null) await new Promise(done => reaper.once("exit", done))
  process.exit(code)
}

/** Starts a program that stays; its end before `leave` is a fault. */
function startServer(name, command, env) {
  const child = spawn(command[0], command.slice(1), {
    cwd: "/",
    env: environment(env),
    stdio: ["ignore", "ignore", "pipe"],
  })
  keepTrack({ pid: child.pid, start: readStartTime(child.pid) })
  child.said = ""
  child.stderr.setEncoding("utf8").on("data", chunk => (child.said += chunk))
  child.once("error", error => (child.said = error.message))
  child.name = name
  return child
}

async function waitFor(child, what, isThere) {
  for (let waitedMs = 0; isLeaving || !isThere(); waitedMs += 20) {
    if (isLeaving) await new Promise(() => {})
    if (child.exitCode !== null || child.signalCode !== null || waitedMs > 15_000) {
      process.stderr.write(
        `cortexfs: ${what} did not come up: ${child.said.trim() || child.exitCode || child.signalCode || "no answer"}\n`,
      )
      return leave(1)
    }
    await new Promise(done => setTimeout(done, 20))
  }
}

/** Runs a client command with the owner's identity, its output straight on ours. Gives the exit code. */
function runAsOwner(owner, command, env, label) {
  if (label) say(`\n$ ${label}`)
  const [file, ...args] = asOwner(owner, command)
  return new Promise(done => {
    const child = spawn(file, args, { cwd: "/", env: environment(env), stdio: ["ignore", "inherit", "inherit"] })
    child.once("error", () => done(127))
    child.once("exit", (code, signal) => done(code ?? 128 + (signal === "SIGINT" ? 2 : 9)))
  })
}

// ---- the main job ------------------------------------------------------------------------------------------------

async function main() {
  ensureAll(["build", "run"])
  try {
    accessSync("/dev/fuse", constants.R_OK | constants.W_OK)
  } catch (error) {
    if (error.code === "ENOENT") fail("no /dev/fuse: modprobe fuse")
    fail(`/dev/fuse cannot be opened by uid ${process.getuid()}: run as root: chmod 0666 /dev/fuse`)
  }
  const owner = chooseOwner()
  say(`agents belong to uid ${owner.uid} (${owner.why})`)

  const base = mkdtempSync(join(tmpdir(), "cortexfs-"))
  keepTrack({ dir: base })
  chmodSync(base, 0o755)
  // A kept storage keeps its programs beside it: its executables name them by absolute path.
  const kept = process.env.CORTEXFS_STORAGE ? resolve(here, process.env.CORTEXFS_STORAGE) : undefined
  const storage = kept ?? join(base, "data/storage")
  mkdirSync(dirname(storage), { recursive: true, mode: isRoot ? 0o755 : 0o700 })
  const prefix = kept ? join(dirname(kept), "prefix") : join(base, "prefix")
  if (newest([join(prefix, "lib/cortexfs/dist")]) < newest(["dist", "build/Release/cortexfs.node"])) {
    await installProduct({ prefix, from: root })
    say(`installed ${prefix}`)
  }
  const bin = name => join(prefix, "bin", name)
  const ownerFlag = isRoot ? ["--owner", String(owner.uid)] : []
  const update = spawnSync(bin("ctx"), ["storage", "update", "--prune", ...ownerFlag, storage], {
    encoding: "utf8",
    env: environment(),
  })
  if (update.status !== 0) {
    process.stderr.write(update.stderr)
    return leave(1)
  }
  say(`storage ${update.stdout.split("\n")[0]}`)

  const run = join(base, "run")
  const config = join(base, "etc")
  for (const dir of [run, config]) mkdirSync(dir, { mode: 0o755 })
  let host = "/ctx"
  if (!isRoot || findMountType(host) || (existsSync(host) && readdirSync(host).length > 0)) {
    host = join(base, "ctx")
    mkdirSync(host)
  } else if (!existsSync(host)) {
    mkdirSync(host, { mode: 0o755 })
    keepTrack({ dir: host, isEmpty: true })
  }
  const view = join(run, "mount/coder")
  const common = ["--source", join(storage, "current"), "--config", config, "--run", run]
  for (const mount of [host, view]) keepTrack({ mount })
  const hostServer = startServer("host view", [bin("cortexfs-mount"), ...common, host])
  const viewServer = startServer("coder's view", [bin("cortexfs-mount"), ...common, "--agent", "coder", view])
  await waitFor(hostServer, `host view ${host}`, () => findMountType(host))
  await waitFor(viewServer, `view ${view}`, () => findMountType(view))
  say(`mounted ${host} (host view)`)
  say(`mounted ${view} (coder's view)`)
  const listener = join(run, "agent/coder.sock")
  const runtime = startServer("runtime", [bin("cortexfs-agent"), ...common, "--agent", "coder"])
  await waitFor(runtime, `socket ${listener}`, () => existsSync(listener))
  say(`serving ${host}/agent/coder.sock`)

  let workspace = here
  if (!canUse(owner, here)) {
    workspace = join(base, "workspace")
    const { sizeBytes, leftOut } = copyWorkspace(here, workspace, owner)
    say(
      `workspace: uid ${owner.uid} cannot use ${here}: working on a copy, ${sizeBytes} bytes, ${leftOut} entries left out`,
    )
  } else say(`workspace: ${here}`)

  const env = { CTX_ROOT: host }
  const session = `${host}/home/${owner.uid}/agent/coder/session`
  const send = ["agent", "send", "coder", "--session", "default", "--workspace", workspace, "--", text]
  let code = await runAsOwner(owner, [bin("ctx"), ...send], env, `ctx agent send coder -- ${JSON.stringify(text)}`)
  for (const file of ["messages.jsonl", "events.jsonl", "latest.md", "state"]) {
    const path = `${session}/default/${file}`
    code ||= await runAsOwner(owner, ["cat", path], env, `cat ${path}`)
  }
  code ||= await runAsOwner(owner, ["cat", `${session}/index/list`], env, `cat ${session}/index/list`)
  const trajectory = ["agent", "trajectory", "coder", "--session", "default"]
  code ||= await runAsOwner(owner, [bin("ctx"), ...trajectory], env, `ctx ${trajectory.join(" ")}`)

  if (isKept && code === 0) {
    const identity = isRoot ? `setpriv --reuid=${owner.uid} --regid=${owner.gid} --clear-groups ` : ""
    say("\nup until Ctrl+C; in a second terminal:")
    say(`  alias ctx='${identity}env CTX_ROOT=${host} ${bin("ctx")}'`)
    say(`  ctx agent send coder --workspace ${workspace} "what is in README.md?"`)
    await new Promise(done => {
      onSignal = done
      for (const server of [hostServer, viewServer, runtime])
        server.once("exit", () => {
          if (isLeaving) return
          process.stderr.write(
            `cortexfs: ${server.name} ended (${server.exitCode ?? server.signalCode}): ${server.said.trim().split("\n").pop()}\n`,
          )
          code = 1
          done()
        })
    })
  }
  return leave(code)
}

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => onSignal())
main().catch(error => {
  process.stderr.write(`cortexfs: ${error instanceof SetupFault ? error.message : error.stack}\n`)
  return leave(1)
})
