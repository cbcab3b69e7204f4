// needs: root bwrap
import { execFileSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { Place } from "../fixture/tool/place.js"

const place = await Place.make()
t.teardown(() => place.remove())

const C = `
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
  DIR *d = opendir("/proc/self/fd");
  struct dirent *e;
  while ((e = readdir(d))) if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d)) printf("%s ", e->d_name);
  FILE *m = fopen("/proc/self/mountinfo", "r");
  char line[4096];
  char exe[4096] = {0};
  if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) return 1;
  if (strcmp(exe, argv[0])) printf("| %s ", exe);
  printf("| %s |", argv[0]);
  for (int i = 1; i < argc; i++) printf(" %s", argv[i]);
  printf("\\n");
  while (fgets(line, sizeof line, m)) fputs(line, stdout);
  return 0;
}
`

t.test(
  "security.37 scripts and programs run with descriptors 0 to 2 alone and see no path of the durable tree",
  async t => {
    const source = place.write(join(place.dir, "payload.c"), C)
    execFileSync("gcc", ["-o", join(place.dir, "payload"), source])
    // Each program names what a child of it inherits; the child's own descriptor of the directory is one more, 3.
    const show = "ls /proc/self/fd | tr '\\n' ' '"
    const payloads: Record<string, string | Buffer> = {
      sh: `#!/bin/sh\necho "$(${show})" "| $0 | $@"\ncat /proc/self/mountinfo\n`,
      python: `#!/usr/bin/python3\nimport subprocess, sys\nprint(subprocess.check_output("${show.replace("\\", "\\\\")}", shell=True, close_fds=False).decode(), "|", sys.argv[0], "|", *sys.argv[1:])\nprint(open("/proc/self/mountinfo").read())\n`,
      node: `#!/usr/bin/env ${process.execPath}
const { execSync } = require("node:child_process")
console.log(execSync(${JSON.stringify(show)}).toString(), "|", __filename, "|", process.argv.slice(2).join(" "))
console.log(require("node:fs").readFileSync("/proc/self/mountinfo", "utf8"))
`,
      elf: readFileSync(join(place.dir, "payload")),
    }
    for (const payload of [
      { kind: "tool", tool: "probe", mode: "cli" },
      { kind: "step", step: 0, steps: 1 },
    ]) {
      for (const [name, program] of Object.entries(payloads)) {
        const { stdout, stderr, error } = await place.inside(program, { args: ["one", "two"], payload })
        t.equal(error, undefined, name)
        const [first, ...mounts] = stdout.split("\n")
        const [fds, path, args] = first!.split("|").map(part => part.trim())
        t.equal(fds, name === "elf" ? "0 1 2" : "0 1 2 3", `${name}: ${stderr}`)
        t.equal(path, "/run/cortexfs/payload")
        t.equal(args, "one two")
        const seen = mounts.map(line => line.split(" ")[4]!).filter(target => target?.includes(place.dir))
        t.strictSame(seen, [], "no mount point of the durable tree")
      }
    }
    const read = await place.sh(`ls ${place.source} 2>&1 | sed 's/.*: //'`)
    t.equal(read, "No such file or directory\n")
  },
)

t.test(
  "security.5 (the swapped inode only) of a payload that is swapped after the check the new inode never runs",
  async t => {
    const other = place.write(join(place.dir, "other"), "#!/bin/sh\necho new\n", 0o755)
    for (const program of ["#!/bin/sh\necho old\n", readFileSync("/usr/bin/true")]) {
      const { error, stdout } = await place.inside(program, { swap: other })
      t.equal(error?.code, "EACCES")
      t.equal(stdout, undefined)
    }
  },
)

t.test("a payload that is no program is ENOEXEC, one that may not be executed EACCES", async t => {
  t.equal((await place.inside("echo no interpreter line\n")).error?.code, "ENOEXEC")
  const payloadPath = place.write(join(place.source, "tool/shut"), "#!/bin/sh\n", 0o600)
  t.equal((await place.perform({ payloadPath })).error?.code, "EACCES")
})

t.test("the exit code and the signal of a payload are reported", async t => {
  t.strictSame((await place.inside("#!/bin/sh\nexit 7\n")).exit, { code: 7, signal: null })
  t.strictSame((await place.inside("#!/bin/sh\nkill -SEGV $$\n")).exit, { code: null, signal: "SIGSEGV" })
})
