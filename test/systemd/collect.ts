// needs: root fuse bwrap socat systemd
// The collection of idle sessions as a unit of one user.
import { existsSync, readdirSync, statSync } from "node:fs"
import t from "tap"
import { bootSystem, type System } from "../harness/systemd.js"
import { uidOf } from "../harness/systemd-agent.js"

const SERVICE = "cortexfs-session-gc@ann.service"
const TIMER = "cortexfs-session-gc@ann.timer"
const DROP_INS = "/etc/systemd/system/cortexfs-session-gc@ann"

/** Makes a session of an agent as its files say it, idle for `idleS`. */
async function makeSession(system: System, home: string, agent: string, name: string, lifetime: string, idleS: number) {
  const dir = `${home}/agent/${agent}/session`
  const time = `${Math.floor(Date.now() / 1000) - idleS}\n`
  const files = { "messages.jsonl": "", "events.jsonl": "", state: "done\n", created_at: time, updated_at: time }
  for (const [file, text] of Object.entries(files)) system.write(`${dir}/${name}/${file}`, text, 0o600)
  system.write(`${dir}/${name}/meta.json`, `${JSON.stringify({ client: "ctx", scope: "private", lifetime })}\n`, 0o600)
  system.write(`${dir}/index/by-cwd/cwd-${name}`, `${name}\n`, 0o600)
}

t.test("a machine with two people", async t => {
  const people = 'u ann 1201 "Ann"\nu bob 1202 "Bob"\n'
  const system = await bootSystem({ files: { "/usr/lib/sysusers.d/people.conf": people }, isEnabled: true })
  t.teardown(() => system.stop())
  const homes = new Map<string, string>()
  for (const user of ["ann", "bob"]) {
    const uid = await uidOf(system, user)
    const home = `/var/lib/cortexfs/home/${uid}`
    homes.set(user, home)
    for (const agent of ["coder", "reviewer"]) {
      await makeSession(system, home, agent, "temp-old", "idle:1800", 1900)
      await makeSession(system, home, agent, "temp-new", "idle:1800", 60)
      await makeSession(system, home, agent, "keeper", "keep", 99_999)
      system.write(`${home}/agent/${agent}/session/index/list`, "temp-new\ntemp-old\nkeeper\n", 0o600)
    }
    await system.text(["sh", "-c", `chown -R ${uid}:${uid} ${home} && find ${home} -type d -exec chmod 700 {} +`])
  }
  const ann = await uidOf(system, "ann")
  const sessions = (user: string, agent: string) =>
    readdirSync(system.see(`${homes.get(user)}/agent/${agent}/session`)).sort()
  const all = ["index", "keeper", "temp-new", "temp-old"]
  const preview = () => system.text(["/usr/bin/ctx", "agent", "session", "gc", "--lifetime", "temp"], { uid: ann })

  await t.test("units.21 (as installed) the timer is disabled and nothing of it runs", async t => {
    for (const timer of [TIMER, "cortexfs-session-gc@bob.timer"]) {
      const { stdout } = await system.systemctl("is-enabled", timer)
      t.equal(stdout, "disabled\n", timer)
      t.equal(await system.state(timer), "inactive")
    }
    t.equal((await system.systemctl("--global", "is-enabled", "cortexfs-session-gc.timer")).stdout, "disabled\n")
    t.notMatch(await system.text(["systemctl", "list-timers", "--all", "--no-legend"]), /cortexfs/)
  })

  await t.test("units.21 (without /ctx) the service is skipped by its condition, and nothing moves", async t => {
    await system.manage("stop", "cortexfs-storage.service")
    t.same(system.mounts(), [])
    await system.manage("start", SERVICE)
    const shown = await system.show(
      SERVICE,
      "ConditionResult",
      "ActiveState",
      "Result",
      "ExecMainStartTimestampMonotonic",
    )
    t.same(shown, {
      ConditionResult: "no",
      ActiveState: "inactive",
      Result: "success",
      ExecMainStartTimestampMonotonic: "0",
    })
    t.same(sessions("ann", "coder"), all)
    await system.manage("start", "cortexfs.service")
  })

  await t.test(
    "units.21 started it archives exactly what the preview as the user lists, and nobody else's",
    async t => {
      const seen = await preview()
      t.equal(
        seen,
        ["coder", "reviewer"]
          .map(agent => `would-archive\t${agent}\ttemp-old\t/ctx/home/${ann}/archived_sessions/${agent}/temp-old`)
          .join("\n"),
      )
      await system.manage("start", SERVICE)
      const { Result, ExecMainStatus } = await system.show(SERVICE, "Result", "ExecMainStatus")
      t.same([Result, ExecMainStatus], ["success", "0"])
      const rows = await system.entries(`_SYSTEMD_UNIT=${SERVICE}`)
      const told = rows.map(row => row.MESSAGE).filter(text => /^archived\t/.test(String(text)))
      t.same(told, seen.replaceAll("would-archive", "archived").split("\n"))
      for (const agent of ["coder", "reviewer"]) {
        t.same(sessions("ann", agent), ["index", "keeper", "temp-new"], agent)
        t.same(sessions("bob", agent), all, `bob's ${agent}`)
        const archive = system.see(`${homes.get("ann")}/archived_sessions/${agent}`)
        t.same(readdirSync(archive), ["temp-old"])
        t.same([statSync(archive).mode & 0o777, statSync(archive).uid], [0o700, ann])
        t.equal(system.read(`${homes.get("ann")}/agent/${agent}/session/index/list`), "temp-new\nkeeper\n")
        t.notOk(existsSync(system.see(`${homes.get("ann")}/agent/${agent}/session/index/by-cwd/cwd-temp-old`)))
        // What was moved behind the mount is seen through it.
        await system.until("the mount shows it", async () => {
          const { stdout } = await system.run(["ls", `/ctx/home/${ann}/archived_sessions/${agent}`], { uid: ann })
          return stdout === "temp-old\n"
        })
      }
      t.equal(await preview(), "")
    },
  )

  await t.test("the timer, enabled, goes on after a pass that its condition skipped", async t => {
    system.write(
      `${DROP_INS}.timer.d/soon.conf`,
      "[Timer]\nOnBootSec=\nOnUnitInactiveSec=\nOnActiveSec=0\nOnBootSec=1\nOnUnitInactiveSec=1\nAccuracySec=10ms\n",
    )
    system.write(`${DROP_INS}.service.d/soon.conf`, "[Unit]\nStartLimitIntervalSec=0\n")
    await system.manage("daemon-reload")
    await system.manage("stop", "cortexfs-storage.service")
    await system.manage("enable", "--now", TIMER)
    await system.until(
      "a skipped pass",
      async () => (await system.show(SERVICE, "ConditionResult")).ConditionResult === "no",
    )
    await new Promise(resolve => setTimeout(resolve, 3000))
    await system.manage("start", "cortexfs.service")
    await system.text(["sh", "-c", `echo 1 > ${homes.get("ann")}/agent/coder/session/temp-new/updated_at`])
    await system.until("a pass", () => !sessions("ann", "coder").includes("temp-new"))
    t.same(sessions("ann", "coder"), ["index", "keeper"])
    await system.manage("disable", "--now", TIMER)
  })
})
