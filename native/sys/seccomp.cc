// The seccomp filter of agent-tool-security 7.6 as a classic BPF program. The numbers are written out, so that the
// filter does not depend on how new the headers of the building host are, and both machines can be checked on either.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "sys/call.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

namespace sys {

namespace {

constexpr int NONE = -1;  // the machine has no such call

struct Call {
  const char* name;
  int x64;
  int arm64;
};

// Refused whatever their arguments are.
constexpr Call REFUSED[] = {
    // mounts, roots
    {"mount", 165, 40},
    {"umount2", 166, 39},
    {"pivot_root", 155, 41},
    {"chroot", 161, 51},
    {"move_mount", 429, 429},
    {"open_tree", 428, 428},
    {"open_tree_attr", 467, 467},
    {"fsopen", 430, 430},
    {"fsconfig", 431, 431},
    {"fsmount", 432, 432},
    {"fspick", 433, 433},
    {"mount_setattr", 442, 442},
    // namespaces
    {"setns", 308, 268},
    // other processes
    {"ptrace", 101, 117},
    {"process_vm_readv", 310, 270},
    {"process_vm_writev", 311, 271},
    {"kcmp", 312, 272},
    {"pidfd_getfd", 438, 438},
    // keys
    {"keyctl", 250, 219},
    {"add_key", 248, 217},
    {"request_key", 249, 218},
    // kernel programs, rings
    {"bpf", 321, 280},
    {"perf_event_open", 298, 241},
    {"userfaultfd", 323, 282},
    {"io_uring_setup", 425, 425},
    {"io_uring_enter", 426, 426},
    {"io_uring_register", 427, 427},
    // modules, boot
    {"init_module", 175, 105},
    {"finit_module", 313, 273},
    {"delete_module", 176, 106},
    {"kexec_load", 246, 104},
    {"kexec_file_load", 320, 294},
    {"reboot", 169, 142},
    // host state
    {"swapon", 167, 224},
    {"swapoff", 168, 225},
    {"acct", 163, 89},
    {"quotactl", 179, 60},
    {"quotactl_fd", 443, 443},
    {"syslog", 103, 116},
    {"sethostname", 170, 161},
    {"setdomainname", 171, 162},
    {"settimeofday", 164, 170},
    {"clock_settime", 227, 112},
    {"clock_adjtime", 305, 266},
    {"adjtimex", 159, 171},
    {"iopl", 172, NONE},
    {"ioperm", 173, NONE},
    {"nfsservctl", 180, 42},
    {"lookup_dcookie", 212, 18},
    // handles
    {"name_to_handle_at", 303, 264},
    {"open_by_handle_at", 304, 265},
    {"fanotify_init", 300, 262},
};

constexpr Call CLONE = {"clone", 56, 220};
constexpr Call UNSHARE = {"unshare", 272, 97};
constexpr Call CLONE3 = {"clone3", 435, 435};
constexpr Call PERSONALITY = {"personality", 135, 92};
constexpr Call IOCTL = {"ioctl", 16, 29};
constexpr Call SOCKET = {"socket", 41, 198};

// The highest number whose meaning was known when the table was made: file_setattr.
constexpr uint32_t TABLE_MAX = 469;
constexpr uint32_t X32_BIT = 0x40000000;
constexpr uint32_t NEW_NAMESPACE = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                   CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWTIME;
constexpr uint32_t IOCTL_TIOCSTI = 0x5412;
constexpr uint32_t IOCTL_TIOCLINUX = 0x541c;

constexpr uint32_t answer(int number) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(number); }

class Program {
 public:
  void load(uint32_t offset) { put(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset); }
  // Every argument that is checked is 32 bits wide in the kernel, so its low word alone decides.
  void load_argument(unsigned at) { load(static_cast<uint32_t>(offsetof(struct seccomp_data, args)) + at * 8); }
  void give(uint32_t result) { put(BPF_RET | BPF_K, 0, 0, result); }
  // Answers `result` when the comparison holds, else goes on.
  void give_when(uint16_t comparison, uint32_t value, uint32_t result) {
    put(static_cast<uint16_t>(BPF_JMP | BPF_K | comparison), 0, 1, value);
    give(result);
  }
  // Goes on when the accumulator equals `value`, else jumps over the next `length` instructions.
  void only_for(uint32_t value, uint8_t length) { put(BPF_JMP | BPF_JEQ | BPF_K, 0, length, value); }
  // Jumps over the next `length` instructions when the accumulator equals `value`.
  void skip_for(uint32_t value, uint8_t length) { put(BPF_JMP | BPF_JEQ | BPF_K, length, 0, value); }
  const std::vector<struct sock_filter>& code() const { return code_; }

 private:
  void put(uint16_t op, uint8_t if_true, uint8_t if_false, uint32_t value) {
    code_.push_back({op, if_true, if_false, value});
  }
  std::vector<struct sock_filter> code_;
};

Program make_program(bool is_x64) {
  auto number = [&](const Call& call) { return static_cast<uint32_t>(is_x64 ? call.x64 : call.arm64); };
  Program p;
  p.load(offsetof(struct seccomp_data, arch));
  p.skip_for(is_x64 ? AUDIT_ARCH_X86_64 : AUDIT_ARCH_AARCH64, 1);
  p.give(SECCOMP_RET_KILL_PROCESS);
  p.load(offsetof(struct seccomp_data, nr));
  if (is_x64) p.give_when(BPF_JGE, X32_BIT, answer(EPERM));
  p.give_when(BPF_JGT, TABLE_MAX, answer(ENOSYS));
  p.give_when(BPF_JEQ, number(CLONE3), answer(ENOSYS));
  for (const Call& call : {CLONE, UNSHARE}) {
    p.only_for(number(call), 4);
    p.load_argument(0);
    p.give_when(BPF_JSET, NEW_NAMESPACE, answer(EPERM));
    p.give(SECCOMP_RET_ALLOW);
  }
  p.only_for(number(IOCTL), 6);
  p.load_argument(1);
  p.give_when(BPF_JEQ, IOCTL_TIOCSTI, answer(EPERM));
  p.give_when(BPF_JEQ, IOCTL_TIOCLINUX, answer(EPERM));
  p.give(SECCOMP_RET_ALLOW);
  p.only_for(number(SOCKET), 10);
  p.load_argument(0);
  for (uint32_t family : {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}) p.give_when(BPF_JEQ, family, SECCOMP_RET_ALLOW);
  p.give(answer(EAFNOSUPPORT));
  p.only_for(number(PERSONALITY), 6);
  p.load_argument(0);
  p.give_when(BPF_JEQ, 0, SECCOMP_RET_ALLOW);
  p.give_when(BPF_JEQ, 0xffffffff, SECCOMP_RET_ALLOW);
  p.give(answer(EPERM));
  for (const Call& call : REFUSED)
    if ((is_x64 ? call.x64 : call.arm64) != NONE) p.give_when(BPF_JEQ, number(call), answer(EPERM));
  p.give(SECCOMP_RET_ALLOW);
  return p;
}

}  // namespace

static Napi::Value SeccompProgram(const Napi::CallbackInfo& info) {
  std::string arch;
  if (!read_text(info, 0, "seccomp", &arch)) return info.Env().Undefined();
  if (arch != "x64" && arch != "arm64") return throw_errno(info.Env(), ENOSYS, "seccomp", arch);
  Program program = make_program(arch == "x64");
  return Napi::Buffer<char>::Copy(info.Env(), reinterpret_cast<const char*>(program.code().data()),
                                  program.code().size() * sizeof(struct sock_filter));
}

static Napi::Value HasSeccomp(const Napi::CallbackInfo& info) {
  for (uint32_t action : {SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ERRNO})
    if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0) return Napi::Boolean::New(info.Env(), false);
  return Napi::Boolean::New(info.Env(), true);
}

void init_seccomp(Napi::Env env, Napi::Object exports) {
  exports.Set("seccompProgram", Napi::Function::New<SeccompProgram>(env));
  exports.Set("hasSeccomp", Napi::Function::New<HasSeccomp>(env));
}

}  // namespace sys
