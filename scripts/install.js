// Installs the built product: `[DESTDIR=DIR] node scripts/install.js PREFIX`. The layout is the one a package has:
// PREFIX/lib/cortexfs/{bin,dist,node_modules,build/Release,package.json,…}, links in PREFIX/bin, and beside them units,
// account, directories, preset, polkit rule, manual pages, completions, documents. Everything in it can be read by every
// user, whatever the umask, and its programs do not depend on the directory it was installed from. With DESTDIR all is
// put below that directory, and names itself as it will lie without.
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
import { gzipSync } from "node:zlib"
import { formatBash, formatZsh } from "./completion.js"
import { formatPages } from "./man.js"

const NATIVE = ["cortexfs.node", "cortexfs-enter"]
const DATA = ["package.json", "oclif.manifest.json", "LICENSE", "README.md"]
/** Packages that only the build of the addon needs. */
const BUILD_PACKAGES = ["node-addon-api", "node-gyp"]
/** Where each directory of units/ is installed below the prefix. */
const UNIT_DIRS = {
  ".": "lib/systemd/system",
  user: "lib/systemd/user",
  "sysusers.d": "lib/sysusers.d",
  "tmpfiles.d": "lib/tmpfiles.d",
  "system-preset": "lib/systemd/system-preset",
  "user-preset": "lib/systemd/user-preset",
  "rules.d": "share/polkit-1/rules.d",
}
const UNIT = /\.(target|service|socket|timer|conf|preset|rules)$/
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
 * Paths of the packages that the product needs at run time, from the lockfile: all that its dependencies lead to, but
 * not what only the build of the addon needs.
 * @param {string} from
 * @returns {string[]} relative, such as `node_modules/ajv`
 */
function listPackages(from) {
  const { packages } = JSON.parse(readFileSync(join(from, "package-lock.json"), "utf8"))
  const found = new Set()
  // As Node.js looks a package up: beside the one that asks, then further out.
  const find = (name, asker) => {
    for (let place = asker; ; place = place.slice(0, Math.max(0, place.lastIndexOf("node_modules/") - 1))) {
      const path = `${place && `${place}/`}node_modules/${name}`
      if (packages[path]) return path
      if (place === "") return undefined
    }
  }
  const visit = (names, asker, isNeeded) => {
    for (const name of names) {
      const path = find(name, asker)
      if (found.has(path)) continue
      if (path === undefined || !existsSync(join(from, path))) {
        if (isNeeded) throw new Error(`${path ?? name} is missing: run npm ci`)
        continue
      }
      found.add(path)
      const { dependencies, optionalDependencies, peerDependencies } = packages[path]
      visit(Object.keys(dependencies ?? {}), path, true)
      visit(Object.keys({ ...optionalDependencies, ...peerDependencies }), path, false)
    }
  }
  const wanted = Object.keys(packages[""].dependencies ?? {}).filter(name => !BUILD_PACKAGES.includes(name))
  visit(wanted, "", true)
  return [...found].sort()
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
 * The statement that starts a program: its bundle, where there is one.
 * @param {string} lib
 * @param {string} entry name of the module in dist/bin
 */
function formatStart(lib, entry) {
  const bundle = entry.replace(/\.js$/, ".cjs")
  const hasBundle = existsSync(join(lib, "dist/bin", bundle))
  return hasBundle ? `require("../dist/bin/${bundle}")` : `import("../dist/bin/${entry}")`
}

/**
 * Writes the launcher of a program. It is CommonJS, since the loader takes a file without extension as that; it drops
 * NODE_EXTRA_CA_CERTS before Node.js starts, which would read the whole file for nothing.
 * @param {string} path
 * @param {string} node absolute path of the Node.js binary
 * @param {string} start the statement that starts the program
 */
function writeLauncher(path, node, start) {
  const line = `#!/usr/bin/env -S -u NODE_EXTRA_CA_CERTS ${node}`
  if (/\s/.test(node)) throw new Error(`${node} holds a blank: an interpreter line cannot name it`)
  if (Buffer.byteLength(line) >= LINE_MAX) throw new Error(`${node} is too long for an interpreter line`)
  writeFileSync(path, `${line}\n${start}\n`)
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
  for (const entry of entries) writeLauncher(join(bin, programName(entry)), node, formatStart(lib, entry))
  return entries.map(programName)
}

/**
 * Installs the product that is built in `from` below `prefix`, in place of one that is there. The old one stays whole
 * until the new one is.
 * @param {{prefix: string, from: string, destDir?: string}} options absolute paths; with `destDir` the files are put
 *   below it, for `prefix`
 * @returns {{libRoot: string, bin: string}} the directory with dist/, and the one with the links to the programs, both
 *   without `destDir`
 */
export function installProduct({ prefix, from, destDir = "" }) {
  const libRoot = join(prefix, "lib/cortexfs")
  const bin = join(prefix, "bin")
  const at = path => (destDir === "" ? path : join(destDir, path))
  const stage = at(join(prefix, `lib/.cortexfs-new-${process.pid}`))
  const old = at(join(prefix, `lib/.cortexfs-old-${process.pid}`))
  makeDir(at(join(prefix, "lib")))
  makeDir(at(bin))
  try {
    const programs = fill(stage, from, libRoot)
    if (existsSync(at(libRoot))) renameSync(at(libRoot), old)
    renameSync(stage, at(libRoot))
    for (const name of programs) {
      const temp = at(join(bin, `.${name}-${process.pid}`))
      symlinkSync(`../lib/cortexfs/bin/${name}`, temp)
      renameSync(temp, at(join(bin, name)))
    }
  } finally {
    for (const path of [stage, old]) rmSync(path, { recursive: true, force: true })
  }
  return { libRoot, bin }
}

/**
 * Writes a file in one step, 0644, and the directories above it.
 * @param {string} path
 * @param {string | Buffer} data
 */
function put(path, data) {
  const temp = join(dirname(path), `.cortexfs-new-${process.pid}`)
  makeDir(dirname(path))
  writeFileSync(temp, data)
  chmodSync(temp, 0o644)
  renameSync(temp, path)
}

/**
 * Installs what the host's own programs read: units, account, directories, presets, polkit rule, manual pages,
 * completions, documents. Programs and documents that a unit names are those below `prefix`.
 * @param {{prefix: string, from: string, destDir?: string}} options as for `installProduct`
 */
export function installSystem({ prefix, from, destDir = "" }) {
  const at = path => join(destDir, prefix, path)
  for (const [dir, to] of Object.entries(UNIT_DIRS)) {
    if (!existsSync(join(from, "units", dir))) continue
    for (const name of readdirSync(join(from, "units", dir)).filter(name => UNIT.test(name))) {
      const text = readFileSync(join(from, "units", dir, name), "utf8")
      const own = text
        .replace(/\/usr\/bin\/(?=ctx\b|cortexfs-)/g, `${join(prefix, "bin")}/`)
        .replaceAll("/usr/share/doc/cortexfs", join(prefix, "share/doc/cortexfs"))
      put(at(join(to, name)), own)
    }
  }
  const manifest = JSON.parse(readFileSync(join(from, "oclif.manifest.json"), "utf8"))
  const product = JSON.parse(readFileSync(join(from, "package.json"), "utf8"))
  for (const [name, text] of formatPages(manifest, product)) {
    // Like gzip -n: without name and time.
    put(at(`share/man/man1/${name}.gz`), gzipSync(text, { level: 9 }))
  }
  put(at("share/bash-completion/completions/ctx"), formatBash(manifest, product))
  put(at(`share/zsh/${prefix === "/usr" ? "vendor-completions" : "site-functions"}/_ctx`), formatZsh(manifest, product))
  const doc = "share/doc/cortexfs"
  rmSync(at(doc), { recursive: true, force: true })
  for (const name of ["README.md", "CHANGELOG.md"]) put(at(join(doc, name)), readFileSync(join(from, name)))
  put(at(join(doc, "copyright")), readFileSync(join(from, "packaging/copyright")))
  copy(join(from, "spec"), at(join(doc, "spec")))
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  if (process.argv.length !== 3 || process.argv[2]?.startsWith("-")) {
    process.stderr.write("usage: node scripts/install.js PREFIX\n")
    process.exit(2)
  }
  const options = {
    prefix: resolve(process.argv[2] ?? ""),
    from: dirname(dirname(fileURLToPath(import.meta.url))),
    destDir: process.env.DESTDIR ? resolve(process.env.DESTDIR) : "",
  }
  const installed = installProduct(options)
  installSystem(options)
  process.stdout.write(`installed ${installed.libRoot}\n`)
}
