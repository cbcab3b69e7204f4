// The table of mounts is read as the kernel writes it.
import t from "tap"
import { findMount, parseMountinfo } from "../../src/fs/mountinfo.js"

t.test("escaped paths, propagation fields and joined options are read", async t => {
  const text =
    "42 27 0:40 / /tmp/a\\040b\\134x2b rw,nosuid,noatime shared:7 master:1 - fuse.cortexfs cortexfs rw,user_id=0\n" +
    "43 27 8:1 / / rw - ext4 /dev/sda1 rw\n" +
    "broken line\n"
  t.same(parseMountinfo(text), [
    {
      id: 42,
      major: 0,
      minor: 40,
      path: "/tmp/a b\\x2b",
      type: "fuse.cortexfs",
      source: "cortexfs",
      options: ["rw", "nosuid", "noatime", "user_id=0"],
    },
    { id: 43, major: 8, minor: 1, path: "/", type: "ext4", source: "/dev/sda1", options: ["rw"] },
  ])
})

t.test("a directory without a mount has none, and the root has one", async t => {
  t.equal(findMount("/nowhere"), undefined)
  t.ok(findMount("/"))
})
