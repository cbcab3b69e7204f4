// needs: root fuse bwrap strace systemd
// A mount unit is active when, and only when, its mount answers.
import { rmSync } from "node:fs"
import t from "tap"
import { bootSystem } from "../harness/systemd.js"

const DROP_IN = "/etc/systemd/system/cortexfs.service.d/held.conf"
const STARTS = 100

t.test("a machine with a host view", async t => {
  const system = await bootSystem({
    files: {
      "/usr/lib/systemd/system/after.service":
        "[Unit]\nRequires=cortexfs.service\nAfter=cortexfs.service\n[Service]\nType=oneshot\nExecStart=/usr/bin/stat /ctx/status\n",
    },
  })
  t.teardown(() => system.stop())

  const finished = async () => {
    const entries = await system.entries("-u", "after.service", "_PID=1")
    return entries.filter(entry => /^Finished /.test(entry.MESSAGE!)).length
  }

  t.test(
    "units.7 units.25 (stopping) while mount(2) has not returned the unit is activating, and what is ordered after it never fails in 100 starts",
    async t => {
      const command = "/usr/bin/cortexfs-mount --source /var/lib/cortexfs/storage/current /ctx"
      const strace =
        "/usr/bin/strace -f -qq -o /dev/null -e inject=mount:delay_exit=3000000 -e inject=umount2:delay_enter=1000000"
      const held = [
        "[Service]",
        "ExecStart=",
        `ExecStart=${strace} ${command}`,
        "NotifyAccess=all",
        "SystemCallFilter=@debug",
      ]
      system.write(DROP_IN, `${held.join("\n")}\n`)
      await system.manage("daemon-reload")
      await system.manage("start", "--no-block", "after.service")
      await system.until("mount(2)", () => system.mounts().includes("/ctx"), 20_000)
      for (let i = 0; i < 10; i++) {
        t.equal(await system.state("cortexfs.service"), "activating")
        t.equal(await system.state("after.service"), "inactive")
        await new Promise(resolve => setTimeout(resolve, 150))
      }
      await system.until("the unit behind it", async () => (await finished()) === 1, 20_000)
      t.equal(await system.state("cortexfs.service"), "active")

      // The tracer passes no signal on.
      const server = system.processes("/usr/bin/cortexfs-mount").find(line => !line.includes("strace"))!
      await system.text(["kill", server.split(" ")[0]!])
      const shown = await system.until("the stop", async () => {
        const now = await system.show("cortexfs.service", "ActiveState", "StatusText")
        return now.ActiveState === "deactivating" && now
      })
      t.equal(shown.StatusText, "stopping")
      await system.until("the end", async () => (await system.state("cortexfs.service")) === "inactive", 20_000)
      rmSync(system.see(DROP_IN))
      await system.manage("daemon-reload")
      for (let i = 0; i < STARTS; i++) {
        await system.manage("stop", "cortexfs.service")
        await system.manage("reset-failed", "cortexfs.service")
        const { code, stderr } = await system.systemctl("start", "after.service")
        if (code !== 0) t.equal(code, 0, `start ${i}: ${stderr}`)
      }
      t.equal(await finished(), STARTS + 1)
    },
  )
})
