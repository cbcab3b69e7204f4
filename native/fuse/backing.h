// Access to the backing tree: by directory descriptors, never through a symbolic link, never across a mount that is no volume.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace cortexfs {

// A counted descriptor; closed with its last holder.
struct FdBox {
  explicit FdBox(int fd) : fd(fd) {}
  FdBox(const FdBox&) = delete;
  FdBox& operator=(const FdBox&) = delete;
  ~FdBox();
  const int fd;
};
using Fd = std::shared_ptr<FdBox>;

// Who a backing node is. `born_ns` (birth time, 0 where the file system has none) tells a reused inode number from the old node.
struct Identity {
  uint64_t dev = 0, ino = 0;
  int64_t born_ns = 0;
};

// A time in ns. One beyond the year 2262 wraps: such values are only compared for equality.
inline int64_t total_ns(int64_t s, uint32_t ns) {
  return static_cast<int64_t>(static_cast<uint64_t>(s) * 1000000000u + ns);
}

// What statx says, with the mount it was found on.
struct Stat {
  struct statx raw;
  uint64_t dev() const { return (static_cast<uint64_t>(raw.stx_dev_major) << 32) | raw.stx_dev_minor; }
  Identity identity() const;
  int64_t mtime_ns() const { return total_ns(raw.stx_mtime.tv_sec, raw.stx_mtime.tv_nsec); }
};

bool is_same(const Identity& known, const Identity& seen);

// One statx, final component not followed. All three give 0 or an errno.
int stat_name(int dir_fd, const char* name, Stat* out);
int stat_fd(int fd, Stat* out);
// openat2 with RESOLVE_BENEATH|NO_SYMLINKS|NO_MAGICLINKS, and NO_XDEV unless `across`; O_CLOEXEC|O_NOFOLLOW always.
int open_beneath(int dir_fd, const char* path, uint64_t flags, uint32_t mode, bool across, int* fd);
// Opens what an O_PATH descriptor stands for.
int reopen(int path_fd, int flags, int* fd);

// Clears set-uid, set-gid and capabilities, as a write by an unprivileged process does. A set-gid bit without group execution
// stays for a caller in the file's group; of the caller's groups only `gid` is known here.
int kill_privileges(int fd, const struct statx& now, uint32_t gid);

// Prepares a thread of this engine: own umask of 0, and fsuid changes that keep capabilities.
void enter_thread();

// While alive, new nodes belong to the caller (fsuid, fsgid of this thread). `needs_chown` says that they do not, and
// that the maker must chown them itself.
class Caller {
 public:
  Caller(bool is_root, uint32_t uid, uint32_t gid);
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  bool needs_chown() const { return needs_chown_; }

 private:
  bool is_switched_ = false;
  bool needs_chown_ = false;
};

}  // namespace cortexfs
