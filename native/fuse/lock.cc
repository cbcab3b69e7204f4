#include "fuse/lock.h"

#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fuse/server.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace cortexfs {

int LockTable::ensure(uint64_t node, uint64_t owner, uint64_t handle, uint32_t pid, const Fd& file, Fd* out) {
  std::lock_guard<std::mutex> guard(lock_);
  auto at = holders_.find({node, owner});
  if (at == holders_.end()) {
    // For both kinds of lock at once; what cannot be written (a running program) takes read locks alone.
    int fd = -1;
    int error = reopen(file->fd, O_RDWR | O_NONBLOCK | O_NOCTTY, &fd);
    if (error != 0) error = reopen(file->fd, O_RDONLY | O_NONBLOCK | O_NOCTTY, &fd);
    if (error != 0) return ENOLCK;
    at = holders_.emplace(std::make_pair(node, owner), Holder{std::make_shared<FdBox>(fd), pid, {}}).first;
  }
  Holder& holder = at->second;
  if (std::find(holder.handles.begin(), holder.handles.end(), handle) == holder.handles.end()) holder.handles.push_back(handle);
  *out = holder.fd;
  return 0;
}

Fd LockTable::find(uint64_t node, uint64_t owner) {
  std::lock_guard<std::mutex> guard(lock_);
  auto at = holders_.find({node, owner});
  return at == holders_.end() ? nullptr : at->second.fd;
}

bool LockTable::has_any(uint64_t node) {
  std::lock_guard<std::mutex> guard(lock_);
  auto at = holders_.lower_bound({node, 0});
  return at != holders_.end() && at->first.first == node;
}

void LockTable::drop_owner(uint64_t node, uint64_t owner) {
  std::lock_guard<std::mutex> guard(lock_);
  holders_.erase({node, owner});
}

void LockTable::drop_handle(uint64_t node, uint64_t handle) {
  std::lock_guard<std::mutex> guard(lock_);
  auto at = holders_.lower_bound({node, 0});
  while (at != holders_.end() && at->first.first == node) {
    const std::vector<uint64_t>& handles = at->second.handles;
    at = std::find(handles.begin(), handles.end(), handle) != handles.end() ? holders_.erase(at) : std::next(at);
  }
}

// Whether the description behind a descriptor of this process holds exactly this lock.
static bool holds_lock(int fd, uint64_t start, uint64_t end) {
  char path[40], line[200];
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
  FILE* file = fopen(path, "re");
  bool is_found = false;
  while (file != nullptr && !is_found && fgets(line, sizeof line, file) != nullptr) {
    // lock: 1: OFDLCK  ADVISORY  WRITE -1 08:01:1234 0 EOF
    unsigned long long from;
    char to[24];
    if (sscanf(line, "lock: %*u: OFDLCK %*s %*s %*d %*s %llu %23s", &from, to) != 2) continue;
    is_found = from == start && (strcmp(to, "EOF") == 0 ? INT64_MAX : strtoull(to, nullptr, 10)) == end;
  }
  if (file != nullptr) fclose(file);
  return is_found;
}

uint32_t LockTable::find_pid(uint64_t node, uint64_t asker, uint64_t start, uint64_t end) {
  std::lock_guard<std::mutex> guard(lock_);
  for (auto at = holders_.lower_bound({node, 0}); at != holders_.end() && at->first.first == node; ++at) {
    if (at->first.second != asker && holds_lock(at->second.fd->fd, start, end)) return at->second.pid;
  }
  return 0;
}

void LockTable::clear() {
  std::lock_guard<std::mutex> guard(lock_);
  holders_.clear();
}

bool LockWaits::add(uint64_t unique) {
  std::lock_guard<std::mutex> guard(lock_);
  if (waits_.size() >= WAITS_MAX) return false;
  waits_[unique].is_interrupted = is_stopped_;
  return true;
}

void LockWaits::remove(uint64_t unique) {
  std::lock_guard<std::mutex> guard(lock_);
  auto at = waits_.find(unique);
  if (at == waits_.end()) return;
  if (at->second.has_timer) timer_delete(at->second.timer);
  waits_.erase(at);
}

static void wake_only(int) {}

int LockWaits::wait(uint64_t unique, int fd, int kind, struct flock range) {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = wake_only;
    sigaction(SIGURG, &action, nullptr);
  });
  sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGURG;
  event.sigev_notify_thread_id = gettid();
  {
    std::lock_guard<std::mutex> guard(lock_);
    Wait& own = waits_[unique];
    if (timer_create(CLOCK_MONOTONIC, &event, &own.timer) != 0) return ENOLCK;
    own.has_timer = true;
  }
  for (;;) {
    {
      std::lock_guard<std::mutex> guard(lock_);
      // Without a signal the kernel would hand its own restart code to the caller of an EINTR.
      if (waits_[unique].is_interrupted) return is_stopped_ ? ENOTCONN : EINTR;
    }
    int result = kind != 0 ? flock(fd, kind) : fcntl(fd, F_OFD_SETLKW, &range);
    if (result == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

void LockWaits::wake(const Wait& wait) {
  itimerspec often{{0, 2000000}, {0, 1}};
  if (wait.has_timer) timer_settime(wait.timer, 0, &often, nullptr);
}

void LockWaits::interrupt(uint64_t unique) {
  std::lock_guard<std::mutex> guard(lock_);
  auto at = waits_.find(unique);
  if (at == waits_.end()) return;
  at->second.is_interrupted = true;
  wake(at->second);
}

void LockWaits::stop() {
  std::lock_guard<std::mutex> guard(lock_);
  is_stopped_ = true;
  for (auto& [unique, wait] : waits_) {
    wait.is_interrupted = true;
    wake(wait);
  }
}

// flock's own operation for a request of flock(2); 0 for one of fcntl(2).
static int flock_kind(const fuse_lk_in& in) {
  if ((in.lk_flags & FUSE_LK_FLOCK) == 0) return 0;
  return in.lk.type == F_UNLCK ? LOCK_UN : in.lk.type == F_RDLCK ? LOCK_SH : LOCK_EX;
}

static struct flock range_of(const fuse_file_lock& lock) {
  struct flock range;
  memset(&range, 0, sizeof range);
  range.l_type = static_cast<short>(lock.type);
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(lock.start);
  range.l_len = lock.end >= INT64_MAX ? 0 : static_cast<off_t>(lock.end - lock.start + 1);
  return range;
}

// The handle a lock request is about. ENOLCK where the zone has no locks.
int Server::lock_handle(const fuse_lk_in* in, HandleRef* out) {
  bool is_type = in->lk.type == F_RDLCK || in->lk.type == F_WRLCK || in->lk.type == F_UNLCK;
  if (!is_type || in->lk.start > in->lk.end || in->lk.start > INT64_MAX) return EINVAL;
  *out = handles_.get(in->fh);
  if (*out == nullptr || (*out)->is_dir) return EBADF;
  int zone = (*out)->node->zone.load();
  return (*out)->fd != nullptr && zones_.has(zone) && zones_.at(zone).can_lock ? 0 : ENOLCK;
}

int Server::get_lock(Call& c) {
  const auto* in = c.in.take<fuse_lk_in>();
  if (in == nullptr) return MALFORMED;
  HandleRef handle;
  int error = lock_handle(in, &handle);
  if (error != 0) return error;
  uint64_t node = handle->node->id;
  Fd own = locks_.find(node, in->owner);
  struct flock range = range_of(in->lk);
  if (fcntl(own != nullptr ? own->fd : handle->fd->fd, F_OFD_GETLK, &range) != 0) return errno;
  fuse_lk_out out;
  memset(&out, 0, sizeof out);
  out.lk.type = static_cast<uint32_t>(range.l_type);
  if (range.l_type != F_UNLCK) {
    out.lk.start = static_cast<uint64_t>(range.l_start);
    out.lk.end = range.l_len == 0 ? INT64_MAX : static_cast<uint64_t>(range.l_start + range.l_len - 1);
    out.lk.pid = range.l_pid > 0 ? static_cast<uint32_t>(range.l_pid) : locks_.find_pid(node, in->owner, out.lk.start, out.lk.end);
  }
  send(c, &out, sizeof out);
  return 0;
}

int Server::set_lock(Call& c, bool can_wait) {
  const auto* in = c.in.take<fuse_lk_in>();
  if (in == nullptr) return MALFORMED;
  HandleRef handle;
  int error = lock_handle(in, &handle);
  if (error != 0) return error;
  const int kind = flock_kind(*in);
  const struct flock range = range_of(in->lk);
  Fd fd = handle->fd;  // flock belongs to the open file description, and so does the handle's descriptor
  if (kind == 0 && range.l_type == F_UNLCK) {
    fd = locks_.find(handle->node->id, in->owner);
  } else if (kind == 0) {
    error = locks_.ensure(handle->node->id, in->owner, in->fh, in->lk.pid, handle->fd, &fd);
    if (error != 0) return error;
  }
  if (fd != nullptr) {
    struct flock now = range;
    int result = kind != 0 ? flock(fd->fd, kind | LOCK_NB) : fcntl(fd->fd, F_OFD_SETLK, &now);
    error = result == 0 ? 0 : errno;
  }
  if (error == EACCES) error = EAGAIN;
  if (error == EAGAIN && can_wait) {
    uint64_t unique = c.header->unique;
    if (!waits_.add(unique)) return ENOLCK;
    if (desk_.take_early(unique)) waits_.interrupt(unique);
    auto held = std::make_shared<Held>(copy(c));
    bool is_taken = waiting_.add([this, held, handle, fd, kind, range] {
      int failed = waits_.wait(held->unique, fd->fd, kind, range);
      waits_.remove(held->unique);
      refuse(*held, failed);
    });
    if (is_taken) return MOVED;
    waits_.remove(unique);
    return ENOTCONN;
  }
  if (error != 0) return error;
  send(c, nullptr, 0);
  return 0;
}

// A descriptor was closed: the closing process loses all its POSIX locks on the file.
int Server::flush(Call& c) {
  const auto* in = c.in.take<fuse_flush_in>();
  if (in == nullptr) return MALFORMED;
  HandleRef handle = handles_.get(in->fh);
  if (handle != nullptr && handle->copy != nullptr) return publish(c, handle, false);
  locks_.drop_owner(c.header->nodeid, in->lock_owner);
  send(c, nullptr, 0);
  return 0;
}

}  // namespace cortexfs
