// needs: root fuse bwrap socat strace systemd
// A fresh boot, and what `systemctl start cortexfs@coder` brings up: order, mounts, the socket, the runtime's rights.
import { readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { ROOT } from "../harness/product.js"
import { bootSystem } from "../harness/systemd.js"
import { ask, currentDir, playScripts, STORAGE, script, talk, uidOf } from "../harness/systemd-agent.js"

const VIEW = "/run/cortexfs/mount/coder"
const RUNTIME = "cortexfs-agent@coder.service"

t.test("a fresh machine", async t => {
  const system = await bootSystem({
    files: {
      "/usr/lib/systemd/system/before.service":
        "[Service]\nExecStart=/usr/bin/sleep infinity\nProtectSystem=strict\nProtectHome=yes\n",
    },
  })
  t.teardown(() => system.stop())
  const owner = await uidOf(system, "cortexfs")

  t.test(
    "units.4 systemctl start cortexfs@coder brings up all of it in order, and the socket before the view",
    async t => {
      t.same(system.mounts(), [])
      await system.manage("start", "before.service")
      await system.manage("start", "cortexfs@coder")
      // As an ordinary user, at once.
      const status = await system.text(["cat", "/ctx/status", `${VIEW}/status`], { uid: owner })
      t.match(status, /^state=mounted\n(?:.*\n)+state=mounted\nagent=coder\n/)
      t.equal(await system.state(RUNTIME), "inactive")
      t.same(await ask(system, owner, { op: "ping" }), [{ type: "pong" }])
      const generation = await currentDir(system)
      t.match(generation, /^\/var\/lib\/cortexfs\/storage\/generations\/v1-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$/)
      t.match(await system.text(["ctx", "bootstrap", "--check", `${STORAGE}/current`]), /^ok bootstrap tree_version=1 /)

      const times: Record<string, { start: number; end: number }> = {}
      for (const unit of [
        "cortexfs-storage.service",
        "cortexfs.service",
        "cortexfs@coder.service",
        "cortexfs-agent@coder.socket",
        RUNTIME,
      ]) {
        const shown = await system.show(
          unit,
          "InactiveExitTimestampMonotonic",
          "ActiveEnterTimestampMonotonic",
          "ActiveState",
          "Type",
        )
        t.equal(shown.ActiveState, "active", unit)
        if (unit.endsWith(".service"))
          t.equal(shown.Type, unit.startsWith("cortexfs-storage") ? "oneshot" : "notify", unit)
        times[unit] = {
          start: Number(shown.InactiveExitTimestampMonotonic),
          end: Number(shown.ActiveEnterTimestampMonotonic),
        }
      }
      const { "cortexfs-storage.service": storage, "cortexfs.service": host, "cortexfs@coder.service": view } = times
      const { "cortexfs-agent@coder.socket": socket, [RUNTIME]: runtime } = times
      t.ok(storage!.end <= host!.start && host!.end <= view!.start, "storage, host view, view")
      t.ok(socket!.end <= view!.start, "the socket is bound before the view")
      t.ok(view!.end <= runtime!.start, "the runtime begins with the first connection")
      const lines = (await system.journal())
        .split("\n")
        .map(line =>
          /systemd\[1\]: (Starting|Finished|Started|Listening on) (cortexfs\S*)/.exec(line)?.slice(1).join(" "),
        )
        .filter(line => line !== undefined)
      const order = [
        "Starting cortexfs-storage.service",
        "Finished cortexfs-storage.service",
        "Starting cortexfs.service",
        "Started cortexfs.service",
        "Starting cortexfs@coder.service",
        "Started cortexfs@coder.service",
        `Starting ${RUNTIME}`,
        `Started ${RUNTIME}`,
      ]
      t.same(
        lines.filter(line => order.includes(line)),
        order,
      )
      t.ok(lines.indexOf("Listening on cortexfs-agent@coder.socket") < lines.indexOf("Starting cortexfs@coder.service"))
    },
  )

  t.test("units.5 the mounts are seen by the host, by a strict unit started before, and by the runtime", async t => {
    t.same(system.mounts().sort(), ["/ctx", VIEW])
    const before = await system.mainPid("before.service")
    const runtime = await system.mainPid(RUNTIME)
    const space = (pid: number | string) => system.text(["readlink", `/proc/${pid}/ns/mnt`])
    t.not(await space(before), await space(1))
    t.not(await space(runtime), await space(1))
    for (const pid of [1, before, runtime]) {
      const table = await system.text(["findmnt", "-N", String(pid), "-n", "-r", "-t", "fuse.cortexfs", "-o", "TARGET"])
      // A writable path of a strict unit is a mount over itself, with what lies below it.
      t.same([...new Set(table.split("\n"))].sort(), ["/ctx", VIEW], `of ${pid}`)
    }
    const seen = ["nsenter", "-t", String(before), "-m", "cat", `${VIEW}/status`]
    t.match(await system.text(seen), /^agent=coder$/m)
  })

  t.test(
    "units.17 the runtime is the owner, with no capability, filtered, not to be traced, and cannot read the keys it was started with",
    async t => {
      const store = "/var/lib/cortexfs/secrets"
      await system.text(["mkdir", "-m", "0700", `${store}/provider/acme`])
      system.write(`${store}/provider/acme/default`, "key-of-acme", 0o600)
      await system.manage("stop", RUNTIME)
      t.same(await ask(system, owner, { op: "ping" }), [{ type: "pong" }])
      const pid = await system.mainPid(RUNTIME)
      const status = system.read(`/proc/${pid}/status`)
      t.match(status, new RegExp(`^Uid:\\t${owner}\\t${owner}\\t${owner}\\t${owner}$`, "m"))
      t.match(status, new RegExp(`^Gid:\\t${owner}\\t${owner}\\t${owner}\\t${owner}$`, "m"))
      t.match(status, /^Groups:\t *$/m, "as the control groups says")
      for (const set of ["CapInh", "CapPrm", "CapEff", "CapAmb"])
        t.match(status, new RegExp(`^${set}:\\t0+$`, "m"), set)
      t.match(status, /^NoNewPrivs:\t1$/m)
      t.match(status, /^Seccomp:\t2$/m)
      const credentials = (await system.text(["cat", `/proc/${pid}/environ`]))
        .split("\0")
        .find(pair => pair.startsWith("CREDENTIALS_DIRECTORY="))!
        .slice("CREDENTIALS_DIRECTORY=".length)
      const key = `${credentials}/provider_acme_default`
      const enter = ["nsenter", "-t", String(pid), "-m"]
      t.equal(await system.text([...enter, "cat", key]), "key-of-acme", "it was handed over")
      const person = [`--reuid=${owner}`, `--regid=${owner}`, "--clear-groups"]
      for (const path of [credentials, key, store, `${store}/provider/acme/default`]) {
        const ended = await system.run([...enter, "setpriv", ...person, "cat", path])
        t.not(ended.code, 0, path)
        t.match(ended.stderr, /Permission denied/)
      }
      for (const file of ["environ", "maps", "mem"]) {
        const ended = await system.run(["cat", `/proc/${pid}/${file}`], { uid: owner })
        t.match(ended.stderr, /Permission denied/, `${file} is closed to a process of the same uid`)
      }
      const traced = await system.run(["strace", "-p", String(pid)], { uid: owner, timeoutMs: 10_000 })
      t.match(traced.stderr, /attach: ptrace\(PTRACE_SEIZE, \d+\): Operation not permitted/)
    },
  )

  t.test(
    "units.25 (mounted, ready, idle; all limits) status lines and limits are those of the specification",
    async t => {
      const line = async (unit: string) => {
        const { StatusText: text } = await system.show(unit, "StatusText")
        const shown = await system.systemctl("status", "--lines=0", unit)
        t.match(shown.stdout, `     Status: "${text}"\n`)
        return text
      }
      const generation = (await currentDir(system)).split("/").pop()
      const passthrough = /^passthrough=([01])$/m.exec(system.read("/ctx/status"))![1]
      t.equal(await line("cortexfs.service"), `mounted /ctx generation=${generation} passthrough=${passthrough}`)
      t.equal(
        await line("cortexfs@coder.service"),
        `mounted ${VIEW} generation=${generation} passthrough=${passthrough}`,
      )
      await playScripts(system, "coder")
      await system.until("idle", async () => (await line(RUNTIME)) === "idle, exits in 60 s")
      const run = talk(system, owner, { op: "send", id: "s1", input: script({ sleep_ms: 2500 }, { say: "x" }) })
      await system.until("busy", async () => (await line(RUNTIME)) === "ready sessions=1 runs=1 queued=0")
      await run.end()

      const text = readFileSync(join(ROOT, "spec/units.md"), "utf8")
      const sections: [heading: string, unit: string][] = [
        ["### 2.2", "cortexfs-storage.service"],
        ["### 2.3", "cortexfs.service"],
        ["### 2.4", "cortexfs@coder.service"],
        ["### 2.6", RUNTIME],
      ]
      const bytes = (value: string) => {
        const [, number, unit] = /^([0-9]+)([MG]?)$/.exec(value)!
        return String(Number(number) * { "": 1, M: 2 ** 20, G: 2 ** 30 }[unit as "" | "M" | "G"])
      }
      for (const [heading, unit] of sections) {
        const part = text.slice(text.indexOf(heading), text.indexOf("\n##", text.indexOf(heading) + 5))
        const limits = [...part.matchAll(/^(MemoryMax|MemoryHigh|TasksMax|LimitNOFILE)=(\S+)$/gm)]
        t.ok(limits.length >= 2, unit)
        for (const [, name, value] of limits)
          t.equal((await system.show(unit, name!))[name!], bytes(value!), `${unit} ${name}`)
      }
    },
  )
})
