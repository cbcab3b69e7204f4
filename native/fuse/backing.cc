#include "fuse/backing.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x00001000U
#endif

namespace cortexfs {

static thread_local bool keeps_capabilities = false;
static thread_local uid_t own_uid = 0;
static thread_local gid_t own_gid = 0;

FdBox::~FdBox() {
  if (fd >= 0) close(fd);
}

Identity Stat::identity() const {
  Identity id{dev(), raw.stx_ino, 0};
  if ((raw.stx_mask & STATX_BTIME) != 0) id.born_ns = total_ns(raw.stx_btime.tv_sec, raw.stx_btime.tv_nsec);
  return id;
}

bool is_same(const Identity& known, const Identity& seen) {
  if (known.dev != seen.dev || known.ino != seen.ino) return false;
  return known.born_ns == 0 || seen.born_ns == 0 || known.born_ns == seen.born_ns;
}

int stat_name(int dir_fd, const char* name, Stat* out) {
  constexpr unsigned mask = STATX_BASIC_STATS | STATX_BTIME | STATX_MNT_ID;
  return statx(dir_fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, mask, &out->raw) == 0 ? 0 : errno;
}

int stat_fd(int fd, Stat* out) {
  constexpr unsigned mask = STATX_BASIC_STATS | STATX_BTIME | STATX_MNT_ID;
  return statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, mask, &out->raw) == 0 ? 0 : errno;
}

int open_beneath(int dir_fd, const char* path, uint64_t flags, uint32_t mode, bool across, int* fd) {
  open_how how;
  memset(&how, 0, sizeof how);
  how.flags = flags | O_CLOEXEC | O_NOFOLLOW;
  how.mode = (flags & O_CREAT) != 0 ? mode & 07777 : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  if (!across) how.resolve |= RESOLVE_NO_XDEV;
  for (int tries = 0;; tries++) {
    long got = syscall(SYS_openat2, dir_fd, path[0] == 0 ? "." : path, &how, sizeof how);
    if (got >= 0) {
      *fd = static_cast<int>(got);
      return 0;
    }
    // EAGAIN: a rename elsewhere raced with RESOLVE_BENEATH; the manual page says to try again.
    if (errno == EINTR || (errno == EAGAIN && tries < 100)) continue;
    return errno;
  }
}

int reopen(int path_fd, int flags, int* fd) {
  char path[40];
  snprintf(path, sizeof path, "/proc/self/fd/%d", path_fd);
  int got;
  do {
    got = open(path, flags | O_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno;
  *fd = got;
  return 0;
}

int kill_privileges(int fd, const struct statx& now, uint32_t gid) {
  if (!S_ISREG(now.stx_mode)) return 0;
  char path[40];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (removexattr(path, "security.capability") != 0 && errno != ENODATA && errno != EOPNOTSUPP && errno != EPERM) return errno;
  uint32_t mode = now.stx_mode & 07777;
  uint32_t kept = mode & ~static_cast<uint32_t>(S_ISUID);
  if ((mode & S_IXGRP) != 0 || gid != now.stx_gid) kept &= ~static_cast<uint32_t>(S_ISGID);
  if (kept == mode) return 0;
  return chmod(path, kept) == 0 ? 0 : errno;
}

void enter_thread() {
  if (unshare(CLONE_FS) == 0) umask(0);
  own_uid = geteuid();
  own_gid = getegid();
  // With this secure bit a change of fsuid leaves the effective capabilities alone; it binds this thread only.
  keeps_capabilities = own_uid == 0 && prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) == 0;
}

Caller::Caller(bool is_root, uint32_t uid, uint32_t gid) {
  if (!is_root) return;
  if (!keeps_capabilities) {
    needs_chown_ = true;
    return;
  }
  is_switched_ = true;
  syscall(SYS_setfsgid, gid);
  syscall(SYS_setfsuid, uid);
}

Caller::~Caller() {
  if (!is_switched_) return;
  syscall(SYS_setfsuid, own_uid);
  syscall(SYS_setfsgid, own_gid);
}

}  // namespace cortexfs
