// Set-up shared by `npm start` and `npm test`: Debian packages, node modules, the addon, the compiled product.
// Only Node's own modules are used, since this runs before anything is installed. Everything is told on stderr.
import { spawnSync } from "node:child_process"
import { accessSync, constants, existsSync, readdirSync, statSync } from "node:fs"
import { dirname, join, resolve } from "node:path"
import { fileURLToPath } from "node:url"

export const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** Debian packages, blank-separated, of each program that has to be there, by purpose. */
const PROGRAMS = {
  build: { "g++": "g++", make: "make", python3: "python3" },
  run: { bwrap: "bubblewrap", fusermount3: "fuse3", setpriv: "util-linux" },
  test: {
    strace: "strace",
    cmake: "cmake",
    ninja: "ninja-build",
    socat: "socat",
    unshare: "util-linux",
    git: "git",
    "systemd-analyze": "systemd",
    "dbus-daemon": "dbus",
    "/usr/lib/polkit-1/polkitd": "polkitd",
    "dpkg-deb": "dpkg",
    "mkfs.xfs": "xfsprogs",
    "clang++": "clang libclang-rt-dev",
  },
}

/** Says one line of progress on stderr. @param {string} text */
export function say(text) {
  process.stderr.write(`${text}\n`)
}

/** The path of a program found by PATH and the system directories, or undefined. @param {string} name */
export function findProgram(name) {
  if (name.startsWith("/")) return existsSync(name) ? name : undefined
  const places = [...(process.env.PATH ?? "").split(":"), "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
  for (const place of places) {
    try {
      const path = join(place || ".", name)
      accessSync(path, constants.X_OK)
      if (statSync(path).isFile()) return path
    } catch {}
  }
  return undefined
}

/** Debian packages that the named purposes need and this machine lacks. @param {string[]} purposes */
export function missingPackages(purposes) {
  const packages = new Set()
  for (const purpose of purposes)
    for (const [program, names] of Object.entries(PROGRAMS[purpose]))
      if (!findProgram(program)) for (const name of names.split(" ")) packages.add(name)
  return [...packages].sort()
}

/** Runs a program to its end; its output goes to stderr when it is wanted or when it fails. */
function runOrThrow(what, command, args, options = {}) {
  const result = spawnSync(command, args, { cwd: root, encoding: "utf8", maxBuffer: 1 << 28, ...options })
  if (result.status === 0) return result.stdout
  process.stderr.write(`${result.stdout ?? ""}${result.stderr ?? ""}`)
  throw new SetupFault(
    `${what}: ${command} ${args.join(" ")} ended with ${result.status ?? result.signal ?? result.error}`,
  )
}

/** A fault of set-up that is told in one line. */
export class SetupFault extends Error {}

/**
 * Installs missing Debian packages when root, else names them in one line.
 * @param {string[]} purposes @throws {SetupFault} when a package that is needed is missing and cannot be installed
 */
export function ensurePackages(purposes) {
  const [major = 0, minor = 0] = process.versions.node.split(".").map(Number)
  if (major < 20 || (major === 20 && minor < 19))
    throw new SetupFault(`node ${process.versions.node} is too old: install Node.js 20.19 or newer`)
  const packages = missingPackages(purposes)
  if (packages.length === 0) return
  const line = `apt-get install ${packages.join(" ")}`
  if (process.getuid?.() !== 0 || !findProgram("apt-get"))
    throw new SetupFault(`missing Debian packages: run as root: ${line}`)
  say(`set-up: ${line}`)
  const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" }
  const install = ["-qq", "-y", "--no-install-recommends", "install", ...packages]
  if (spawnSync("apt-get", install, { env, stdio: "ignore" }).status !== 0) {
    runOrThrow("package list", "apt-get", ["-qq", "update"], { env })
    runOrThrow("packages", "apt-get", install, { env })
  }
}

/**
 * Newest modification time in ms of the files below the given paths that exist, relative to the checkout; 0 for none.
 * @param {string[]} paths
 */
export function newest(paths) {
  let time = 0
  const visit = path => {
    const stat = statSync(path, { throwIfNoEntry: false })
    if (!stat) return
    if (stat.isDirectory()) for (const name of readdirSync(path)) visit(join(path, name))
    else time = Math.max(time, stat.mtimeMs)
  }
  for (const path of paths) visit(resolve(root, path))
  return time
}

const hasModules = () => newest(["node_modules/.package-lock.json"]) >= newest(["package-lock.json"])

const hasAddon = () => {
  const built = ["build/Release/cortexfs.node", "build/Release/cortexfs-enter"].map(path => newest([path]))
  return Math.min(...built) >= newest(["native", "binding.gyp"])
}

const hasProduct = () => newest(["dist"]) >= newest(["src", "scripts/bundle.js", "tsconfig.json", "package.json"])

/** Installs the node modules of the lockfile (which builds the addon), builds the addon, compiles: what is not up to date. */
function build() {
  if (!hasModules()) {
    say("set-up: npm ci, which builds the addon too (about a minute)")
    const npm = process.env.npm_execpath
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("npm_")))
    const [command, ...first] = npm && existsSync(npm) ? [process.execPath, npm] : ["npm"]
    runOrThrow("modules", command, [...first, "ci", "--no-audit", "--no-fund"], { env })
  }
  if (!hasAddon()) {
    say("set-up: building the addon")
    runOrThrow("addon", process.execPath, ["scripts/addon.js"])
  }
  if (!hasProduct()) {
    say("set-up: compiling")
    runOrThrow("compile", process.execPath, ["scripts/compile.js"])
  }
}

/**
 * Everything, in order; two set-ups of one checkout wait for each other.
 * @param {string[]} purposes of packages: build, run, test @throws {SetupFault}
 */
export function ensureAll(purposes) {
  ensurePackages(purposes)
  if (hasModules() && hasAddon() && hasProduct()) return
  const lock = findProgram("flock") ? ["flock", root] : []
  const [command, ...args] = [...lock, process.execPath, join(root, "scripts/setup.js")]
  if (spawnSync(command, args, { stdio: ["ignore", "inherit", "inherit"] }).status !== 0)
    throw new SetupFault("set-up did not succeed: see the lines above")
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    build()
  } catch (error) {
    if (!(error instanceof SetupFault)) throw error
    process.stderr.write(`cortexfs: ${error.message}\n`)
    process.exit(1)
  }
}
