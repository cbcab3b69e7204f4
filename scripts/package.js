// `npm run package`: builds build/cortexfs_<version>_<arch>.deb from the built checkout with dpkg-deb alone. The same
// tree, Node.js and SOURCE_DATE_EPOCH (default: the time of the last commit) give the same bytes.
import { execFileSync, spawnSync } from "node:child_process"
import { createHash } from "node:crypto"
import {
  chmodSync,
  lstatSync,
  lutimesSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs"
import { tmpdir } from "node:os"
import { join, relative } from "node:path"
import { fileURLToPath, pathToFileURL } from "node:url"
import { installProduct, installSystem } from "./install.js"
import { ensureAll, findProgram, root, SetupFault } from "./setup.js"

const SCRIPTS = ["preinst", "postinst", "prerm", "postrm"]
/** First version of Debian's libstdc++6 that has a symbol version. */
const LIBSTDCXX = { 28: "9", 29: "11", 30: "12", 31: "13.1", 32: "13.1", 33: "14", 34: "15" }

/** Every path below `dir`, parents first, in byte order. @param {string} dir @returns {string[]} */
function walk(dir) {
  return readdirSync(dir)
    .sort()
    .map(name => join(dir, name))
    .flatMap(path => (lstatSync(path).isDirectory() ? [path, ...walk(path)] : [path]))
}

/** Highest version of a symbol family, such as GLIBC_2.34, that a program needs; its last number. */
function newestSymbol(path, family) {
  const text = readFileSync(path, "latin1")
  return Math.max(0, ...[...text.matchAll(new RegExp(`${family}\\.(\\d+)`, "g"))].map(([, minor]) => Number(minor)))
}

/** Versions of the C and C++ libraries that the addon needs. */
function libraryVersions(from) {
  const addon = join(from, "build/Release/cortexfs.node")
  const minor = newestSymbol(addon, "GLIBCXX_3\\.4")
  const known = Object.keys(LIBSTDCXX).map(Number)
  if (minor > Math.max(...known))
    throw new SetupFault(`GLIBCXX_3.4.${minor} is not known: add it to scripts/package.js`)
  const first = known.find(one => one >= minor)
  return { LIBC: `2.${newestSymbol(addon, "GLIBC_2")}`, LIBSTDCXX: LIBSTDCXX[first] }
}

/** Seconds that all times in the package are: of the environment, else of the last commit, else of package.json. */
function readEpoch(from) {
  if (/^\d+$/.test(process.env.SOURCE_DATE_EPOCH ?? "")) return Number(process.env.SOURCE_DATE_EPOCH)
  const { status, stdout } = spawnSync("git", ["-C", from, "log", "-1", "--format=%ct"], { encoding: "utf8" })
  return status === 0 && stdout.trim()
    ? Number(stdout)
    : Math.floor(statSync(join(from, "package.json")).mtimeMs / 1000)
}

/** The Node.js that the launchers of an installed product name. @param {string} lib */
function readNode(lib) {
  return readFileSync(join(lib, "bin/ctx"), "utf8").split("\n")[0].split(" ").at(-1)
}

/**
 * Builds the package of the product that is built in `from`.
 * @param {{from: string, outDir: string}} options absolute paths
 * @returns {Promise<string>} path of the package
 * @throws {SetupFault} when dpkg-deb is missing
 */
export async function buildPackage({ from, outDir }) {
  if (!findProgram("dpkg-deb")) throw new SetupFault("dpkg-deb is missing: packages are built on Debian")
  const product = JSON.parse(readFileSync(join(from, "package.json"), "utf8"))
  const { TREE_VERSION } = await import(pathToFileURL(join(from, "dist/abi/product.js")).href)
  const architecture = execFileSync("dpkg", ["--print-architecture"], { encoding: "utf8" }).trim()
  // A pre-release sorts before its release.
  const version = product.version.replace("-", "~")
  const epoch = readEpoch(from)
  const stage = mkdtempSync(join(tmpdir(), "cortexfs-package-"))
  try {
    chmodSync(stage, 0o755)
    installProduct({ prefix: "/usr", destDir: stage, from })
    installSystem({ prefix: "/usr", destDir: stage, from })
    const paths = walk(stage)
    const files = paths.filter(path => lstatSync(path).isFile())
    const values = {
      VERSION: version,
      ARCHITECTURE: architecture,
      NODE: readNode(join(stage, "usr/lib/cortexfs")),
      TREE_VERSION,
      // As Debian counts: whole KiB of each file, and one for each other entry.
      SIZE: paths.reduce((kib, path) => kib + (files.includes(path) ? Math.ceil(lstatSync(path).size / 1024) : 1), 0),
      ...libraryVersions(from),
    }
    const control = join(stage, "DEBIAN")
    mkdirSync(control)
    const fill = name =>
      readFileSync(join(from, "packaging", name), "utf8").replace(/@([A-Z_]+)@/g, (_, key) => {
        if (!(key in values)) throw new Error(`packaging/${name} names @${key}@, which nothing fills`)
        return String(values[key])
      })
    writeFileSync(join(control, "control"), fill("control"))
    for (const name of SCRIPTS) writeFileSync(join(control, name), fill(name))
    const sum = path => createHash("md5").update(readFileSync(path)).digest("hex")
    writeFileSync(join(control, "md5sums"), files.map(path => `${sum(path)}  ${relative(stage, path)}\n`).join(""))
    chmodSync(control, 0o755)
    for (const name of readdirSync(control)) chmodSync(join(control, name), SCRIPTS.includes(name) ? 0o755 : 0o644)
    for (const path of [stage, ...walk(stage)]) lutimesSync(path, epoch, epoch)
    mkdirSync(outDir, { recursive: true })
    const path = join(outDir, `cortexfs_${version}_${architecture}.deb`)
    execFileSync("dpkg-deb", ["--build", "--root-owner-group", "-Zxz", stage, path], {
      env: { ...process.env, SOURCE_DATE_EPOCH: String(epoch) },
      stdio: ["ignore", "ignore", "inherit"],
    })
    return path
  } finally {
    rmSync(stage, { recursive: true, force: true })
  }
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  try {
    ensureAll(["build"])
    process.stdout.write(`${await buildPackage({ from: root, outDir: join(root, "build") })}\n`)
  } catch (error) {
    if (!(error instanceof SetupFault)) throw error
    process.stderr.write(`cortexfs: ${error.message}\n`)
    process.exitCode = 1
  }
}
