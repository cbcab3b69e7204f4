// needs: root fuse
// What a sandbox has mounted over names of its view stays mounted, whatever the mount publishes, forgets or lacks.
import { execFileSync } from "node:child_process"
import { mkdirSync, readdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { createInterface } from "node:readline"
import t from "tap"
import { cleanEnv, runProgram, startProgram, stopProgram } from "../harness/program.js"
import { type Fixture, makeBehind, makeFixture, OWNER, writeBehind } from "./fixture/stack.js"

t.setTimeout(180_000)

const HOME = `home/${OWNER}/agent/coder`
const PUBLICATIONS = 1000
const FILES = 400
/** Longer than every time to live of a view. */
const EXPIRY_MS = 1500

/** Binds a directory over each of two names in a mount namespace of its own; for each line says what it finds there. */
const SANDBOX = `
import json, os, subprocess, sys
over = sys.argv[1:]
for name in over: subprocess.check_call(["mount", "--bind", os.environ["COVER"], name])
def look(name):
    try: return open(name + "/mark").read()
    except OSError as fault: return fault.strerror
def is_bound(name): return any(line.split(" ")[4] == name for line in open("/proc/self/mountinfo"))
print("ready", flush=True)
for line in sys.stdin: print(json.dumps([[is_bound(name), look(name)] for name in over]), flush=True)
`
/** Publishes contents of a control, each by a temporary and a rename, or by a write in place. */
const PUBLISH = `
import os, sys
path, count, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgid(uid); os.setuid(uid)
base, name = os.path.split(path)
for i in range(count):
    text = sys.argv[4 + i % 2] + "\\n"
    if i % 4 == 3:
        with open(path, "w") as file: file.write(text)
        continue
    temp = "%s/.%s.tmp-%d-a-0" % (base, name, os.getpid())
    with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file: file.write(text)
    os.rename(temp, path)
`
/** Opens files until the mount cannot, looking at the two names all the while; says which errno it met. */
const EXHAUST = `
import errno, os, sys
held, met = [], set()
for name in sorted(os.listdir(sys.argv[1])):
    try: held.append(os.open(sys.argv[1] + "/" + name, os.O_RDONLY))
    except OSError as fault: met.add(errno.errorcode[fault.errno])
    for over in sys.argv[2:]:
        try: os.stat(over)
        except OSError as fault: met.add("stat:" + errno.errorcode[fault.errno])
print(len(held), " ".join(sorted(met)))
`

let f: Fixture

t.before(async () => {
  f = await makeFixture({ timeoutMs: 170_000 })
})
t.after(() => f.stack.stop())

t.test("fuse.44 binds over names of a view outlive publications, a policy change, expiry and exhaustion", async t => {
  for (const dir of ["session", "data", "data/.git", "data/many"]) makeBehind(f.behind(`${HOME}/${dir}`), OWNER, 0o700)
  for (let i = 0; i < FILES; i++) writeBehind(f.behind(`${HOME}/data/many/f${i}`), "", OWNER)
  const view = await f.stack.startView("coder", { timeoutMs: 170_000 })
  const over = [`${HOME}/session`, `${HOME}/data/.git`].map(name => join(view.mountPoint, name))
  const cover = join(f.stack.dir, "cover")
  mkdirSync(cover)
  writeFileSync(join(cover, "mark"), "kept")
  const sandbox = startProgram(
    ["/usr/bin/unshare", "--mount", "--propagation", "slave", "/usr/bin/python3", "-c", SANDBOX, ...over],
    { env: cleanEnv({ COVER: cover }), stdio: ["pipe", "pipe", "inherit"] },
  )
  const lines = createInterface({ input: sandbox.stdout! })[Symbol.asyncIterator]()
  const look = async () => {
    sandbox.stdin!.write("look\n")
    return JSON.parse((await lines.next()).value)
  }
  const run = async (script: string, ...args: (string | number)[]) => {
    const ended = await runProgram(["/usr/bin/python3", "-c", script, ...args.map(String)], { timeoutMs: 120_000 })
    t.equal(ended.code, 0, ended.stderr)
    return ended.stdout.trim()
  }
  const kept = over.map(() => [true, "kept"])
  try {
    t.equal((await lines.next()).value, "ready")
    t.same(await look(), kept, "at first")
    await run(PUBLISH, f.at("agent/coder.d/cwd"), PUBLICATIONS / 2, OWNER, "/workspace", "/workspace/a")
    await run(PUBLISH, f.at("tool/fs.read.d/timeout"), PUBLICATIONS / 2, 0, "5", "6")
    t.same(await look(), kept, "after the publications")
    await run(PUBLISH, f.at("agent/coder.d/policy"), 1, OWNER, "allow coder_t tool:fs.list execute", "")
    await new Promise(resolve => setTimeout(resolve, EXPIRY_MS))
    t.notOk(readdirSync(join(view.mountPoint, "tool")).includes("fs.read"), "the view shows the changed policy")
    for (const name of over) await run("import os, sys; os.stat(sys.argv[1])", name)
    t.same(await look(), kept, "after the policy change and every time to live")

    const limit = readdirSync(`/proc/${view.child.pid}/fd`).length + FILES / 2
    execFileSync("/usr/bin/prlimit", ["--pid", String(view.child.pid), `--nofile=${limit}:${limit}`])
    const [held, ...met] = (await run(EXHAUST, join(view.mountPoint, `${HOME}/data/many`), ...over)).split(" ")
    t.ok(Number(held) < FILES && met.length > 0, `${held} opens, then ${met.join(" ")}`)
    const refusals = ["ENFILE", "ENOMEM", "stat:ENOMEM"]
    t.same(
      met.filter(code => !refusals.includes(code)),
      [],
      "the errno of fuse.md 11 and no other",
    )
    t.comment(`${held} opens, then ${met.join(" ")}`)
    t.same(await look(), kept, "after opens up to the limit")
  } finally {
    sandbox.stdin!.end()
    await stopProgram(sandbox)
  }
})
