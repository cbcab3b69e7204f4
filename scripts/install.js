// Installs the built product: `node scripts/install.js PREFIX`. The layout is the one a package has:
// PREFIX/lib/cortexfs/{bin,dist,node_modules,build/Release,package.json,…} and links in PREFIX/bin. Everything in it can
// be read by every user, whatever the umask, and its programs do not depend on the directory it was installed from.
import {
  chmodSync,
  constants,
  copyFileSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs"
import { dirname, join, resolve } from "node:path"
import { fileURLToPath } from "node:url"

const NATIVE = ["cortexfs.node", "cortexfs-enter"]
const DATA = ["package.json", "oclif.manifest.json", "LICENSE", "README.md"]
/** Bytes the kernel reads of an interpreter line. */
const LINE_MAX = 255

/**
 * Makes a directory, and its missing parents, that everybody may enter.
 * @param {string} path
 */
function makeDir(path) {
  if (existsSync(path)) return
  makeDir(dirname(path))
  mkdirSync(path)
  chmodSync(path, 0o755)
}

/**
 * Copies a file, a link or a directory; files become 0644 or 0755, directories 0755.
 * @param {string} from
 * @param {string} to
 * @param {(path: string) => boolean} [isWanted] asked for each path below `from`
 */
function copy(from, to, isWanted = () => true) {
  const stat = lstatSync(from)
  if (stat.isDirectory()) {
    makeDir(to)
    for (const name of readdirSync(from)) {
      if (isWanted(join(from, name))) copy(join(from, name), join(to, name), isWanted)
    }
  } else if (stat.isSymbolicLink()) {
    symlinkSync(readlinkSync(from), to)
  } else {
    copyFileSync(from, to, constants.COPYFILE_FICLONE)
    chmodSync(to, stat.mode & 0o111 ? 0o755 : 0o644)
  }
}

/**
 * Paths of the packages that the product needs at run time, from the lockfile.
 * @param {string} from
 * @returns {string[]} relative, such as `node_modules/ajv`
 */
function listPackages(from) {
  const lock = JSON.parse(readFileSync(join(from, "package-lock.json"), "utf8"))
  return Object.entries(lock.packages)
    .filter(([path, entry]) => path !== "" && !entry.dev && !entry.devOptional)
    .filter(([path, entry]) => {
      if (existsSync(join(from, path))) return true
      if (entry.optional || entry.peer) return false
      throw new Error(`${path} is missing: run npm ci`)
    })
    .map(([path]) => path)
}

/**
 * Whether every user can read and run a program: its own mode and that of each directory above it.
 * @param {string} path
 */
function isOpenToAll(path) {
  for (let dir = dirname(path); ; dir = dirname(dir)) {
    if ((statSync(dir).mode & 0o001) === 0) return false
    if (dir === "/") break
  }
  return (statSync(path).mode & 0o005) === 0o005
}

/**
 * Writes the launcher of a program. It is CommonJS, since the loader takes a file without extension as that; it drops
 * NODE_EXTRA_CA_CERTS before Node.js starts, which would read the whole file for nothing.
 * @param {string} path
 * @param {string} node absolute path of the Node.js binary
 * @param {string} entry name of the module in dist/bin
 */
function writeLauncher(path, node, entry) {
  const line = `#!/usr/bin/env -S -u NODE_EXTRA_CA_CERTS ${node}`
  if (/\s/.test(node)) throw new Error(`${node} holds a blank: an interpreter line cannot name it`)
  if (Buffer.byteLength(line) >= LINE_MAX) throw new Error(`${node} is too long for an interpreter line`)
  writeFileSync(path, `${line}\nimport("../dist/bin/${entry}")\n`)
  chmodSync(path, 0o755)
}

/**
 * The name of the program that a module of dist/bin is: `ctx`, and `cortexfs-` with the stem for all others.
 * @param {string} file
 */
function programName(file) {
  const stem = file.replace(/\.js$/, "")
  return stem === "ctx" ? stem : `cortexfs-${stem}`
}

/**
 * Fills a directory with the product.
 * @param {string} lib the directory to fill
 * @param {string} from the built checkout
 * @param {string} libRoot where `lib` will lie in the end
 * @returns {string[]} names of the programs in `lib`/bin
 */
function fill(lib, from, libRoot) {
  const bin = join(lib, "bin")
  const release = join(lib, "build/Release")
  for (const dir of [bin, release]) makeDir(dir)
  for (const name of NATIVE) copy(join(from, "build/Release", name), join(release, name))
  for (const name of DATA) if (existsSync(join(from, name))) copy(join(from, name), join(lib, name))
  copy(join(from, "dist"), join(lib, "dist"))
  for (const path of listPackages(from)) {
    // A package inside another one has an entry of its own.
    copy(join(from, path), join(lib, path), below => below !== join(from, path, "node_modules"))
  }
  let node = realpathSync(process.execPath)
  if (!isOpenToAll(node)) {
    copy(node, join(bin, "node"))
    chmodSync(join(bin, "node"), 0o755)
    node = join(libRoot, "bin/node")
  }
  writeFileSync(join(bin, "package.json"), `{ "type": "commonjs" }\n`)
  chmodSync(join(bin, "package.json"), 0o644)
  const entries = readdirSync(join(lib, "dist/bin")).filter(name => name.endsWith(".js"))
  for (const entry of entries) writeLauncher(join(bin, programName(entry)), node, entry)
  return entries.map(programName)
}

/**
 * Installs the product that is built in `from` below `prefix`, in place of one that is there. The old one stays whole
 * until the new one is.
 * @param {{prefix: string, from: string}} options absolute paths
 * @returns {{libRoot: string, bin: string}} the directory with dist/, and the one with the links to the programs
 */
export function installProduct({ prefix, from }) {
  const libRoot = join(prefix, "lib/cortexfs")
  const bin = join(prefix, "bin")
  const stage = join(prefix, `lib/.cortexfs-new-${process.pid}`)
  const old = join(prefix, `lib/.cortexfs-old-${process.pid}`)
  makeDir(join(prefix, "lib"))
  makeDir(bin)
  try {
    const programs = fill(stage, from, libRoot)
    if (existsSync(libRoot)) renameSync(libRoot, old)
    renameSync(stage, libRoot)
    for (const name of programs) {
      const temp = join(bin, `.${name}-${process.pid}`)
      symlinkSync(`../lib/cortexfs/bin/${name}`, temp)
      renameSync(temp, join(bin, name))
    }
  } finally {
    for (const path of [stage, old]) rmSync(path, { recursive: true, force: true })
  }
  return { libRoot, bin }
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  if (process.argv.length !== 3 || process.argv[2]?.startsWith("-")) {
    process.stderr.write("usage: node scripts/install.js PREFIX\n")
    process.exit(2)
  }
  const installed = installProduct({
    prefix: resolve(process.argv[2] ?? ""),
    from: dirname(dirname(fileURLToPath(import.meta.url))),
  })
  process.stdout.write(`installed ${installed.libRoot}\n`)
}
