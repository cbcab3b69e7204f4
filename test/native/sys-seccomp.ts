import { existsSync, readFileSync } from "node:fs"
import t from "tap"
import { hasSeccomp, probeNamespaces, seccompProgram } from "../../src/native/sys.js"

const ALLOW = 0x7fff0000
const KILL_PROCESS = 0x80000000
const errno = (number: number) => 0x00050000 | number
const [EPERM, ENOSYS, EAFNOSUPPORT] = [errno(1), errno(38), errno(97)]
const AUDIT = { x64: 0xc000003e, arm64: 0xc00000b7, i386: 0x40000003 }

/** Runs a filter over one system call as the kernel does; only the instructions that the filter uses are known. */
function judge(program: Buffer, arch: number, nr: number, args: bigint[] = []): number {
  const data = Buffer.alloc(64)
  data.writeUInt32LE(nr >>> 0, 0)
  data.writeUInt32LE(arch, 4)
  for (const [i, arg] of args.entries()) data.writeBigUInt64LE(BigInt.asUintN(64, arg), 16 + 8 * i)
  let a = 0
  for (let at = 0; ; at++) {
    const code = program.readUInt16LE(at * 8)
    const [jt, jf] = [program[at * 8 + 2]!, program[at * 8 + 3]!]
    const k = program.readUInt32LE(at * 8 + 4)
    const jump = (is: boolean) => (at += is ? jt : jf)
    if (code === 0x20) a = data.readUInt32LE(k)
    else if (code === 0x06) return k
    else if (code === 0x15) jump(a === k)
    else if (code === 0x25) jump(a > k)
    else if (code === 0x35) jump(a >= k)
    else if (code === 0x45) jump((a & k) !== 0)
    else throw new Error(`instruction ${code} at ${at}`)
  }
}

/** Numbers of the calls of a machine by the headers of this host. */
function numbersOf(header: string): Map<string, number> {
  const defines = readFileSync(header, "utf8").matchAll(/^#define __NR(?:3264)?_(\w+)\s+(\d+)$/gm)
  return new Map([...defines].map(([, name, number]) => [name!, Number(number)]))
}

const REFUSED =
  "mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr setns ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd keyctl add_key request_key bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd syslog sethostname setdomainname settimeofday clock_settime clock_adjtime adjtimex iopl ioperm nfsservctl lookup_dcookie name_to_handle_at open_by_handle_at fanotify_init".split(
    " ",
  )
const CHECKED = ["unshare", "clone", "clone3", "personality", "ioctl", "socket"]

for (const [arch, headers] of [
  ["x64", ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"]],
  ["arm64", ["/usr/include/asm-generic/unistd.h"]],
] as const) {
  const audit = AUDIT[arch]
  const program = seccompProgram(arch)
  t.test(`the filter for ${arch} refuses exactly the calls of the table`, async t => {
    const header = headers.find(path => existsSync(path))
    // Another machine has no header of x64; its own and the generic one are there wherever the addon is built.
    if (header === undefined) return t.not(process.arch, arch, "the header of this machine is missing")
    const numbers = numbersOf(header)
    numbers.set("open_tree_attr", 467).set("quotactl_fd", 443)
    let known = 0
    for (const [name, nr] of numbers) {
      if (nr > 469 || CHECKED.includes(name)) continue
      const verdict = judge(program, audit, nr, [])
      t.equal(verdict, REFUSED.includes(name) ? EPERM : ALLOW, name)
      if (REFUSED.includes(name)) known++
    }
    t.ok(known >= (arch === "x64" ? REFUSED.length : REFUSED.length - 2), "every name of the table is a call")
    for (const nr of [470, 471, 1000, 0x3fffffff]) t.equal(judge(program, audit, nr), ENOSYS, String(nr))
    t.equal(judge(program, audit, 469), ALLOW)
    t.equal(judge(program, audit, numbers.get("clone3") ?? 435), ENOSYS)
    const of = (name: string) => numbers.get(name)!
    for (const flag of [0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x80]) {
      t.equal(judge(program, audit, of("unshare"), [BigInt(flag)]), EPERM)
      t.equal(judge(program, audit, of("clone"), [BigInt(flag | 0x100)]), EPERM)
    }
    t.equal(judge(program, audit, of("unshare"), [0x400n]), ALLOW)
    t.equal(judge(program, audit, of("clone"), [0x3d0f00n]), ALLOW, "a thread")
    t.equal(judge(program, audit, of("clone"), [17n]), ALLOW, "a process")
    for (const [value, verdict] of [
      [0n, ALLOW],
      [0xffffffffn, ALLOW],
      [-1n, ALLOW],
      [0x40000n, EPERM],
      [8n, EPERM],
    ] as const)
      t.equal(judge(program, audit, of("personality"), [value]), verdict)
    for (const [value, verdict] of [
      [0x5412n, EPERM],
      [0x541cn, EPERM],
      [0x1_0000_5412n, EPERM],
      [0x5413n, ALLOW],
    ] as const)
      t.equal(judge(program, audit, of("ioctl"), [0n, value]), verdict)
    for (let family = 0n; family < 64n; family++)
      t.equal(
        judge(program, audit, of("socket"), [family]),
        [1n, 2n, 10n, 16n].includes(family) ? ALLOW : EAFNOSUPPORT,
        `family ${family}`,
      )
  })

  t.test(`the filter for ${arch} kills on another architecture`, async t => {
    for (const other of Object.values(AUDIT)) if (other !== audit) t.equal(judge(program, other, 39), KILL_PROCESS)
  })
}

t.test("the x32 range answers EPERM", async t => {
  for (const nr of [0x40000000, 0x40000000 | 39, 0x40000000 | 512, 0xffffffff])
    t.equal(judge(seccompProgram("x64"), AUDIT.x64, nr), EPERM)
})

t.test("a machine without a table has no filter", async t => {
  t.throws(() => seccompProgram("riscv64"), { code: "ENOSYS", syscall: "seccomp" })
})

t.test("this kernel gives filters and every namespace", async t => {
  t.equal(hasSeccomp(), true)
  t.strictSame(probeNamespaces(12001, 12001), [])
})
