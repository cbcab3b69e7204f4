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

test("an installed product has no package that only development needs", async t => {
  const { installProduct } = await loadInstaller()
  const { libRoot } = installProduct({ prefix: join(makeDir(), "prefix"), from: ROOT })
  const lock = JSON.parse(readFileSync(join(ROOT, "package-lock.json"), "utf8"))
  for (const [path, entry] of Object.entries<{ dev?: boolean; optional?: boolean; peer?: boolean }>(lock.packages)) {
    if (path === "" || entry.optional || entry.peer) continue
    t.equal(existsSync(join(libRoot, path)), !entry.dev, path)
  }
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
