#include "fuse/table.h"

#include <cstring>

namespace cortexfs {

NodeRef& NodeRef::operator=(NodeRef&& other) noexcept {
  if (this != &other) {
    reset();
    table_ = other.table_;
    node_ = other.node_;
    other.node_ = nullptr;
  }
  return *this;
}

void NodeRef::reset() {
  if (node_ != nullptr) table_->put(node_);
  node_ = nullptr;
}

NodeTable::~NodeTable() {
  for (Slot& slot : slots_) delete slot.node;
}

Extra& NodeTable::extra_of(Node* node) {
  if (node->extra == nullptr) node->extra = std::make_unique<Extra>();
  return *node->extra;
}

Node* NodeTable::new_node(bool is_root) {
  Node* node = new Node();
  if (is_root) {
    slots_[1].node = node;
    node->id = ROOT_NODE;
    return node;
  }
  uint32_t at;
  if (!free_slots_.empty()) {
    at = free_slots_.back();
    free_slots_.pop_back();
  } else {
    at = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  }
  slots_[at].node = node;
  node->id = (static_cast<uint64_t>(slots_[at].generation) << 32) | at;
  return node;
}

NodeRef NodeTable::get(uint64_t id) {
  std::lock_guard<BriefMutex> guard(lock_);
  auto at = static_cast<uint32_t>(id);
  if (at >= slots_.size()) return {};
  Node* node = slots_[at].node;
  if (node == nullptr || node->id != id) return {};
  node->refs++;
  return {this, node};
}

NodeRef NodeTable::hold(Node* node) {
  std::lock_guard<BriefMutex> guard(lock_);
  node->refs++;
  return {this, node};
}

void NodeTable::put(Node* node) {
  std::vector<Fd> closing;  // closed after the lock is released
  std::lock_guard<BriefMutex> guard(lock_);
  node->refs--;
  put_locked(node, &closing);
}

// Frees a node nobody holds, and then its parent if that one was held only by it.
void NodeTable::put_locked(Node* node, std::vector<Fd>* closing) {
  while (node != nullptr && node->refs == 0 && node->lookups == 0 && !node->is_generated && node->id != ROOT_NODE) {
    Node* parent = node->parent;
    drop_fd(node, closing);
    if (node->is_indexed) by_identity_.erase(Key{node->identity.dev, node->identity.ino});
    auto at = static_cast<uint32_t>(node->id);
    slots_[at].node = nullptr;
    slots_[at].generation++;
    free_slots_.push_back(at);
    backing_nodes_--;
    freed_++;
    delete node;
    if (parent != nullptr) parent->refs--;
    node = parent;
  }
}

NodeRef NodeTable::ensure_generated(const Entry& entry) {
  std::lock_guard<BriefMutex> guard(lock_);
  std::string key;
  key.reserve(entry.path.size() + 1);
  key.push_back(static_cast<char>('0' + static_cast<int>(entry.type)));
  key += entry.path;
  auto found = by_path_.find(key);
  if (found != by_path_.end()) {
    found->second->refs++;
    return {this, found->second};
  }
  Node* node = new_node(entry.path.empty());
  node->identity = {0, next_generated_++, 0};
  node->is_generated = true;
  node->entry_type = entry.type;
  node->type = entry.type == EntryType::Dir ? S_IFDIR : entry.type == EntryType::Link ? S_IFLNK : S_IFREG;
  Extra& extra = extra_of(node);
  extra.tree_path = entry.path;
  extra.has_tree = true;
  node->has_tree.store(true, std::memory_order_release);
  node->refs = 1;
  by_path_.emplace(std::move(key), node);
  return {this, node};
}

void NodeTable::seed_root(const Found& found) {
  std::lock_guard<BriefMutex> guard(lock_);
  Node* node = new_node(true);
  node->identity = found.identity;
  node->type = found.type;
  node->zone.store(static_cast<int16_t>(found.zone));
  node->volume.store(static_cast<int16_t>(found.volume));
  Extra& extra = extra_of(node);
  extra.has_tree = true;
  extra.tree_volume = found.entry->volume;
  extra.tree_rel = found.entry->rel;
  node->has_tree.store(true, std::memory_order_release);
  node->is_indexed = by_identity_.emplace(Key{found.identity.dev, found.identity.ino}, node).second;
  backing_nodes_++;
}

void NodeTable::set_name(Node* node, Node* parent, std::string_view name, std::vector<Fd>* closing) {
  if (node->parent != parent) {
    if (parent != nullptr) parent->refs++;
    Node* before = node->parent;
    node->parent = parent;
    if (before != nullptr) {
      before->refs--;
      put_locked(before, closing);
    }
  }
  if (node->name == nullptr || name != std::string_view(node->name.get())) {
    node->name = std::make_unique<char[]>(name.size() + 1);
    memcpy(node->name.get(), name.data(), name.size());
  }
}

NodeRef NodeTable::ensure_backing(const Found& found) {
  std::vector<Fd> closing;
  std::lock_guard<BriefMutex> guard(lock_);
  Key key{found.identity.dev, found.identity.ino};
  auto known = by_identity_.find(key);
  Node* node = nullptr;
  if (known != by_identity_.end()) {
    node = known->second;
    if (!is_same(node->identity, found.identity) || node->type != found.type) {
      // The number was given to a new inode on the backing side: the old node lives on by its handles alone.
      node->is_indexed = false;
      node->is_unlinked = true;
      by_identity_.erase(known);
      node = nullptr;
    }
  }
  if (node == nullptr) {
    node = new_node(false);
    node->identity = found.identity;
    node->type = found.type;
    node->is_indexed = true;
    by_identity_.emplace(key, node);
    backing_nodes_++;
  }
  node->refs++;
  node->zone.store(static_cast<int16_t>(found.zone), std::memory_order_relaxed);
  node->volume.store(static_cast<int16_t>(found.volume), std::memory_order_relaxed);
  node->is_volume_root = found.is_volume_root;
  node->is_unlinked = false;
  if (node->extra != nullptr && node->extra->is_pinned) {
    node->extra->is_pinned = false;
    list_push(node);
  }
  if (node->id != ROOT_NODE) set_name(node, found.parent, found.name, &closing);
  if (found.entry != nullptr) {
    Extra& extra = extra_of(node);
    extra.tree_path = found.entry->path;
    extra.has_tree = true;
    extra.tree_volume = found.entry->volume;
    extra.tree_rel = found.entry->rel;
    node->has_tree.store(true, std::memory_order_release);
  } else if (node->extra != nullptr && node->extra->has_tree && node->id != ROOT_NODE) {
    node->extra->has_tree = false;
    node->has_tree.store(false, std::memory_order_release);
  }
  return {this, node};
}

void NodeTable::add_lookup(Node* node) {
  std::lock_guard<BriefMutex> guard(lock_);
  node->lookups++;
  node->looked_at = static_cast<uint32_t>(++lookups_ >> 10);
}

bool NodeTable::forget(uint64_t id, uint64_t count) {
  std::vector<Fd> closing;
  std::lock_guard<BriefMutex> guard(lock_);
  auto at = static_cast<uint32_t>(id);
  if (at >= slots_.size()) return false;
  Node* node = slots_[at].node;
  if (node == nullptr || node->id != id) return false;
  bool is_owed = count <= node->lookups;
  node->lookups -= is_owed ? count : node->lookups;
  put_locked(node, &closing);
  return is_owed;
}

NodeRef NodeTable::find(const Identity& identity) {
  std::lock_guard<BriefMutex> guard(lock_);
  auto found = by_identity_.find(Key{identity.dev, identity.ino});
  if (found == by_identity_.end() || !is_same(found->second->identity, identity)) return {};
  found->second->refs++;
  return {this, found->second};
}

// Deterministic, so that a number stays the same while no node holds it: foreign devices get an index, then the inode number.
uint64_t NodeTable::shown_ino(const Identity& identity) {
  if (identity.dev == main_dev_ && identity.ino < GENERATED_BASE) return identity.ino;
  std::lock_guard<BriefMutex> guard(lock_);
  uint64_t index = devices_.try_emplace(identity.dev, devices_.size()).first->second;
  if (index < (1u << 14) && identity.ino < (1ULL << 48)) return FOREIGN_BASE | (index << 48) | identity.ino;
  auto [at, is_new] = odd_inos_[identity.dev].try_emplace(identity.ino, next_odd_);
  if (is_new) next_odd_++;
  return at->second;
}

uint64_t NodeTable::shown_ino(const Node& node) {
  return node.is_generated ? node.identity.ino : shown_ino(node.identity);
}

size_t NodeTable::kept_fds() {
  std::lock_guard<BriefMutex> guard(lock_);
  return kept_fds_;
}

}  // namespace cortexfs
