// needs: root fuse bwrap socat systemd polkit
// The owner of an agent and its units, with a real polkitd on a real system bus.
import { chownSync } from "node:fs"
import t, { type Test } from "tap"
import { bootSystem } from "../harness/systemd.js"
import { currentDir, setControl, uidOf } from "../harness/systemd-agent.js"

const RULES = "/usr/share/polkit-1/rules.d/cortexfs.rules"

t.test("a machine with a system bus and two people", async t => {
  const people = 'u ann 1201 "Ann"\nu bob 1202 "Bob"\n'
  const system = await bootSystem({ files: { "/usr/lib/sysusers.d/people.conf": people } })
  t.teardown(() => system.stop())
  const [ann, bob] = [await uidOf(system, "ann"), await uidOf(system, "bob")]
  await system.manage("start", "cortexfs.service")
  const dir = await currentDir(system)
  await system.text([
    "bash",
    "-c",
    `cd ${dir}/agent && for a in mine c++; do cp -a coder $a && cp -a coder.d $a.d; done`,
  ])
  for (const agent of ["mine", "c++"]) {
    await setControl(system, agent, "owner", `${ann}\n`)
    await setControl(system, agent, "gid", `${ann}\n`)
    await system.text(["bash", "-c", `chown -R ${ann}:${ann} ${dir}/agent/${agent} ${dir}/agent/${agent}.d`])
  }
  const as = (uid: number, ...args: string[]) =>
    system.run(["systemctl", "--no-ask-password", "--no-pager", ...args], { uid, timeoutMs: 60_000 })
  const refused = async (t: Test, uid: number, ...args: string[]) => {
    const ended = await as(uid, ...args)
    t.not(ended.code, 0, `${uid} ${args.join(" ")}`)
    t.match(ended.stderr, /authentication required|Access denied|Interactive authentication/i, args.join(" "))
  }

  t.test(
    "units.27 (without agent.create) the owner starts and stops the units of his agents, nobody another's, nobody the host view",
    async t => {
      for (const unit of ["cortexfs@mine.service", "cortexfs@c++.service"]) {
        t.match(await as(ann, "start", unit), { code: 0 }, unit)
        t.equal(await system.state(unit.replaceAll("+", "\\x2b")), "active")
      }
      const instance = "cortexfs-agent@mine"
      for (const unit of [`${instance}.service`, `${instance}.socket`]) {
        for (const verb of ["stop", "start"]) t.match(await as(ann, verb, unit), { code: 0 }, `${verb} ${unit}`)
      }
      await refused(t, bob, "stop", "cortexfs@mine.service")
      await refused(t, bob, "stop", `${instance}.socket`)
      await refused(t, ann, "start", "cortexfs@coder.service")
      await refused(t, ann, "stop", "cortexfs.service")
      await refused(t, ann, "start", "cortexfs-storage.service")
      for (const verb of ["restart", "kill", "reset-failed"]) await refused(t, ann, verb, "cortexfs@mine.service")
      await refused(t, ann, "set-property", "--runtime", "cortexfs@mine.service", "MemoryMax=infinity")
      t.equal(await system.state("cortexfs@mine.service"), "active")
      for (const unit of ["cortexfs@mine.service", "cortexfs@c++.service"])
        t.match(await as(ann, "stop", unit), { code: 0 })
      t.same(system.mounts(), ["/ctx"])
    },
  )

  t.test("units.27 (malformed owners only) an owner control that is not one uid gives nobody anything", async t => {
    for (const text of ["", "0\n", `${ann}`, `${ann}\n${bob}\n`, `0${ann}\n`, "ann\n", `${ann} \n`]) {
      await setControl(system, "coder", "owner", text)
      chownSync(system.see(`${dir}/agent/coder.d/owner`), 0, 0)
      await refused(t, ann, "start", "cortexfs@coder.service")
    }
    await system.text(["bash", "-c", `id -u cortexfs > ${dir}/agent/coder.d/owner`])
    await refused(t, ann, "start", "cortexfs@../../etc/passwd.service")
  })

  t.test("units.27 (the rule removed) the owner is refused too", async t => {
    await system.text(["mv", RULES, "/root/"])
    await system.manage("restart", "polkit.service")
    await refused(t, ann, "start", "cortexfs@mine.service")
    await system.text(["mv", "/root/cortexfs.rules", RULES])
    await system.manage("restart", "polkit.service")
    t.match(await as(ann, "start", "cortexfs@mine.service"), { code: 0 })
  })
})
