// needs: root
import { execFileSync } from "node:child_process"
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import { pathToFileURL } from "node:url"
import { test } from "tap"
import { run } from "../fixture/store/kit.js"
import { makeDir, OTHER, ROOT } from "../harness/product.js"

interface Installer {
  installProduct(options: { prefix: string; from: string }): { libRoot: string; bin: string }
}

async function loadInstaller(): Promise<Installer> {
  return import(pathToFileURL(`${ROOT}/scripts/install.js`).href)
}

function walk(dir: string, see: (path: string) => void): void {
  for (const name of readdirSync(dir)) {
    const path = join(dir, name)
    see(path)
    if (lstatSync(path).isDirectory()) walk(path, see)
  }
}

/** Directory of a package as Node.js finds it from `from`, which lies in an installed product. */
function findPackage(from: string, name: string): string {
  for (let dir = from; dir !== "/"; dir = join(dir, "..")) {
    if (existsSync(join(dir, "node_modules", name, "package.json"))) return join(dir, "node_modules", name)
    if (existsSync(join(dir, "oclif.manifest.json")) && existsSync(join(dir, "dist"))) break
  }
  throw new Error(`${from} does not find ${name}`)
}

test("an installed product is readable and runs for every user, whatever the umask", async t => {
  const { installProduct } = await loadInstaller()
  const prefix = join(makeDir(), "a", "prefix")
  const umask = process.umask(0o077)
  const installed = installProduct({ prefix, from: ROOT })
  process.umask(umask)
  t.strictSame(installed, { libRoot: join(prefix, "lib/cortexfs"), bin: join(prefix, "bin") })
  const closed: string[] = []
  walk(prefix, path => {
    const stat = lstatSync(path)
    const wanted = stat.isDirectory() ? 0o755 : (stat.mode & 0o111) === 0 ? 0o644 : 0o755
    if (!stat.isSymbolicLink() && (stat.mode & 0o7777) !== wanted) closed.push(path)
  })
  t.strictSame(closed, [])
  for (const name of readdirSync(installed.bin)) {
    t.equal(readlinkSync(join(installed.bin, name)), `../lib/cortexfs/bin/${name}`)
  }
  const env = { PATH: "/usr/bin:/bin", SHELL: "/bin/sh" }
  const ended = await run([join(installed.bin, "ctx"), "abi"], { uid: OTHER, env })
  t.match(ended.stdout, /^abi=1\n/, ended.stderr)
})

test("an installed product has no package that only development or the build of the addon needs", async t => {
  const { installProduct } = await loadInstaller()
  const { libRoot } = installProduct({ prefix: join(makeDir(), "prefix"), from: ROOT })
  const lock = JSON.parse(readFileSync(join(ROOT, "package-lock.json"), "utf8"))
  for (const [path, entry] of Object.entries<{ dev?: boolean }>(lock.packages)) {
    if (path !== "" && entry.dev) t.notOk(existsSync(join(libRoot, path)), path)
  }
  const ofBuild = ["node-addon-api", "node-gyp"]
  for (const name of ofBuild) t.notOk(existsSync(join(libRoot, "node_modules", name)), name)
  // All that is left finds what it depends on, each from its own place.
  const visited = new Set<string>()
  const visit = (names: string[], from: string) => {
    for (const name of names) {
      const dir = findPackage(from, name)
      if (visited.has(dir)) continue
      visited.add(dir)
      const { dependencies } = JSON.parse(readFileSync(join(dir, "package.json"), "utf8"))
      visit(Object.keys(dependencies ?? {}), dir)
    }
  }
  const { dependencies } = JSON.parse(readFileSync(join(libRoot, "package.json"), "utf8"))
  visit(
    Object.keys(dependencies).filter(name => !ofBuild.includes(name)),
    libRoot,
  )
  t.ok(visited.size > 10)
})

test("a second installation replaces the first and leaves nothing of it", async t => {
  const { installProduct } = await loadInstaller()
  const prefix = join(makeDir(), "prefix")
  const { libRoot } = installProduct({ prefix, from: ROOT })
  writeFileSync(join(libRoot, "old"), "")
  installProduct({ prefix, from: ROOT })
  t.notOk(existsSync(join(libRoot, "old")))
  t.strictSame(readdirSync(join(prefix, "lib")), ["cortexfs"])
})

test("a Node.js that lies below a closed directory is copied into the product", async t => {
  const dir = makeDir()
  const closed = join(dir, "closed")
  const node = join(closed, "node")
  mkdirSync(closed)
  execFileSync("cp", [process.execPath, node])
  chmodSync(closed, 0o700)
  const prefix = join(dir, "prefix")
  const env = { PATH: "/usr/bin:/bin", SHELL: "/bin/sh" }
  const installed = await run([node, join(ROOT, "scripts/install.js"), prefix], { env })
  t.equal(installed.stdout, `installed ${prefix}/lib/cortexfs\n`, installed.stderr)
  const line = readFileSync(join(prefix, "bin/ctx"), "utf8").split("\n")[0]
  t.equal(line, `#!/usr/bin/env -S -u NODE_EXTRA_CA_CERTS ${prefix}/lib/cortexfs/bin/node`)
  const ended = await run([join(prefix, "bin/ctx"), "abi"], { uid: OTHER, env })
  t.match(ended.stdout, /^abi=1\n/, ended.stderr)
  const wrong = await run([node, join(ROOT, "scripts/install.js")], { env })
  t.strictSame([wrong.code, wrong.stderr], [2, "usage: node scripts/install.js PREFIX\n"])
})
