// `npm test -- [FILE...]`: set-up, then every test on the real thing, then one line `N passed, N failed`.
// A test file says on its first lines what it needs: `// needs: root fuse bwrap`. What this machine lacks is listed by
// name as not run; with CI=true that fails the run.
import { spawnSync } from "node:child_process"
import {
  accessSync,
  chmodSync,
  constants,
  createReadStream,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
} from "node:fs"
import { tmpdir } from "node:os"
import { join, relative, resolve } from "node:path"
import { ensureAll, findProgram, missingPackages, root, SetupFault, say } from "./setup.js"

const isCi = process.env.CI === "true"
/** Seconds by which an exerciser that was asked to run long lengthens the limit of a file. */
const exerciseS = Number(process.env.CORTEXFS_EXERCISE_S ?? 0)

/** What a test can need beyond Node.js: a word and how to see that it is there. */
const NEEDS = {
  root: () => process.getuid() === 0,
  fuse: () => canOpen("/dev/fuse"),
  bwrap: () => findProgram("bwrap") !== undefined,
  strace: () => findProgram("strace") !== undefined,
  cmake: () => findProgram("cmake") !== undefined && findProgram("ninja") !== undefined,
  clang: () => findProgram("clang++") !== undefined,
  memory: () => Number(/^MemAvailable:\s+(\d+)/m.exec(readFileSync("/proc/meminfo", "utf8"))[1]) >= 6 << 20,
  git: () => findProgram("git") !== undefined,
  socat: () => findProgram("socat") !== undefined,
  systemd: canBootSystemd,
  dpkg: () => ["dpkg", "dpkg-deb"].every(findProgram),
  xfs: () => findProgram("mkfs.xfs") !== undefined && existsSync("/dev/loop-control") && isFilesystem("xfs"),
  polkit: () => existsSync("/usr/lib/polkit-1/polkitd") && findProgram("dbus-daemon") !== undefined,
}

/** Whether the kernel has a type of file system. */
function isFilesystem(type) {
  return new RegExp(`\\t${type}$`, "m").test(readFileSync("/proc/filesystems", "utf8"))
}

/** A system manager to boot and what it is booted in: namespaces, an overlay of /, control groups of version 2. */
function canBootSystemd() {
  const hasGroups = /^\S+ \S+ cgroup2 /m.test(readFileSync("/proc/mounts", "utf8"))
  if (process.getuid() !== 0 || !existsSync("/lib/systemd/systemd") || !hasGroups) return false
  if (!isFilesystem("overlay") || !["setpriv", "nsenter", "systemd-analyze"].every(findProgram)) return false
  return (
    spawnSync("unshare", ["--pid", "--fork", "--mount", "--uts", "--ipc", "--net", "--cgroup", "true"]).status === 0
  )
}

function canOpen(path) {
  try {
    accessSync(path, constants.R_OK | constants.W_OK)
    return true
  } catch {
    return false
  }
}

/** Test files below test/, without harness and fixtures, in byte order. */
function findTests(dir = join(root, "test")) {
  return readdirSync(dir, { withFileTypes: true })
    .flatMap(entry => {
      const path = join(dir, entry.name)
      if (entry.isDirectory()) return ["harness", "fixture"].includes(entry.name) ? [] : findTests(path)
      return entry.name.endsWith(".ts") ? [path] : []
    })
    .sort()
}

function readNeeds(file) {
  const line = /^\/\/ needs: (.*)$/m.exec(readFileSync(file, "utf8").slice(0, 2000))
  return line ? line[1].trim().split(/\s+/) : []
}

const titlesOf = file => [...readFileSync(file, "utf8").matchAll(/\.test\(\s*(["'`])(.+?)\1/g)].map(match => match[2])

/** Counts of tests (the subtests) by file, and what was skipped, in a TAP stream. */
async function countTests(path) {
  const { Parser } = await import("tap-parser")
  const files = new Map()
  let skipped = 0
  await new Promise((done, fault) => {
    const parser = new Parser()
    parser.on("child", file => {
      const count = { passed: 0, faults: [] }
      files.set(file.name, count)
      file.on("child", test => {
        test.on("complete", result => {
          if (result.ok) count.passed++
          else count.faults.push(`${file.name}: ${test.name}`)
        })
      })
      file.on("complete", result => {
        if (!result.ok && count.faults.length === 0) count.faults.push(file.name)
      })
    })
    parser.on("skip", () => skipped++)
    parser.on("todo", () => skipped++)
    parser.on("complete", done)
    createReadStream(path).on("error", fault).pipe(parser)
  })
  return { files, skipped }
}

/** Runs test files, `jobs` at once, and counts. */
function runTests(files, jobs, prefix, output) {
  const tap = join(root, "node_modules/.bin/tap")
  const args = [
    "--disable-coverage",
    "--allow-empty-coverage",
    `--jobs=${jobs}`,
    `--timeout=${300 + exerciseS}`,
    "--reporter=terse",
  ]
  const env = { ...process.env, CORTEXFS_TEST_PREFIX: prefix }
  spawnSync(tap, [...args, `--output-file=${output}`, ...files], { cwd: root, env, stdio: "inherit" })
  return countTests(output)
}

async function main() {
  const purposes = ["build", "run", "test"]
  try {
    ensureAll(purposes)
  } catch (error) {
    // Without root a missing package only takes away the tests that need it, unless nothing can be built.
    if (!(error instanceof SetupFault) || missingPackages(["build"]).length > 0) throw error
    say(`cortexfs: ${error.message}`)
    ensureAll(["build"])
  }
  const wanted = process.argv.slice(2).map(path => resolve(process.env.INIT_CWD ?? process.cwd(), path))
  const notRun = []
  const files = (wanted.length > 0 ? wanted : findTests()).filter(file => {
    const lacking = readNeeds(file).filter(need => !(NEEDS[need] ?? (() => false))())
    if (lacking.length > 0) notRun.push({ file: relative(root, file), lacking, titles: titlesOf(file) })
    return lacking.length === 0
  })

  const prefix = mkdtempSync(join(tmpdir(), "cortexfs-prefix-"))
  const output = join(root, "build/test.tap")
  mkdirSync(join(root, "build"), { recursive: true })
  let count = { files: new Map(), skipped: 0 }
  const onlyAlone = []
  try {
    chmodSync(prefix, 0o755)
    const { installProduct } = await import("./install.js")
    await installProduct({ prefix, from: root })
    if (files.length > 0) count = await runTests(files, 3, prefix, output)
    // Real kernels, managers and clocks on a busy machine: a few files that failed beside others run once more alone,
    // and what then passes is told by name.
    const failed = [...count.files].filter(([, { faults }]) => faults.length > 0).map(([name]) => name)
    if (failed.length > 0 && failed.length <= 4 && files.length > failed.length) {
      const again = await runTests(failed, 1, prefix, join(root, "build/test-again.tap"))
      for (const [name, result] of again.files) {
        if (result.faults.length === 0) onlyAlone.push(...count.files.get(name).faults)
        count.files.set(name, result)
      }
    }
  } finally {
    rmSync(prefix, { recursive: true, force: true })
  }
  for (const { file, lacking, titles } of notRun) {
    say(`not run: ${file}: needs ${lacking.join(" ")}`)
    for (const title of titles) say(`  ${title}`)
  }
  const results = [...count.files.values()]
  const faults = results.flatMap(result => result.faults)
  const passed = results.reduce((sum, result) => sum + result.passed, 0)
  for (const fault of onlyAlone) say(`failed beside others, passed alone: ${fault}`)
  for (const fault of faults) say(`failed: ${fault}`)
  if (count.skipped > 0) say(`skipped inside tests: ${count.skipped}`)
  process.stdout.write(`${passed} passed, ${faults.length} failed\n`)
  const isIncomplete = notRun.length > 0 || count.skipped > 0 || passed === 0
  process.exit(faults.length > 0 || (isCi && isIncomplete) ? 1 : 0)
}

main().catch(error => {
  process.stderr.write(`cortexfs: ${error instanceof SetupFault ? error.message : error.stack}\n`)
  process.exit(1)
})
