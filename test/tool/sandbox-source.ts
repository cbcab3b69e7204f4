// needs: root bwrap
// What is bound is what was checked: links and swaps where the agent, or anybody, can write.
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs"
import { join } from "node:path"
import t from "tap"
import { type Outcome, Place } from "../fixture/tool/place.js"
import { startProgram, stopProgram } from "../harness/program.js"

const place = await Place.make()
t.teardown(() => place.remove())
const SECRET = "canary-of-the-host"
const outside = place.ownDir("outside")
place.write(join(outside, "key"), `${SECRET}\n`, 0o644)
const data = join(place.home, "data")
const reach = (dir: string) => `#!/bin/sh\ncat ${dir}/key 2>/dev/null; touch ${dir}/marker 2>/dev/null; echo ran\n`

/** Exchanges a directory and a link again and again while `act` runs. */
async function swapping(a: string, b: string, act: () => Promise<Outcome>): Promise<Outcome> {
  const swap = `import ctypes, time
libc = ctypes.CDLL(None)
print("begun", flush=True)
while True:
    libc.renameat2(-100, b"${a}", -100, b"${b}", 2)
    time.sleep(0.0007)`
  const swapper = startProgram(["/usr/bin/python3", "-c", swap])
  await new Promise(resolve => swapper.stdout!.once("data", resolve))
  try {
    return await act()
  } finally {
    await stopProgram(swapper, "SIGKILL")
    // The directory back at its own name, whatever the last exchange left.
    if (lstatSync(a).isSymbolicLink()) {
      unlinkSync(a)
      renameSync(b, a)
    } else unlinkSync(b)
  }
}

t.test(
  "the agent's data that is replaced by a link or a file is EACCES, and nothing of its target is bound",
  async t => {
    renameSync(data, join(place.home, "moved"))
    for (const target of [outside, "/", "session", "../../../..", "/nowhere"]) {
      symlinkSync(target, data)
      const { error, stdout } = await place.inside(reach("/workspace"))
      t.equal(error?.code, "EACCES", target)
      t.match(error?.message, /data of agent probe is a link/)
      t.equal(stdout, undefined)
      unlinkSync(data)
    }
    writeFileSync(data, "")
    t.equal((await place.inside(reach("/workspace"))).error?.code, "ENOTDIR", "a file")
    unlinkSync(data)
    t.equal((await place.inside(reach("/workspace"))).error?.code, "ENOENT", "nothing")
    renameSync(join(place.home, "moved"), data)
    t.notOk(existsSync(join(outside, "marker")))
    t.equal((await place.inside(reach("/workspace"))).stdout, "ran\n", "and with the directory back it runs")
  },
)

t.test("a home or history that is a link in the view is EACCES", async t => {
  for (const dir of [place.home, join(place.home, "session")]) {
    renameSync(dir, `${dir}-moved`)
    symlinkSync(outside, dir)
    t.equal((await place.inside(reach("/home/agent"))).error?.code, "EACCES", dir)
    unlinkSync(dir)
    renameSync(`${dir}-moved`, dir)
  }
  t.notOk(existsSync(join(outside, "marker")))
})

t.test("a directory and a link that change places during launches never show the link's target", async t => {
  const parent = place.ownDir("parent")
  const a = join(parent, "a")
  const b = join(parent, "b")
  const cases: [string, string, object, () => string][] = [
    ["data", "/workspace", {}, () => data],
    ["workspace", "/workspace", { workspaceDir: a }, () => a],
    ["mount line", "/x", {}, () => a],
  ]
  for (const [name, target, order, find] of cases) {
    const dir = find()
    const link = dir === a ? b : join(place.home, "other")
    mkdirSync(dir, { recursive: true })
    place.own(dir)
    symlinkSync(outside, link)
    // A host source that a line names may be reached through a link; then what it leads to must be allowed.
    if (name === "mount line") {
      rmSync(link)
      symlinkSync(place.source, link)
      place.controls({ mount: `${a}\t/x\trw\t-\n` })
    }
    const { results } = await swapping(dir, link, () =>
      place.inside(reach(target), { ...order, times: 40, isTolerant: true }),
    )
    place.removeControl("mount")
    t.equal(results.length, 40)
    for (const { error, stdout } of results) {
      if (error === undefined) t.equal(stdout, "ran\n", name)
      else t.match(error.code, /^(EACCES|EHOSTDOWN|ENOENT)$/, `${name}: ${error.message}`)
    }
    t.ok(
      results.some(one => one.error !== undefined),
      `${name}: the swap was met`,
    )
    t.notOk(existsSync(join(outside, "marker")), name)
    t.notOk(existsSync(join(place.source, "marker")), name)
  }
})

t.test("a mount line whose source is reached through a link where the agent may write is EACCES", async t => {
  const code = place.ownDir("code")
  place.own(place.write(join(code, "lib/file"), "x"), join(code, "lib"))
  place.controls({ mount: `${code}\t/workspace\trw\t-\n${code}/lib\t/lib2\tro\t-\n` })
  t.equal((await place.inside("#!/bin/sh\ncat /lib2/file\n")).stdout, "x")
  renameSync(join(code, "lib"), join(code, "was"))
  symlinkSync(outside, join(code, "lib"))
  const { error } = await place.inside(reach("/lib2"))
  t.equal(error?.code, "EACCES")
  t.match(error?.message, /where the agent may write/)
  place.controls({ mount: `${code}\t/workspace\tro\t-\n${code}/lib\t/lib2\tro\t-\n` })
  t.match((await place.inside(reach("/lib2"))).stdout, SECRET, "where it may not, the owner's link is followed")
  place.removeControl("mount")
})

t.test(
  "security.14 (swaps and links) .git that changes places with a link is bound read-only or refuses the launch",
  async t => {
    const workspaceDir = place.ownDir("repo")
    const git = join(workspaceDir, ".git")
    place.own(place.write(join(git, "config"), "a\n"), git)
    symlinkSync(outside, join(workspaceDir, "other"))
    // Where the mount stands, its name is the directory and cannot be written.
    const probe = `#!/bin/sh
cat /workspace/.git/key /workspace/other/key 2>/dev/null
touch /workspace/.git/marker 2>/dev/null && echo wrote
grep -c ' /workspace/.git ro,' /proc/self/mountinfo
`
    const { results } = await swapping(git, join(workspaceDir, "other"), () =>
      place.inside(probe, { workspaceDir, times: 40, isTolerant: true }),
    )
    for (const { error, stdout } of results) {
      // A launch that meets the link has no mount there, and nothing that it could protect.
      if (error === undefined) t.match(stdout, /^(1|(wrote\n)?0)\n$/)
      else t.match(error.code, /^(EACCES|EHOSTDOWN)$/, error.message)
    }
    t.notOk(existsSync(join(outside, "marker")))

    renameSync(git, join(workspaceDir, "gitdir"))
    symlinkSync(outside, git)
    t.equal((await place.inside(probe, { workspaceDir })).stdout, "0\n", "a link leads to nothing outside")
    t.notOk(existsSync(join(outside, "marker")))
  },
)

t.test("a target below the workspace that is reached through a link refuses the launch", async t => {
  const workspaceDir = place.ownDir("nested")
  place.ownDir("nested/real")
  const input = place.ownDir("input")
  chmodSync(input, 0o755)
  for (const link of ["real", "/home/agent", "/oldroot/tmp", "/newroot/etc"]) {
    symlinkSync(link, join(workspaceDir, "sub"))
    place.controls({ mount: `${input}\t/workspace/sub/x\trw\t-\n` })
    t.match((await place.inside(reach("/workspace"), { workspaceDir })).error?.code, /^(EHOSTDOWN|EACCES)$/, link)
    place.controls({ mount: `${input}\t/workspace/sub\trw\t-\n` })
    t.match((await place.inside(reach("/workspace"), { workspaceDir })).error?.code, /^(EHOSTDOWN|EACCES)$/, link)
    unlinkSync(join(workspaceDir, "sub"))
  }
  place.removeControl("mount")
  t.notOk(existsSync(join(workspaceDir, "marker")), "nothing ran")
})
