// The part of the node table that knows names and descriptors: paths, ways to reopen, the list of kept descriptors.
#include <cstring>

#include "fuse/table.h"
#include "fuse/zone.h"

namespace cortexfs {

void NodeTable::list_push(Node* node) {
  Extra& extra = *node->extra;
  extra.older = newest_;
  extra.newer = nullptr;
  if (newest_ != nullptr) newest_->extra->newer = node;
  newest_ = node;
  if (oldest_ == nullptr) oldest_ = node;
  kept_fds_++;
}

void NodeTable::list_remove(Node* node) {
  Extra& extra = *node->extra;
  (extra.older != nullptr ? extra.older->extra->newer : oldest_) = extra.newer;
  (extra.newer != nullptr ? extra.newer->extra->older : newest_) = extra.older;
  extra.older = extra.newer = nullptr;
  kept_fds_--;
}

void NodeTable::drop_fd(Node* node, std::vector<Fd>* closing) {
  if (node->extra == nullptr || node->extra->fd == nullptr) return;
  if (!node->extra->is_pinned) list_remove(node);
  node->extra->is_pinned = false;
  closing->push_back(std::move(node->extra->fd));
  node->extra->fd = nullptr;
}

Fd NodeTable::find_fd(Node* node) {
  std::lock_guard<BriefMutex> guard(lock_);
  if (node->extra == nullptr) return nullptr;
  Extra& extra = *node->extra;
  if (extra.fd != nullptr) {
    if (!extra.is_pinned && newest_ != node) {
      list_remove(node);
      list_push(node);
    }
    return extra.fd;
  }
  return extra.open_fds.empty() ? nullptr : extra.open_fds.back();
}

void NodeTable::keep_fd(Node* node, const Fd& fd) {
  std::vector<Fd> closing;
  std::lock_guard<BriefMutex> guard(lock_);
  Extra& extra = extra_of(node);
  if (extra.fd != nullptr) return;
  extra.fd = fd;
  extra.is_pinned = node->is_unlinked;
  if (!extra.is_pinned) list_push(node);
  while (kept_fds_ > KEPT_FDS_MAX) drop_fd(oldest_, &closing);
}

Route NodeTable::route(Node* node) {
  std::lock_guard<BriefMutex> guard(lock_);
  Route route;
  if (node->is_unlinked) return route;
  for (Node* at = node;;) {
    if (at != node && at->extra != nullptr && at->extra->fd != nullptr) {
      route.base = at->extra->fd;
      return route;
    }
    if (at != node && at->is_volume_root && !at->has_tree.load()) {
      at->refs++;
      route.base_node = NodeRef(this, at);
      return route;
    }
    if (at->has_tree.load()) {
      if (at->is_generated) return route;
      route.volume = at->extra->tree_volume;
      const std::string& rel = at->extra->tree_rel;
      if (!rel.empty()) route.rel = route.rel.empty() ? rel : rel + "/" + route.rel;
      return route;
    }
    if (at->parent == nullptr || at->name == nullptr || at->is_unlinked) return route;
    route.rel = route.rel.empty() ? std::string(at->name.get()) : std::string(at->name.get()) + "/" + route.rel;
    if (at->is_volume_root) {  // the node asked for: its own name is the one step across a mount
      at->parent->refs++;
      route.base_node = NodeRef(this, at->parent);
      route.is_across = true;
      return route;
    }
    at = at->parent;
  }
}

bool NodeTable::find_name(Node* node, NodeRef* parent, std::string* name) {
  Node* up = nullptr;
  {
    std::lock_guard<BriefMutex> guard(lock_);
    if (node->parent == nullptr || node->name == nullptr || node->is_unlinked) return false;
    up = node->parent;
    up->refs++;
    *name = node->name.get();
  }
  *parent = NodeRef(this, up);
  return true;
}

std::string NodeTable::tree_path(Node* node) {
  std::lock_guard<BriefMutex> guard(lock_);
  return node->extra == nullptr ? std::string() : node->extra->tree_path;
}

std::string NodeTable::path_locked(const Node* node) const {
  std::string path;
  for (const Node* at = node; at != nullptr; at = at->parent) {
    if (at->has_tree.load()) {
      const std::string& top = at->extra->tree_path;
      if (top.empty()) return path;
      return path.empty() ? top : top + "/" + path;
    }
    if (at->name == nullptr) return path;
    path = path.empty() ? std::string(at->name.get()) : std::string(at->name.get()) + "/" + path;
  }
  return path;
}

std::string NodeTable::path(Node* node) {
  std::lock_guard<BriefMutex> guard(lock_);
  return path_locked(node);
}

std::string NodeTable::volume_path(Node* node, int* volume) {
  std::lock_guard<BriefMutex> guard(lock_);
  std::string path;
  *volume = -1;
  for (const Node* at = node; at != nullptr; at = at->parent) {
    if (at->has_tree.load()) {
      if (at->is_generated) return path;
      *volume = at->extra->tree_volume;
      const std::string& top = at->extra->tree_rel;
      if (top.empty()) return path;
      return path.empty() ? top : top + "/" + path;
    }
    if (at->name == nullptr) return path;
    path = path.empty() ? std::string(at->name.get()) : std::string(at->name.get()) + "/" + path;
  }
  return path;
}

void NodeTable::removed(Node* node, Node* parent, std::string_view name, const Fd& fd) {
  std::vector<Fd> closing;
  std::lock_guard<BriefMutex> guard(lock_);
  // Another name may still lead to the inode; then the last known one is left alone.
  if (node->parent != parent || node->name == nullptr || name != std::string_view(node->name.get())) return;
  node->is_unlinked = true;
  Extra& extra = extra_of(node);
  if (extra.fd == nullptr) {
    extra.fd = fd != nullptr || extra.open_fds.empty() ? fd : extra.open_fds.back();
  } else if (!extra.is_pinned) {
    list_remove(node);
  }
  extra.is_pinned = extra.fd != nullptr;
}

void NodeTable::moved(Node* node, Node* parent, std::string_view name, int zone, const ZoneTable& zones) {
  std::vector<Fd> closing;
  std::lock_guard<BriefMutex> guard(lock_);
  set_name(node, parent, name, &closing);
  node->is_unlinked = false;
  int before = node->zone.exchange(static_cast<int16_t>(zone));
  if (before == zone || (node->type & S_IFMT) != S_IFDIR) return;
  // The zones of everything known below follow from the new one.
  for (Slot& slot : slots_) {
    if (slot.node == nullptr || slot.node == node || slot.node->is_generated) continue;
    std::vector<Node*> chain;
    Node* at = slot.node;
    while (at != nullptr && at != node && !at->has_tree.load() && at->name != nullptr) {
      chain.push_back(at);
      at = at->parent;
    }
    if (at != node) continue;
    int current = zone;
    for (auto step = chain.rbegin(); step != chain.rend() && current != HIDDEN; ++step) {
      current = zones.classify(current, (*step)->name.get()).zone;
    }
    slot.node->zone.store(static_cast<int16_t>(current));
  }
}

}  // namespace cortexfs
