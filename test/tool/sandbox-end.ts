// needs: root bwrap
import { once } from "node:events"
import { existsSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import t from "tap"
import { findProcesses, Place, RUN } from "../fixture/tool/place.js"

const place = await Place.make()
t.teardown(() => place.remove())

/** A number that stands in command lines of this test alone. */
let marks = 900_000_000 + (process.pid % 90_000) * 1000
const nextMark = () => String(++marks)
/** A program that leaves two processes behind, one of them in a session of its own, and then does `last`. */
const leaving = (mark: string, last: string) =>
  `#!/bin/sh\n(sleep ${mark} & setsid sleep ${mark} &) </dev/null >/dev/null 2>&1\nsleep 0.1\n${last}\n`

async function waitUntil(is: () => boolean, timeoutMs: number): Promise<boolean> {
  for (const end = Date.now() + timeoutMs; Date.now() < end; await sleep(10)) if (is()) return true
  return is()
}

t.test(
  "security.24 no process of a tool is left when its call ends, at its timeout, or after SIGKILL of the runtime",
  async t => {
    const mark = nextMark()
    place.allow("leaver", "sleeper")
    place.tool("leaver", leaving(mark, "exit 0"), { cap: "" })
    const { result } = await place.call("leaver", { args: ["x"] })
    t.equal(result.status, "ok")
    t.strictSame(findProcesses(mark), [], "after the call")

    const late = nextMark()
    place.tool("sleeper", leaving(late, `sleep ${late}`), { cap: "", timeout: "1\n" })
    t.match((await place.call("sleeper", { args: ["x"] })).result.content, /^ERROR: ETIMEDOUT/)
    t.strictSame(findProcesses(late), [], "after the timeout")

    const killed = nextMark()
    const payloadPath = place.write(join(place.source, "tool/probe"), leaving(killed, `sleep ${killed}`), 0o755)
    const runtime = place.start({ payloadPath })
    t.ok(await waitUntil(() => findProcesses(killed).length >= 3, 20_000), "the tool and what it left run")
    runtime.kill("SIGKILL")
    await once(runtime, "exit")
    t.ok(await waitUntil(() => findProcesses(killed).length === 0, 5_000), "after SIGKILL of the runtime")
  },
)

t.test("a runtime killed at any moment of a launch leaves no process", async t => {
  const mark = nextMark()
  const payloadPath = place.write(join(place.source, "tool/probe"), leaving(mark, `sleep ${mark}`), 0o755)
  for (let delayMs = 0; delayMs < 60; delayMs += 4) {
    const runtime = place.start({ payloadPath, announce: true })
    await once(runtime.stdout!, "data")
    await sleep(delayMs)
    runtime.kill("SIGKILL")
    await once(runtime, "exit")
  }
  t.ok(await waitUntil(() => findProcesses(mark).length === 0, 5_000))
  t.ok(await waitUntil(() => findProcesses(place.viewDir).length === 0, 5_000), "no bubblewrap either")
})

t.test("security.25 a tool that sleeps past its timeout gets SIGTERM, and the call is ETIMEDOUT in time", async t => {
  place.allow("sleeper")
  place.tool(
    "sleeper",
    "#!/bin/sh\ntrap 'echo term; exit 0' TERM\necho begun\nwhile :; do sleep 0.05; done 2>/dev/null\n",
    {
      cap: "",
      timeout: "1\n",
    },
  )
  const { result, tookMs } = await place.call("sleeper", { args: ["x"] })
  t.strictSame(result, { status: "error", content: "ERROR: ETIMEDOUT\nbegun\nterm\n", truncated: false })
  t.ok(tookMs < 2000, `${tookMs} ms`)
  place.tool("sleeper", "#!/bin/sh\ntrap '' TERM\necho begun\nwhile :; do sleep 0.05; done\n", {
    cap: "",
    timeout: "1\n",
  })
  const deaf = await place.call("sleeper", { args: ["x"] })
  t.equal(deaf.result.content, "ERROR: ETIMEDOUT\nbegun\n")
  t.ok(deaf.tookMs >= 1250 && deaf.tookMs < 2500, `SIGKILL after 250 ms more: ${deaf.tookMs} ms`)
})

t.test("a cancelled call has no result, whether its sandbox runs or is still being built", async t => {
  const mark = nextMark()
  place.allow("sleeper")
  place.tool("sleeper", leaving(mark, `sleep ${mark}`), { cap: "" })
  for (const abortMs of [0, 5, 10, 20, 40, 400]) {
    const { error, result } = await place.call("sleeper", { args: ["x"] }, { abortMs })
    t.equal(error?.code, "ECANCELED", `after ${abortMs} ms`)
    t.equal(result, undefined)
  }
  t.strictSame(findProcesses(mark), [])
})

t.test("sandboxes at the same time do not meet, and fifty launches leave no descriptor open", async t => {
  const script =
    "#!/bin/sh\nls /tmp/mine 2>/dev/null; touch /tmp/mine; sleep 0.1; ls /tmp/mine; ls -d /proc/[0-9]* | wc -l\n"
  const { results, fds, held } = await place.inside(script, { times: 50, atOnce: 5, isJoined: true })
  t.equal(results.length, 50)
  for (const { exit, stdout } of results) {
    t.strictSame(exit, { code: 0, signal: null })
    t.match(stdout, /^\/tmp\/mine\n[1-5]\n$/)
  }
  t.equal(new Set(held.map(one => one.pid)).size, 50)
  t.ok(fds.after <= fds.before + 2, `${fds.before} descriptors before, ${fds.after} after`)
})

t.test("a launch that fails leaves no descriptor and no process", async t => {
  const failing = { cwd: "/workspace/none", times: 1 }
  const payloadPath = place.write(join(place.source, "tool/probe"), "#!/bin/sh\n", 0o755)
  const { error } = await place.perform({ payloadPath, ...failing })
  t.equal(error?.code, "ENOENT")
  t.strictSame(findProcesses(place.viewDir), [])
})

t.test("bubblewrap's pid and start time are known before the payload begins", async t => {
  const mark = nextMark()
  const payloadPath = place.write(
    join(place.source, "tool/probe"),
    `#!/bin/sh\ntouch /workspace/${mark}\nsleep ${mark}\n`,
    0o755,
  )
  const runtime = place.start({ payloadPath, announce: true })
  const [line] = await once(runtime.stdout!, "data")
  const { pid } = JSON.parse(String(line)) as { pid: number }
  t.match(readFileSync(`/proc/${pid}/cmdline`, "utf8"), /^\/usr\/bin\/bwrap\0--unshare-user\0--disable-userns\0/)
  await waitUntil(() => existsSync(join(place.home, "data", mark)), 5_000)
  await waitUntil(() => findProcesses(mark).length > 0, 5_000)
  const parents = findProcesses(mark).map(one => {
    for (let at = one; at > 1; ) {
      if (at === pid) return true
      at = Number(/^PPid:\t(\d+)/m.exec(readFileSync(`/proc/${at}/status`, "utf8"))![1])
    }
    return false
  })
  t.ok(parents.length > 0 && parents.every(Boolean), "every process of the sandbox descends from it")
  runtime.kill("SIGKILL")
  await once(runtime, "exit")
  t.ok(await waitUntil(() => findProcesses(mark).length === 0, 5_000))
})

t.test("a hundred tool calls in one process, and some of each kind, leave no descriptor open", async t => {
  const frame = (fields: object) => `echo '${JSON.stringify({ run: RUN, ...fields })}'`
  const frames = `${frame({ type: "start", object: "tool/x" })}\n${frame({ type: "done", status: "ok" })}\n`
  const calls: [string, number, string, object, string?][] = [
    ["native", 100, `#!/bin/sh\nread -r line\n${frames}`, {}],
    ["unread", 20, `#!/bin/sh\n${frames}`, {}],
    ["cli", 20, "#!/bin/sh\necho x\n", { args: ["x"] }],
    ["raw", 20, "#!/bin/sh\nexit 0\n", { stdin: "y".repeat(200_000) }, "text\nraw\n"],
  ]
  place.allow(...calls.map(([name]) => name))
  for (const [name, times, program, args, cap] of calls) {
    place.tool(name, program, { cap })
    const { fds, result } = await place.call(name, args, { times })
    t.match(result, { status: "ok" }, name)
    t.equal(fds.after, fds.before, name)
  }
})
