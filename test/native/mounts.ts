// The table of mounts is read as the kernel writes it.
import t from "tap"
import { findMountAt, listMountsAt, parseMounts } from "../../src/native/mounts.js"

t.test("escaped paths, propagation fields and both kinds of options are read", async t => {
  const text =
    "42 27 0:40 / /tmp/a\\040b\\134x2b rw,nosuid,noatime shared:7 master:1 - fuse.cortexfs cortexfs rw,user_id=0\n" +
    "43 27 8:1 /data\\011x / ro - ext4 /dev/sda1 rw\n" +
    "broken line\n" +
    "44 27 8:1 / /mnt - ext4 /dev/sda1 rw\n" +
    "45 27 8:1 / /mnt rw - ext4\n"
  t.same(parseMounts(text), [
    {
      id: 42,
      device: "0:40",
      root: "/",
      path: "/tmp/a b\\x2b",
      options: ["rw", "nosuid", "noatime"],
      type: "fuse.cortexfs",
      source: "cortexfs",
      superOptions: ["rw", "user_id=0"],
    },
    {
      id: 43,
      device: "8:1",
      root: "/data\tx",
      path: "/",
      options: ["ro"],
      type: "ext4",
      source: "/dev/sda1",
      superOptions: ["rw"],
    },
  ])
})

t.test("a mount point in UTF-8 and one that is none are told apart", async t => {
  const line = (name: Buffer) => `42 27 0:40 / /mnt/${name.toString("latin1")} rw - tmpfs none rw\n`
  const [utf8, none] = parseMounts(line(Buffer.from("ä")) + line(Buffer.from([0xe4])))
  t.equal(utf8!.path, "/mnt/ä")
  t.equal(none!.path, "/mnt/\ufffd")
})

t.test("a directory without a mount has none, and the root has one", async t => {
  t.equal(findMountAt("/nowhere"), undefined)
  t.same(listMountsAt("/nowhere"), [])
  t.equal(findMountAt("/")?.path, "/")
})
