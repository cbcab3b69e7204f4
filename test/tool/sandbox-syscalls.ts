// needs: root bwrap
import { execFileSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { join } from "node:path"
import t from "tap"
import { Place } from "../fixture/tool/place.js"

const place = await Place.make()
t.teardown(() => place.remove())

const C = `
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
static void say(const char *name, long result) { printf("%s %s\\n", name, result < 0 ? strerrorname_np(errno) : "ok"); }
int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "int80")) {
#ifdef __x86_64__
    long r; __asm__ volatile("int $0x80" : "=a"(r) : "a"(20)); printf("survived %ld\\n", r);
#endif
    return 0;
  }
  char c = 'x';
  say("unshare user", unshare(CLONE_NEWUSER));
  say("unshare net", unshare(CLONE_NEWNET));
  say("unshare time", unshare(0x80));
  say("unshare files", unshare(CLONE_FILES));
  say("clone user", syscall(SYS_clone, CLONE_NEWUSER | 17, 0, 0, 0, 0));
  say("clone3", syscall(SYS_clone3, 0, 0));
  say("mount", syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, 0));
  say("umount2", syscall(SYS_umount2, "/tmp", 0));
  say("chroot", syscall(SYS_chroot, "/tmp"));
  say("pivot_root", syscall(SYS_pivot_root, "/tmp", "/tmp"));
  say("open_tree_attr", syscall(467, -1, "", 0, 0, 0));
  say("setns", syscall(SYS_setns, 0, 0));
  say("ptrace", syscall(SYS_ptrace, 0, 0, 0, 0));
  say("process_vm_readv", syscall(SYS_process_vm_readv, getpid(), 0, 0, 0, 0, 0));
  say("pidfd_getfd", syscall(438, 0, 0, 0));
  say("keyctl", syscall(SYS_keyctl, 0, 0, 0, 0, 0));
  say("bpf", syscall(SYS_bpf, 0, 0, 0));
  say("io_uring_setup", syscall(425, 1, 0));
  say("userfaultfd", syscall(SYS_userfaultfd, 0));
  say("perf_event_open", syscall(SYS_perf_event_open, 0, 0, 0, 0, 0));
  say("name_to_handle_at", syscall(SYS_name_to_handle_at, 0, "/", 0, 0, 0));
  say("syslog", syscall(SYS_syslog, 3, &c, 1));
  say("above the table", syscall(1000));
  say("TIOCSTI", ioctl(0, TIOCSTI, &c));
  say("TIOCSTI high", ioctl(0, 0x100005412UL, &c));
  say("TIOCLINUX", ioctl(0, 0x541c, &c));
  say("FIONREAD", ioctl(0, FIONREAD, (int[1]){0}));
  say("AF_PACKET", socket(17, SOCK_RAW, 0));
  say("AF_VSOCK", socket(40, SOCK_STREAM, 0));
  say("AF_UNIX", socket(AF_UNIX, SOCK_STREAM, 0));
  say("AF_INET", socket(AF_INET, SOCK_STREAM, 0));
  say("AF_INET6", socket(AF_INET6, SOCK_STREAM, 0));
  say("AF_NETLINK", socket(AF_NETLINK, SOCK_RAW, 0));
  say("personality get", personality(0xffffffff));
  say("personality linux", personality(0));
  say("personality no random", personality(ADDR_NO_RANDOMIZE));
#ifdef __x86_64__
  say("x32", syscall(0x40000000 | 39));
#else
  puts("x32 EPERM");
#endif
  return 0;
}
`
const source = place.write(join(place.dir, "calls.c"), C)
const program = join(place.dir, "calls")
execFileSync("gcc", ["-o", program, source])

t.test(
  "security.16 refused system calls give the errno of the filter's table, ordinary ones are let through",
  async t => {
    const { stdout, stderr, error } = await place.inside(readFileSync(program), { input: "abc" })
    t.equal(error, undefined)
    const refused =
      "unshare user|unshare net|unshare time|clone user|mount|umount2|chroot|pivot_root|open_tree_attr|setns|ptrace|process_vm_readv|pidfd_getfd|keyctl|bpf|io_uring_setup|userfaultfd|perf_event_open|name_to_handle_at|syslog|TIOCSTI|TIOCSTI high|TIOCLINUX|personality no random|x32"
    const expected: Record<string, string> = Object.fromEntries(refused.split("|").map(name => [name, "EPERM"]))
    for (const name of ["clone3", "above the table"]) expected[name] = "ENOSYS"
    for (const name of ["AF_PACKET", "AF_VSOCK"]) expected[name] = "EAFNOSUPPORT"
    for (const name of [
      "unshare files",
      "FIONREAD",
      "AF_UNIX",
      "AF_INET",
      "AF_INET6",
      "AF_NETLINK",
      "personality get",
      "personality linux",
    ])
      expected[name] = "ok"
    const seen = Object.fromEntries(
      stdout
        .trim()
        .split("\n")
        .map(line => line.split(/ (?=\S+$)/)),
    )
    t.strictSame(seen, expected, stderr)
    const unshared = await place.sh("unshare -U true 2>&1; unshare -n true 2>&1")
    t.equal(unshared, "unshare: unshare failed: Operation not permitted\n".repeat(2))
  },
)

t.test("a system call of another architecture kills the process", async t => {
  if (process.arch !== "x64") return t.pass("this machine has no second table to call")
  const { stdout, exit } = await place.inside(readFileSync(program), { args: ["int80"] })
  t.strictSame(exit, { code: null, signal: "SIGSYS" })
  t.equal(stdout, "")
})
