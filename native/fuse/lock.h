// Locks of clients, held on the backing files, so that they exclude holders in other views and on the backing path alike.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <time.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "fuse/backing.h"

namespace cortexfs {

// POSIX and OFD locks. A lock owner is what the kernel calls one: a descriptor table, or an open file description. All its
// locks on a node are OFD locks of one description of its own: the kernel joins and cuts their ranges, closing frees them.
class LockTable {
 public:
  // The owner's description; opened from `file` when it has none yet. `handle` is the one the request came by.
  int ensure(uint64_t node, uint64_t owner, uint64_t handle, uint32_t pid, const Fd& file, Fd* out);
  Fd find(uint64_t node, uint64_t owner);
  // True when any client may hold a lock on the node.
  bool has_any(uint64_t node);
  // FLUSH: the owner has closed a descriptor of the node.
  void drop_owner(uint64_t node, uint64_t owner);
  // RELEASE: whoever locked by this handle has closed it.
  void drop_handle(uint64_t node, uint64_t handle);
  // The process that holds a lock which a query found in the way; 0 for one of another view or of the backing path.
  uint32_t find_pid(uint64_t node, uint64_t asker, uint64_t start, uint64_t end);
  void clear();

 private:
  struct Holder {
    Fd fd;
    uint32_t pid;
    std::vector<uint64_t> handles;
  };
  std::mutex lock_;  // guards all below
  std::map<std::pair<uint64_t, uint64_t>, Holder> holders_;  // by (node, owner)
};

// Blocking waits, each in a thread of the crew. An interrupted one is signalled by a timer until it has come back, since a
// single signal could come just before the system call.
class LockWaits {
 public:
  static constexpr size_t WAITS_MAX = 64;

  // Counts a wait in. False when there are too many.
  bool add(uint64_t unique);
  // Locks, waiting as long as it takes. 0 or an errno; the wait is over then. By flock with `kind`, else by `range`.
  int wait(uint64_t unique, int fd, int kind, struct flock range);
  void remove(uint64_t unique);
  void interrupt(uint64_t unique);
  // Ends all waits, those to come too.
  void stop();

 private:
  struct Wait {
    timer_t timer;
    bool has_timer = false, is_interrupted = false;
  };
  static void wake(const Wait& wait);

  std::mutex lock_;  // guards all below
  std::map<uint64_t, Wait> waits_;
  bool is_stopped_ = false;
};

}  // namespace cortexfs
