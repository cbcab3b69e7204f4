// needs: root fuse
// A mount served without privilege, by fusermount3. The device node is private to root on many machines, so the test
// has one of its own, and an account, in a private mount namespace.
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { makeDir, makeStack, type Stack } from "../harness/product.js"
import { type Ended, runProgram, startProgram, stopProgram } from "../harness/program.js"
import { act, type Call, type Facts } from "./fixture/actor.js"
import { makeBehind, OTHER, OWNER } from "./fixture/stack.js"

const USER = 12_050
let stack: Stack
let dir: string
let mountPoint: string
let server: ReturnType<typeof startProgram>
let stderr = ""

t.before(async () => {
  stack = await makeStack()
  dir = makeDir("cortexfs-user")
  mountPoint = join(dir, "ctx")
  for (const path of [mountPoint, join(dir, "state"), join(dir, "run")]) makeBehind(path, USER, 0o700)
  makeBehind(dir, USER, 0o755)
  writeFileSync(
    join(dir, "passwd"),
    `${readFileSync("/etc/passwd", "utf8")}cxuser:x:${USER}:${USER}::/nonexistent:/bin/sh\n`,
  )
  const setUp =
    'mount -t tmpfs dev "$0/dev" && mknod -m 666 "$0/dev/fuse" c 10 229 && mount --bind "$0/dev/fuse" /dev/fuse && ' +
    'mount --bind "$0/passwd" /etc/passwd && exec "$@"'
  makeBehind(join(dir, "dev"), 0)
  const user = ["/usr/bin/setpriv", `--reuid=${USER}`, `--regid=${USER}`, "--clear-groups", "--"]
  const source = join(dir, "state/storage/current")
  const inUser = (command: string[]) => [
    "/usr/bin/unshare",
    "-m",
    "--",
    "/bin/sh",
    "-c",
    setUp,
    dir,
    ...user,
    ...command,
  ]
  const updated = await runProgram([
    ...user,
    join(stack.prefix, "bin/ctx"),
    "storage",
    "update",
    "--owner",
    String(USER),
    join(dir, "state/storage"),
  ])
  if (updated.code !== 0) throw new Error(updated.stderr)
  server = startProgram(
    inUser([join(stack.prefix, "bin/cortexfs-mount"), "--source", source, "--run", join(dir, "run"), mountPoint]),
  )
  server.stderr!.setEncoding("utf8").on("data", text => (stderr += text))
  for (let i = 0; i < 500 && !(await isMounted()); i++) {
    if (server.exitCode !== null) throw new Error(`the server ended with ${server.exitCode}: ${stderr}`)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
})
t.after(async () => {
  await stopProgram(server)
  await stack.stop()
})

async function isMounted(): Promise<boolean> {
  return readFileSync(`/proc/${server.pid}/mountinfo`, "utf8").includes(` ${mountPoint} `)
}

const asUser = (who: { uid: number; gid?: number; groups?: number[] }, ...calls: Call[]) =>
  act({ ...who, namespacePid: server.pid }, calls)

t.test("fuse.49 only processes that have just the mounting ids get in, and more groups do no harm", async t => {
  const stat: Call = ["stat", join(mountPoint, "status")]
  t.same(await asUser({ uid: OTHER }, stat), ["EACCES"])
  t.same(await asUser({ uid: 0 }, stat), ["EACCES"])
  t.same(await asUser({ uid: USER, gid: OTHER }, stat), ["EACCES"])
  const [facts] = (await asUser({ uid: USER, groups: [OTHER] }, stat)) as Facts[]
  t.same([facts?.type, facts?.uid, facts?.gid, facts?.mode], ["file", USER, USER, 0o444])
})

t.test("root.7 (per-user mount) an alias begins with the mount point and leads to its model", async t => {
  const [target, facts, socket] = (await asUser(
    { uid: USER },
    ["readlink", join(mountPoint, "model/main")],
    ["stat", join(mountPoint, "model/main")],
    ["readlink", join(mountPoint, "agent/coder.sock")],
  )) as [string, Facts, string]
  t.ok(target.startsWith(`${mountPoint}/model/`), target)
  t.equal(facts.type, "file")
  t.equal(socket, join(dir, "run/agent/coder.sock"))
})

t.test("in a per-user mount all is the user's, chown is EPERM and passthrough is off", async t => {
  const home = join(mountPoint, `home/${USER}`)
  const results = await asUser(
    { uid: USER },
    ["read", join(mountPoint, "status")],
    ["stat", home],
    ["write", join(home, "file"), "text"],
    ["read", join(home, "file")],
    ["chown", join(home, "file"), OWNER, OWNER],
    ["stat", join(mountPoint, "model")],
    ["stat", join(mountPoint, "agent/coder")],
    ["mkdir", join(mountPoint, "shared/lab")],
    ["stat", join(mountPoint, "shared/lab")],
    ["write", join(mountPoint, "model/x"), "x"],
  )
  const [status, homeFacts, wrote, read, chowned, model, agent, made, space, denied] = results as [
    string,
    Facts,
    ...unknown[],
  ]
  t.match(status, "\npassthrough=0\n")
  t.same([homeFacts.uid, homeFacts.mode], [USER, 0o700])
  t.same([wrote, read, chowned, made, denied], ["ok", "text", "EPERM", "ok", "EROFS"])
  for (const facts of [model, agent, space] as Facts[]) t.same([facts.uid, facts.gid], [USER, USER])
})

t.test("a second per-user server on a live mount exits 69, SIGTERM unmounts", async t => {
  const command = [
    "/usr/bin/nsenter",
    "-t",
    String(server.pid),
    "-m",
    "--",
    "/usr/bin/setpriv",
    `--reuid=${USER}`,
    `--regid=${USER}`,
  ]
  const second: Ended = await runProgram([
    ...command,
    "--clear-groups",
    "--",
    join(stack.prefix, "bin/cortexfs-mount"),
    "--source",
    join(dir, "state/storage/current"),
    "--run",
    join(dir, "run"),
    mountPoint,
  ])
  t.equal(second.code, 69)
  t.match(second.stderr, /^cortexfs-mount: EBUSY: /)
  t.equal(await stopProgram(server), 0, stderr)
})
