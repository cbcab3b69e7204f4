// Bounds the memory of the node table: names that were long not looked up are given up before a user can exhaust it, and
// what was freed goes back to the system.
#include <malloc.h>

#include <algorithm>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

// Freed nodes after which it is worth giving memory back.
constexpr uint64_t FREED_MANY = 65536;

std::vector<NodeTable::Name> NodeTable::coldest(size_t count) {
  struct Seen {
    uint32_t looked_at, slot;
  };
  std::vector<Seen> seen;
  std::vector<Name> names;
  std::lock_guard<BriefMutex> guard(lock_);
  for (uint32_t at = ROOT_NODE + 1; at < slots_.size(); at++) {
    const Node* node = slots_[at].node;
    bool is_name = node != nullptr && node->type == S_IFREG && !node->is_generated && !node->has_tree.load() && node->parent != nullptr;
    if (is_name && node->refs == 0 && node->lookups > 0) seen.push_back({node->looked_at, at});
  }
  if (seen.size() > count) {
    auto is_colder = [](const Seen& a, const Seen& b) { return a.looked_at < b.looked_at; };
    std::nth_element(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(count), seen.end(), is_colder);
    seen.resize(count);
  }
  names.reserve(seen.size());
  for (const Seen& one : seen) {
    const Node* node = slots_[one.slot].node;
    names.push_back({node->parent->id, node->name.get()});
  }
  return names;
}

void NodeTable::shrink() {
  std::lock_guard<BriefMutex> guard(lock_);
  if (by_identity_.size() * 8 < by_identity_.bucket_count()) by_identity_.rehash(0);
}

bool Server::is_crowded() const {
  return (options_.nodes_max > 0 && nodes_.size() > options_.nodes_max) || nodes_.freed() >= FREED_MANY;
}

// From a serving thread, after names were looked up or forgotten.
void Server::want_trim() {
  if (!is_crowded()) return;
  std::lock_guard<std::mutex> guard(notify_lock_);
  if (is_trim_wanted_) return;
  is_trim_wanted_ = true;
  notify_wake_.notify_one();
}

// On the notifier's thread: the kernel drops these names, whose FORGETs then free the nodes.
void Server::trim() {
  size_t known = nodes_.size();
  if (options_.nodes_max > 0 && known > options_.nodes_max) {
    for (const NodeTable::Name& name : nodes_.coldest(known - options_.nodes_max / 10 * 9)) {
      fuse_notify_inval_entry_out out;
      memset(&out, 0, sizeof out);
      out.parent = name.parent;
      out.namelen = static_cast<uint32_t>(name.name.size());
      send_notice(FUSE_NOTIFY_INVAL_ENTRY, &out, sizeof out, name.name.c_str(), name.name.size() + 1);
    }
  }
  if (nodes_.freed() < FREED_MANY) return;
  nodes_.take_freed();
  nodes_.shrink();
  malloc_trim(0);
}

}  // namespace cortexfs
