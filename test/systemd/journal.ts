// needs: root fuse bwrap socat systemd
// What the journal holds of the services: one line for each event, with the fields of their unit, and of no content.
import t from "tap"
import { bootSystem } from "../harness/systemd.js"
import { ask, makeTool, playScripts, script, setControl, talk, uidOf } from "../harness/systemd-agent.js"

const RUNTIME = "cortexfs-agent@coder.service"
const SOCKET = "/run/cortexfs/agent/coder.sock"
const STORE = "/var/lib/cortexfs/secrets/provider"

t.test("a machine with a running view, and a word in everything that is nobody's business", async t => {
  const system = await bootSystem()
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")
  const word = (what: string) => `canary-${what}-5f1c`
  await system.manage("start", "cortexfs@coder")
  await playScripts(system, "coder", "say.much")
  await makeTool(system, "say.much", `#!/usr/bin/bash\necho ${word("output")}\necho ${word("stderr")} >&2\nexit 3\n`, [
    "coder",
  ])
  for (const control of ["system.md", "prompt.template.md"])
    await setControl(system, "coder", control, `${word(control)} {{history_messages}}\n`)
  await setControl(system, "coder", "env", `SOME=${word("env")}\n`)
  await system.text(["mkdir", "-m", "0700", `${STORE}/acme`])
  system.write(`${STORE}/acme/default`, word("secret"), 0o600)

  /** Lines of this project's programs, each as the journal has it. */
  const lines = async () =>
    (await system.entries()).filter(({ SYSLOG_IDENTIFIER: name }) => /^(cortexfs-|ctx$)/.test(name ?? ""))
  const isDone = (status: string) => [{ type: "done", status }]

  await t.test("runs, refusals, faults and ends", async t => {
    const call = { name: "say.much", arguments: { args: [word("argument")] } }
    const steps = script({ reason: word("reason") }, { call }, { say: word("answer") })
    const sent = await ask(system, owner, { op: "send", id: "j1", input: steps, title: word("title") })
    t.match(sent.slice(-1), isDone("ok"))
    t.match(JSON.stringify(sent), new RegExp(word("output")))
    // A model that fails with a text, a program that crashes, frames that are none.
    const fails = script({ error: { code: "EIO", message: word("failure") } })
    t.match((await ask(system, owner, { op: "send", id: "j2", input: fails })).slice(-1), isDone("error"))
    t.match(await ask(system, owner, `{"op":"send","id":"j3","input":"${word("frame")}"`), [{ code: "EINVAL" }])
    t.match(await ask(system, owner, { op: word("op") }), [{ type: "error" }])
    t.match(await ask(system, 65534, { op: "send", id: "j4", input: word("stranger") }), [{ code: "EACCES" }])
    const cut = talk(system, owner, {
      op: "send",
      id: "j5",
      session: "other",
      input: script({ say: word("cut") }, { sleep_ms: 60_000 }),
    })
    await cut.frame("start")
    await system.text(["kill", "-KILL", String(await system.mainPid(RUNTIME))])
    await cut.end()
    await system.until("the next runtime", async () => (await system.state(RUNTIME)) === "active")
    t.same(await ask(system, owner, { op: "ping" }, SOCKET), [{ type: "pong" }])
    await system.manage("stop", RUNTIME)
    await setControl(system, "coder", "mount", `${word("mount")}\n`)
    t.match(await ask(system, owner, { op: "send", id: "j6", input: "x" }, SOCKET), [{ code: "EINVAL" }])
    await system.manage("stop", "cortexfs@coder", "cortexfs.service")
  })

  t.test("start, stop, each created session and each refused peer have one line, and nothing else has one", async t => {
    const said = (await lines()).map(({ MESSAGE: text = "", _SYSTEMD_UNIT: unit = "" }) => ({ text, unit }))
    const count = (pattern: RegExp, unit = RUNTIME) =>
      said.filter(entry => entry.unit === unit && pattern.test(entry.text)).length
    t.equal(count(/^cortexfs-agent: agent coder ready$/), 3, "three starts")
    t.equal(count(/^cortexfs-agent: agent coder stopped$/), 2, "two stops, and a kill")
    t.equal(count(/^cortexfs-agent: session default created$/), 1)
    t.equal(count(/^cortexfs-agent: session other created$/), 1)
    t.equal(count(/^cortexfs-agent: refused peer uid=65534 pid=\d+$/), 1)
    t.equal(said.filter(entry => entry.unit === RUNTIME).length, 8, "no other line of the runtime")
    for (const [unit, at] of [
      ["cortexfs.service", "/ctx"],
      ["cortexfs@coder.service", "/run/cortexfs/mount/coder"],
    ] as const) {
      t.equal(count(new RegExp(`^cortexfs-mount: mounted ${at} generation=\\S+ passthrough=[01]$`), unit), 1)
      t.equal(count(new RegExp(`^cortexfs-mount: stopped ${at}$`), unit), 1)
      t.equal(said.filter(entry => entry.unit === unit).length, 2, unit)
    }
  })

  t.test("each line has its unit, its program and its priority, and is one", async t => {
    for (const entry of await lines()) {
      const { MESSAGE = "", PRIORITY, SYSLOG_IDENTIFIER, _SYSTEMD_UNIT, _SYSTEMD_INVOCATION_ID } = entry
      t.notMatch(MESSAGE, /^<\d>|\n/)
      t.match(_SYSTEMD_UNIT, /^cortexfs[@.-]/)
      t.match(_SYSTEMD_INVOCATION_ID, /^[0-9a-f]{32}$/)
      t.equal(PRIORITY, MESSAGE.includes("refused peer") ? "4" : "6", MESSAGE)
      if (SYSLOG_IDENTIFIER !== "ctx") t.ok(MESSAGE.startsWith(`${SYSLOG_IDENTIFIER}: `), MESSAGE)
    }
    const faults = await system.run(["/usr/bin/cortexfs-mount", "--source", "/nowhere", "/ctx"])
    t.match(faults.stderr, /^cortexfs-mount: ENOENT: /, "no priority where nobody takes it off")
  })

  t.test("no prompt, answer, argument, tool output, control or secret is in any field of the journal", async t => {
    const all = await system.text(["journalctl", "--no-pager", "-o", "json", "--all"])
    t.match(all, "agent coder ready")
    t.notMatch(all, "canary-")
  })
})
