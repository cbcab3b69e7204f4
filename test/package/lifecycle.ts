// needs: root fuse bwrap socat systemd dpkg
// The Debian package on a host that runs: installation, upgrade with a migration under running agents, downgrade,
// removal, a host whose Node.js is gone, purge.
import { existsSync, readdirSync, renameSync } from "node:fs"
import { basename } from "node:path"
import t from "tap"
import { ask, currentDir, playScripts, readHistory, script, setControl, talk, uidOf } from "../harness/systemd-agent.js"
import { bootBare, dpkg, INSTALLED, mustDpkg, packageState, picture } from "./fixture/machine.js"
import { checkMade } from "./fixture/made.js"
import { buildPackage, makeNextRelease, NEXT_VERSION } from "./fixture/release.js"

const RUNTIME = "cortexfs-agent@coder.service"
const STORAGE_UNIT = "cortexfs-storage.service"
const STORE = "/var/lib/cortexfs"
const VIEW = "/run/cortexfs/mount/coder"
const UNITS = [STORAGE_UNIT, "cortexfs.service", "cortexfs@coder.service"]

t.test("a host on which the package comes and goes", async t => {
  const first = await buildPackage()
  const next = await buildPackage(await makeNextRelease())
  const system = await bootBare()
  t.teardown(() => system.stop())
  const states = async () => Promise.all([...UNITS, RUNTIME].map(unit => system.state(unit)))
  const pids = async () => Promise.all([...UNITS, RUNTIME].map(unit => system.mainPid(unit)))
  const allOff = ["inactive", "inactive", "inactive", "inactive"]
  const send = (id: string, said: string) =>
    ask(system, owner, { op: "send", id, input: script({ say: said }) }).then(frames => frames.at(-1))
  let owner = 0

  t.test("an installation makes account, directories and units, enables the set, and starts nothing", async t => {
    t.notMatch(system.read("/etc/passwd"), /^cortexfs:/m)
    t.notMatch(await mustDpkg(system, "-i", first), /cortexfs:/)
    t.equal(await packageState(system), "install ok installed 0.1.0")
    owner = await uidOf(system, "cortexfs")
    t.equal(await system.text(["stat", "-c", "%a %U", `${STORE}/secrets/provider`, "/ctx"]), "700 root\n755 root")
    t.same(await states(), allOff)
    const enabled = await system.run([
      "systemctl",
      "is-enabled",
      "cortexfs.target",
      "cortexfs.service",
      "cortexfs@coder",
    ])
    t.equal(enabled.stdout, "enabled\nenabled\ndisabled\n")
    t.equal(await system.text(["dpkg", "--verify", "cortexfs"]), "")
    t.match(await system.text(["ctx", "--version"]), /^cortexfs\/0\.1\.0 /)
    await mustDpkg(system, "-i", first)
    t.same(await states(), allOff, "nor does the same package again")
  })

  t.test("where no system manager runs it is removed and installed all the same, and stays enabled", async t => {
    // As in an image that is being made: the manager's directory is not there.
    const hide = (...command: string[]) =>
      system.text(
        ["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /run/systemd; exec "$@"', "sh", ...command],
        {
          env: { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" },
        },
      )
    await hide("dpkg", "--no-triggers", "-r", "cortexfs")
    t.match(await packageState(system), /^deinstall ok config-files /)
    t.notOk(existsSync(system.see("/ctx")))
    await hide("dpkg", "--no-triggers", "-i", `/tmp/${basename(first)}`)
    await system.manage("daemon-reload")
    t.equal(await packageState(system), "install ok installed 0.1.0")
    t.equal(await system.text(["systemctl", "is-enabled", "cortexfs.target", "cortexfs.service"]), "enabled\nenabled")
    t.equal(await system.text(["stat", "-c", "%a %U", `${STORE}/secrets/provider`, "/ctx"]), "700 root\n755 root")
    await mustDpkg(system, "-r", "cortexfs")
    await mustDpkg(system, "-i", first)
    t.same(await states(), allOff, "an idle set was removed and installed")
  })

  t.test("systemctl start cortexfs@coder brings the installed set up, and a send gets its answer", async t => {
    await system.manage("start", "cortexfs@coder")
    t.same(system.mounts().sort(), ["/ctx", VIEW])
    await playScripts(system, "coder")
    t.match(await send("p1", "one"), { type: "done", status: "ok" })
    t.same(await states(), ["active", "active", "active", "active"])
  })

  t.test(
    "an upgrade whose migration fails is told, current stays, and the previous package runs again without a roll",
    async t => {
      const current = await currentDir(system)
      const rows = readHistory(system, owner, "coder")
      await setControl(system, "worker", "env", "CTX_AGENT_STEPS=none\n")
      t.match(
        await mustDpkg(system, "-i", next),
        "cortexfs: the roll failed and nothing of CortexFS runs: see systemctl status",
      )
      t.equal(await packageState(system), `install ok installed ${NEXT_VERSION}`)
      t.match((await system.systemctl("status", "-l", STORAGE_UNIT)).stdout, /ctx: EINVAL: agent\/worker\.d\/env: none/)
      t.same(await states(), ["failed", "inactive", "inactive", "inactive"])
      t.equal(await currentDir(system), current)

      t.notMatch(await mustDpkg(system, "-i", first), /cortexfs:/)
      t.same(await states(), ["failed", "inactive", "inactive", "inactive"], "what is down stays down")
      await system.manage("start", "cortexfs@coder")
      t.equal(await currentDir(system), current)
      t.same(readdirSync(system.see(`${STORE}/storage/generations`)), [basename(current)])
      t.match(await send("p1", "one"), { type: "done", status: "ok" })
      t.same(readHistory(system, owner, "coder"), rows)
    },
  )

  t.test("an upgrade with a migration under a running run rolls, keeps history, and the next send works", async t => {
    await setControl(system, "worker", "env", "CTX_AGENT_STEPS=7\n")
    const old = await currentDir(system)
    const policy = system.read(`${old}/agent/coder.d/policy`)
    const run = talk(system, owner, { op: "send", id: "p2", input: script({ say: "a" }, { sleep_ms: 60_000 }) })
    await run.frame("start")
    const before = await pids()
    const rows = readHistory(system, owner, "coder")
    t.notMatch(await mustDpkg(system, "-i", next), /cortexfs:/)
    t.equal(await packageState(system), `install ok installed ${NEXT_VERSION}`)
    await system.until("the set is back", async () => (await states()).slice(0, 3).every(state => state === "active"))

    t.match((await run.end()).slice(-2), [
      { type: "error", code: "EINTR" },
      { type: "done", status: "error" },
    ])
    const current = await currentDir(system)
    t.match(basename(current), /^v2-/)
    t.same(readdirSync(system.see(`${STORE}/storage/generations`)), [basename(current)], "the old one is pruned")
    t.equal(system.read(`${current}/agent/coder.d/env`), "CTX_AGENT_STEPS=96\n", "the migration has run")
    t.equal(system.read(`${current}/agent/worker.d/env`), "CTX_AGENT_STEPS=7\n", "a person's value stays")
    t.equal(system.read(`${current}/agent/coder.d/policy`), policy)
    for (const path of ["/ctx", VIEW]) t.match(system.read(`${path}/status`), `version=${NEXT_VERSION}\n`)
    for (const [i, pid] of (await pids()).entries()) if (before[i]) t.not(pid, before[i], `process ${i} is a new one`)
    t.match(await system.show("cortexfs.service", "Description"), { Description: "CortexFS next host view at /ctx" })
    t.equal(await system.state("cortexfs@reviewer.service"), "inactive", "what was not active is not started")

    t.match(await send("p3", "three"), { type: "done", status: "ok" })
    const after = readHistory(system, owner, "coder")
    t.same(after.slice(0, rows.length), rows)
    const end = after.slice(rows.length)
    const at = end.findIndex(({ type }) => type === "error")
    t.match(end.slice(at, at + 2), [
      { type: "error", code: "EINTR" },
      { type: "done", status: "error" },
    ])
    t.equal((await system.run(["ctx", "agent", "session", "verify", "coder"], { uid: owner })).code, 0)
  })

  t.test("a downgrade under a running set is refused before anything is changed", async t => {
    const before = await pids()
    const { code, stderr } = await dpkg(system, "-i", first)
    t.not(code, 0)
    t.match(stderr, /^cortexfs: EPROTO: the stored tree has tree_version 2, version 0\.1\.0 knows 1: /m)
    t.equal(await packageState(system), `install ok installed ${NEXT_VERSION}`)
    t.equal(await system.text(["dpkg", "--verify", "cortexfs"]), "")
    t.same(await pids(), before)
    t.match(await send("p4", "four"), { type: "done", status: "ok" })
  })

  t.test(
    "units.24 sysusers and tmpfiles make the modes of 2.10 and nothing new the second time; a removal of the package stops all, leaves no file of it, and keeps every byte of data",
    async t => {
      await checkMade(t, system)
      await system.manage("stop", RUNTIME)
      const data = [`${STORE}/storage`, `${STORE}/home`, `${STORE}/shared`, `${STORE}/secrets`]
      system.write("/etc/cortexfs/owner", "cortexfs\n")
      const before = await picture(system, ...data, "/etc/cortexfs")
      await mustDpkg(system, "-r", "cortexfs")
      t.same(system.mounts(), [])
      t.same(system.processes("cortexfs"), [])
      t.equal((await system.text(["sh", "-c", `ls -d ${INSTALLED} /ctx /run/cortexfs 2>/dev/null || :`])).trim(), "")
      t.equal(
        (await system.text(["systemctl", "list-units", "--state=active,failed", "--no-legend", "cortexfs*"])).trim(),
        "",
      )
      t.equal(await picture(system, ...data, "/etc/cortexfs"), before)
    },
  )

  t.test(
    "an older package on a newer tree is refused by its units with EPROTO, and going forward again works",
    async t => {
      const before = await currentDir(system)
      const rows = readHistory(system, owner, "coder")
      await mustDpkg(system, "-i", first)
      t.same(await states(), allOff)
      t.not((await system.systemctl("start", "cortexfs@coder")).code, 0)
      const shown = await system.systemctl("status", "-l", STORAGE_UNIT)
      t.match(shown.stdout, /ctx\[\d+\]: ctx: EPROTO: /)
      t.same(await states(), ["failed", "inactive", "inactive", "inactive"])
      t.equal(await currentDir(system), before)

      await mustDpkg(system, "-i", next)
      t.same(await states(), ["failed", "inactive", "inactive", "inactive"], "what is down stays down")
      await system.manage("start", "cortexfs@coder")
      t.equal(await currentDir(system), before, "no roll was needed")
      t.same(readHistory(system, owner, "coder"), rows)
      t.match(await send("p4", "four"), { type: "done", status: "ok" })
      t.same(readHistory(system, owner, "coder"), rows, "the answer was the stored one")
      t.match(await send("p5", "five"), { type: "done", status: "ok" })
    },
  )

  t.test("without the Node.js it was built for an installation says so and leaves what runs running", async t => {
    const before = await pids()
    const node = system.see(process.execPath)
    renameSync(node, `${node}.away`)
    const said = await mustDpkg(system, "-i", next)
    t.match(said, `cortexfs: ${process.execPath} is missing: this package was built for the Node.js there: install`)
    t.match(said, "cortexfs: nothing was restarted")
    t.equal(await packageState(system), `install ok installed ${NEXT_VERSION}`)
    t.same(await pids(), before)
    t.not((await system.systemctl("restart", STORAGE_UNIT)).code, 0)
    const shown = await system.systemctl("status", "-l", STORAGE_UNIT)
    t.match(shown.stdout, new RegExp(`env: .${process.execPath}.: No such file or directory`))
    renameSync(`${node}.away`, node)
    await system.manage("start", "cortexfs@coder")
    t.match(await send("p6", "six"), { type: "done", status: "ok" })
  })

  t.test("a purge of the running set asks nothing and keeps data, settings and account", async t => {
    await system.manage("enable", "cortexfs@coder")
    await system.manage("stop", RUNTIME)
    const kept = [`${STORE}/storage`, `${STORE}/home`, `${STORE}/secrets`, "/etc/cortexfs"]
    const before = await picture(system, ...kept)
    await mustDpkg(system, "-P", "cortexfs")
    t.equal((await system.run(["dpkg-query", "-W", "cortexfs"])).code, 1)
    t.same(system.mounts(), [])
    t.same(system.processes("cortexfs"), [])
    t.equal(await picture(system, ...kept), before)
    t.match(system.read("/etc/passwd"), /^cortexfs:/m)
    t.equal(await system.text(["find", "/etc/systemd", "-name", "cortexfs*"]), "")
    t.notOk(existsSync(system.see("/usr/lib/cortexfs")))
  })
})
