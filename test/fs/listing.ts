// needs: root fuse
// A listing that the kernel gives partly from its cache and partly from the mount is still one listing.
import t from "tap"
import { runProgram } from "../harness/program.js"
import { makeFixture, OWNER } from "./fixture/stack.js"

t.setTimeout(60_000)

// One process reads in small pages. After each page the directory changes and is listed anew by others, so that the cache
// which the next page comes from is another one than before.
const SCRIPT = `
import collections, ctypes, json, os, struct, sys
libc = ctypes.CDLL(None)
os.chdir(sys.argv[1])
stable = {"stable%03d" % i for i in range(300)}
for name in stable: open(name, "w").close()
for i in range(100): open("early%d" % i, "w").close()
buffer = ctypes.create_string_buffer(1024)
def page(fd):
    size = libc.syscall(217, fd, buffer, len(buffer))
    at, names = 0, []
    while at < size:
        ino, offset, length = struct.unpack_from("QqH", buffer.raw, at)
        names.append(buffer.raw[at + 19 : at + length].split(b"\\0")[0].decode())
        at += length
    return names
for i in range(3): os.listdir(".")
seen = collections.Counter()
fd = os.open(".", os.O_RDONLY)
changes = 0
while True:
    names = page(fd)
    if not names: break
    seen.update(names)
    for i in range(5):
        if os.path.exists("early%d" % changes): os.unlink("early%d" % changes)
        open("late%d" % changes, "w").close()
        changes += 1
    for i in range(3): os.listdir(".")
print(json.dumps({"lost": sorted(stable - set(seen)), "twice": sorted(n for n in seen if seen[n] > 1), "pages": changes // 5}))
`

t.test(
  "fuse.24 (cached pages) a name is not listed twice or lost when others change and list the directory between the pages",
  async t => {
    const f = await makeFixture()
    t.teardown(() => f.stack.stop())
    const dir = f.at(`home/${OWNER}/agent/coder/data`)
    for (let i = 0; i < 3; i++) {
      const { stdout, stderr } = await runProgram(["/usr/bin/python3", "-c", SCRIPT, dir])
      const { lost, twice, pages } = JSON.parse(stdout || JSON.stringify({ stderr }))
      t.same([lost, twice], [[], []])
      t.ok(pages > 5, `${pages} pages`)
      await runProgram(["/bin/sh", "-c", `rm ${dir}/*`])
      // A listing made within the tick of a change is not kept by the kernel.
      await new Promise(resolve => setTimeout(resolve, 50))
    }
  },
)
