// needs: root fuse bwrap
import { once } from "node:events"
import { chmodSync, cpSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import t from "tap"
import { installedPrefix, makeDir, OTHER, OWNER, ROOT } from "../harness/product.js"
import { cleanEnv, runProgram, startProgram, stopProgram } from "../harness/program.js"

const README = "# Fields\n\nThree fields of rye.\n"

/** A workspace of `uid` with a README.md, in a directory that anybody may pass. */
async function makeWorkspace(uid: number, mode = 0o755): Promise<string> {
  const dir = join(makeDir(), "project")
  mkdirSync(dir)
  writeFileSync(join(dir, "README.md"), README)
  await runProgram(["chown", "-R", `${uid}:${uid}`, dir], {})
  chmodSync(dir, mode)
  return dir
}

/** Temporary directories, mounts and processes of a main job. */
function findTraces(): string[] {
  const dirs = readdirSync(tmpdir()).filter(name => /^cortexfs-[A-Za-z0-9]{6}$/.test(name))
  const mounts = readFileSync("/proc/self/mountinfo", "utf8")
    .split("\n")
    .filter(line => dirs.some(dir => line.includes(`/${dir}/`)) || / \/ctx .* - fuse\.cortexfs/.test(line))
  return [...dirs, ...mounts]
}

const command = [process.execPath, join(ROOT, "scripts/start.js")]

t.test("the main job answers from the real file and shows the result as files", async t => {
  const before = findTraces()
  const workspace = await makeWorkspace(OWNER)
  const { code, stdout, stderr } = await runProgram([...command, "what is in README.md?"], {
    cwd: workspace,
    timeoutMs: 120_000,
  })
  t.equal(code, 0, stderr)
  t.match(stderr, `agents belong to uid ${OWNER}`)
  t.match(stdout, "Three fields of rye.", "the answer quotes the file")
  t.match(stdout, '"type":"tool_call"', "events are shown")
  t.match(stdout, /^done$/m, "state is shown")
  t.match(stdout, /"schema_version": ?"ATIF-v1\.7"/, "the trajectory is shown")
  t.same(findTraces(), before, "no mount and no file is left")
})

t.test("a workspace that the owner cannot use is copied, and that is said", async t => {
  const before = findTraces()
  const workspace = await makeWorkspace(0, 0o700)
  const { code, stdout, stderr } = await runProgram([...command, "what is in README.md?"], {
    cwd: workspace,
    timeoutMs: 120_000,
  })
  t.equal(code, 0, stderr)
  t.match(stderr, "working on a copy")
  t.match(stdout, "Three fields of rye.")
  t.same(findTraces(), before)
})

t.test("the copy of a closed workspace is open to the owner only", async t => {
  const workspace = await makeWorkspace(0, 0o700)
  const child = startProgram([...command, "--keep"], { cwd: workspace, stdio: ["ignore", "ignore", "pipe"] })
  let stderr = ""
  child.stderr!.setEncoding("utf8").on("data", text => (stderr += text))
  for (let waitedMs = 0; !stderr.includes("second terminal") && waitedMs < 60_000; waitedMs += 50)
    await new Promise(resolve => setTimeout(resolve, 50))
  const copy = /--workspace (\S+)/.exec(stderr)![1]!
  const { code } = await runProgram(["cat", join(copy, "README.md")], { uid: OTHER })
  t.equal(code, 1, "another uid cannot read it")
  t.equal((await runProgram(["cat", join(copy, "README.md")], { uid: 65534 })).stdout, README)
  t.equal(await stopProgram(child, "SIGINT", 20_000), 0)
})

t.test("a kept storage is neither rolled nor grown by the next start", async t => {
  const workspace = await makeWorkspace(OWNER)
  const dir = makeDir()
  const env = cleanEnv({ CORTEXFS_STORAGE: join(dir, "kept/storage") })
  for (let i = 0; i < 2; i++) {
    const { code, stderr } = await runProgram(command, { cwd: workspace, env, timeoutMs: 120_000 })
    t.equal(code, 0, stderr)
  }
  t.equal(readdirSync(join(dir, "kept/storage/generations")).length, 1)
  t.match(readFileSync(join(dir, `kept/home/${OWNER}/agent/coder/session/default/state`), "utf8"), "done")
})

t.test("help is printed, not asked", async t => {
  const { code, stdout } = await runProgram([...command, "--help"])
  t.equal(code, 0)
  t.match(stdout, /^usage: npm start/)
})

t.test("a main job killed by SIGKILL leaves no mount, process or file", async t => {
  const before = findTraces()
  const workspace = await makeWorkspace(OWNER)
  const child = startProgram([...command, "--keep"], { cwd: workspace, stdio: ["ignore", "ignore", "pipe"] })
  let stderr = ""
  child.stderr!.setEncoding("utf8").on("data", text => (stderr += text))
  for (let waitedMs = 0; !stderr.includes("second terminal") && waitedMs < 60_000; waitedMs += 50)
    await new Promise(resolve => setTimeout(resolve, 50))
  t.match(stderr, "second terminal")
  const base = /installed (\S+)\/prefix/.exec(stderr)![1]!
  const ended = once(child, "exit")
  child.kill("SIGKILL")
  await ended
  for (let waitedMs = 0; existsSync(base) && waitedMs < 15_000; waitedMs += 50)
    await new Promise(resolve => setTimeout(resolve, 50))
  t.same(findTraces(), before)
  const { stdout } = await runProgram(["pgrep", "-f", base])
  t.equal(stdout, "", "no process of it is left")
})

/** A built checkout in a place that any uid can read: this one may lie in a closed directory. */
async function makeOpenCheckout(): Promise<string> {
  const dir = makeDir("cortexfs-checkout")
  const lib = `${await installedPrefix()}/lib/cortexfs`
  for (const name of ["node_modules", "dist", "build", "package.json", "oclif.manifest.json", "README.md", "LICENSE"])
    cpSync(join(lib, name), join(dir, name), { recursive: true, preserveTimestamps: true })
  for (const name of ["scripts", "package-lock.json"])
    cpSync(join(ROOT, name), join(dir, name), { recursive: true, preserveTimestamps: true })
  // The mark by which set-up knows that the modules are those of the lockfile.
  writeFileSync(join(dir, "node_modules/.package-lock.json"), "{}")
  return dir
}

t.test("the main job runs for an ordinary user through fusermount3", async t => {
  const workspace = await makeWorkspace(OWNER)
  const dir = makeDir()
  // A mount namespace of its own, in which /dev/fuse is open to all and the uid has an account.
  const script = `
    set -e
    mknod -m 0666 ${dir}/fuse c 10 229
    mount --bind ${dir}/fuse /dev/fuse
    { cat /etc/passwd; echo 'ann:x:${OWNER}:${OWNER}::/:/bin/sh'; } > ${dir}/passwd
    mount --bind ${dir}/passwd /etc/passwd
    cd ${workspace}
    exec setpriv --reuid=${OWNER} --regid=${OWNER} --clear-groups -- "$@"`
  const inside = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
  const program = [process.execPath, join(await makeOpenCheckout(), "scripts/start.js")]
  const { code, stdout, stderr } = await runProgram([...inside, ...program, "what is in README.md?"], {
    timeoutMs: 120_000,
  })
  t.equal(code, 0, stderr)
  t.match(stderr, `agents belong to uid ${OWNER} (you)`)
  t.match(stdout, "Three fields of rye.")
  t.match(stdout, '"schema_version"')
})
