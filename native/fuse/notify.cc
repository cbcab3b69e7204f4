// Invalidations. A notification takes kernel locks that a waiting client may hold, so a thread that serves nothing sends them.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

constexpr size_t NOTICES_MAX = 1024;
constexpr std::chrono::milliseconds TRIM_PAUSE{100};

bool Server::invalidate(std::string path) {
  std::lock_guard<std::mutex> guard(notify_lock_);
  if (is_notify_stopping_) return false;
  if (std::find(notices_.begin(), notices_.end(), path) != notices_.end()) return true;
  if (notices_.size() >= NOTICES_MAX) return false;  // the time to live does it
  notices_.push_back(std::move(path));
  notify_wake_.notify_one();
  return true;
}

void Server::notify_loop() {
  enter_thread();
  std::unique_lock<std::mutex> hold(notify_lock_);
  for (;;) {
    notify_wake_.wait(hold, [this] { return is_notify_stopping_ || !notices_.empty() || is_trim_wanted_; });
    if (is_notify_stopping_) return;
    if (is_trim_wanted_) {
      hold.unlock();
      trim();
      hold.lock();
      // The kernel forgets what was given up a while later: trimming again at once would give up more than is needed.
      notify_wake_.wait_for(hold, TRIM_PAUSE, [this] { return is_notify_stopping_ || !notices_.empty(); });
      is_trim_wanted_ = is_crowded();
      continue;
    }
    std::string path = std::move(notices_.front());
    notices_.pop_front();
    hold.unlock();
    notify(path);
    hold.lock();
  }
}

void Server::send_notice(int code, const void* a, size_t a_size, const void* b, size_t b_size) {
  fuse_out_header out;
  out.len = static_cast<uint32_t>(sizeof out + a_size + b_size);
  out.error = code;
  out.unique = 0;
  iovec parts[3] = {{&out, sizeof out}, {const_cast<void*>(a), a_size}, {const_cast<void*>(b), b_size}};
  sink_->send(parts, b_size != 0 ? 3 : 2);  // ENOENT: the kernel does not know it, nothing to do
}

void Server::notify_inode(uint64_t id, int64_t offset) {
  fuse_notify_inval_inode_out out;
  out.ino = id;
  out.off = offset;  // -1: attributes only
  out.len = 0;
  send_notice(FUSE_NOTIFY_INVAL_INODE, &out, sizeof out, nullptr, 0);
}

void Server::notify(const std::string& path) {
  TreeRef tree = this->tree();
  if (path.empty()) {
    notify_inode(ROOT_NODE, -1);
    return;
  }
  // Walk to the parent by what the table knows; a parent the kernel does not know has no cached child either.
  size_t slash = path.rfind('/');
  std::string_view whole(path);
  std::string_view dir_path = slash == std::string::npos ? std::string_view() : whole.substr(0, slash);
  std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
  if (name.empty() || name.size() > NAME_MAX_BYTES) return;
  NodeRef dir = nodes_.get(ROOT_NODE);
  const Entry* at = tree->find("");
  Call none;
  none.verdicts.is_refreshed = none.verdicts.is_missed = none.verdicts.is_asked = true;
  Child child;
  size_t from = 0;
  while (dir && from < dir_path.size()) {
    size_t end = dir_path.find('/', from);
    if (end == std::string_view::npos) end = dir_path.size();
    std::string_view step = dir_path.substr(from, end - from);
    from = end + 1;
    if (check_name(step) != 0) return;
    const Entry* entry = at == nullptr ? nullptr : at->find_child(step);
    child = Child();
    if (find_child(none, dir.get(), step, entry, at, &child) != 0) return;
    dir = child.is_backing ? nodes_.find(child.found.identity) : nodes_.ensure_generated(*child.entry);
    at = entry;
  }
  if (!dir) return;
  const Entry* entry = at == nullptr ? nullptr : at->find_child(name);
  child = Child();
  if (find_child(none, dir.get(), name, entry, at, &child) == 0) {
    NodeRef node = child.is_backing ? nodes_.find(child.found.identity) : nodes_.ensure_generated(*child.entry);
    if (node) notify_inode(node->id, 0);
  }
  fuse_notify_inval_entry_out out;
  out.parent = dir->id;
  out.namelen = static_cast<uint32_t>(name.size());
  out.flags = has_expire_.load() ? FUSE_EXPIRE_ONLY : 0;  // expiry leaves what is mounted on the name alone
  send_notice(FUSE_NOTIFY_INVAL_ENTRY, &out, sizeof out, name.c_str(), name.size() + 1);
  notify_inode(dir->id, -1);
}

}  // namespace cortexfs
