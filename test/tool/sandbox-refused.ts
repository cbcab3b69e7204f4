// needs: root bwrap
import { existsSync, mkdirSync, symlinkSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { Place, parseOutcome } from "../fixture/tool/place.js"
import { OTHER, OWNER } from "../harness/product.js"
import { asUser, runProgram } from "../harness/program.js"

const place = await Place.make()
t.teardown(() => place.remove())
const marker = join(place.home, "data/marker")
const payload = "#!/bin/sh\ntouch /workspace/marker\n"

t.test(
  "security.8 (sandbox only) bubblewrap that is missing, writable for a group, or too old is EHOSTDOWN and nothing ran",
  async t => {
    const payloadPath = place.write(join(place.source, "tool/probe"), payload, 0o755)
    const old = place.write(join(place.dir, "old"), "#!/bin/sh\necho bubblewrap 0.7.0\n", 0o755)
    const open = place.write(join(place.dir, "open"), "#!/bin/sh\necho bubblewrap 0.8.0\n", 0o775)
    const faults = {
      [`mount --bind ${old} /usr/bin/bwrap`]: /older than 0\.8/,
      [`mount --bind ${open} /usr/bin/bwrap`]: /only root can write/,
      "mount -t tmpfs none /usr/bin": /bwrap is missing/,
    }
    for (const [fault, text] of Object.entries(faults)) {
      // The copies lie outside /usr/bin, which one of the faults empties.
      const [node, setpriv] = [`${place.dir}/node`, `${place.dir}/setpriv`]
      const [, ...command] = place.command({ payloadPath }, {}, node)
      const identity = `${setpriv} --reuid=${OWNER} --regid=${OWNER} --clear-groups`
      const run = `cp ${place.node} ${node}; cp /usr/bin/setpriv ${setpriv}; cp /usr/bin/env ${place.dir}/env; ${fault}; exec ${identity} ${place.dir}/env ${command.join(" ")}`
      const { error } = parseOutcome(await runProgram(["/usr/bin/unshare", "-m", "/bin/sh", "-ec", run]))
      t.equal(error?.code, "EHOSTDOWN", fault)
      t.match(error?.message, text)
    }
    t.notOk(existsSync(marker))
  },
)

t.test("security.9 without user namespaces a launch is EHOSTDOWN whatever the environment says", async t => {
  const payloadPath = place.write(join(place.source, "tool/probe"), payload, 0o755)
  // A user namespace of the test's own with every id mapped, in which the limit is 0.
  const inner = (command: string[]) =>
    `echo 0 > /proc/sys/user/max_user_namespaces && exec ${asUser(command, { uid: OWNER }).join(" ")}`
  const outer = (command: string[]) =>
    `unshare -U sleep 30 & p=$!; while [ "$(readlink /proc/$p/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do :; done
echo '0 0 4294967295' > /proc/$p/uid_map; echo '0 0 4294967295' > /proc/$p/gid_map
nsenter -U -S 0 -G 0 -t $p unshare -m /bin/sh -c '${inner(command)}'; kill $p`
  const { error } = parseOutcome(
    await runProgram([
      "/bin/sh",
      "-c",
      outer(place.command({ payloadPath }, { CTX_SANDBOX: "none", CORTEXFS_UNSAFE: "1" })),
    ]),
  )
  t.equal(error?.code, "EHOSTDOWN")
  t.match(error?.message, /user namespaces are disabled/)
  t.notOk(existsSync(marker))
})

t.test("security.11 an identity that the launcher may not give is refused", async t => {
  const attempt = async (controls: Record<string, string>, options = {}) => {
    place.controls(controls)
    const { error } = await place.inside("#!/bin/sh\n", {}, options)
    for (const name of Object.keys(controls)) if (name !== "owner") place.removeControl(name)
    place.controls({ owner: `${OWNER}\n` })
    return error?.code
  }
  t.equal(await attempt({ owner: "0\n", gid: "0\n" }, { uid: 0 }), "EPERM", "uid 0")
  t.equal(await attempt({ uid: `${OTHER}\n` }), "EINVAL", "iso=shared with another uid")
  t.equal(await attempt({ iso: "uid\n", uid: `${OTHER}\n` }), "EPERM", "iso=uid without privilege")
  t.equal(await attempt({}, { groups: [54321] }), "EPERM", "a group of the launcher that is not listed")
  t.equal(await attempt({ groups: "54321\n" }), "EPERM", "a listed group the launcher does not have")
  t.equal(await attempt({ groups: "54321\n" }, { groups: [54321] }), undefined, "the same groups")
  t.equal(await attempt({ groups: "0\n" }, { uid: 0 }), "EPERM", "gid 0 under a root launcher")
  t.equal(await attempt({ gid: "0\n" }, { uid: 0 }), "EPERM", "gid 0 as the group")
})

t.test(
  "a mount source or working directory that is missing is ENOENT, a refused one EACCES, noexec EHOSTDOWN",
  async t => {
    symlinkSync("/etc", join(place.dir, "link"))
    mkdirSync(join(place.dir, "shut"), { mode: 0o700 })
    const mounts: Record<string, string> = {
      "/nowhere\t/x\tro\t-\n": "ENOENT",
      "/run\t/x\tro\t-\n": "EACCES",
      "/var\t/x\tro\t-\n": "EACCES",
      "/\t/x\tro\t-\n": "EACCES",
      [`${place.source}\t/x\tro\t-\n`]: "EACCES",
      [`${place.dir}\t/x\tro\t-\n`]: "EACCES",
      [`${place.dir}/shut/in\t/x\tro\t-\n`]: "EACCES",
      "/usr\t/x\tro\tnoexec\n": "EHOSTDOWN",
      "/usr /x ro -\n": "EINVAL",
    }
    for (const [mount, code] of Object.entries(mounts)) {
      place.controls({ mount })
      t.equal((await place.inside(payload)).error?.code, code, mount)
    }
    place.removeControl("mount")
    t.equal((await place.inside(payload, { cwd: "/workspace/none" })).error?.code, "ENOENT")
    t.equal((await place.inside(payload, { workspaceDir: "/nowhere" })).error?.code, "ENOENT")
    t.equal((await place.inside(payload, { viewDir: join(place.dir, "noview") })).error?.code, "EHOSTDOWN")
    t.notOk(existsSync(marker))
    t.equal(await place.sh("pwd", { cwd: "/home/agent/data" }), "/home/agent/data\n")
  },
)
