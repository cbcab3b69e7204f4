// The generated tree: an immutable snapshot, swapped whole.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fuse/zone.h"

namespace cortexfs {

using Body = std::shared_ptr<const std::string>;

enum class EntryType : uint8_t { Dir, File, Link, Live, Backing };

struct Entry {
  EntryType type = EntryType::Dir;
  std::string path;
  std::string kind, target, rel, backing_path;
  uint32_t mode = UNSET, uid = UNSET, gid = UNSET;  // UNSET only in a backing entry: the backing value
  int64_t mtime_ns = 0;
  uint64_t size = 0;
  uint32_t entry_ttl_ms = 1000, attr_ttl_ms = 1000;
  bool has_ttl = false;
  bool is_fixed = false, ask_miss = false, keep = false;
  Body body;
  int volume = -1, zone = HIDDEN;
  const Entry* parent = nullptr;
  std::vector<const Entry*> children;                              // in listing order
  std::unordered_map<std::string_view, const Entry*> by_name;

  std::string_view name() const;
  const Entry* find_child(std::string_view name) const;
};

class Tree {
 public:
  Tree() = default;
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  // Takes over an entry. False when its parent is missing or not a directory of ours, or its path is there already.
  bool add(Entry entry);
  const Entry* find(std::string_view path) const;
  // Uses the very body object of `old` where the bytes are equal, so that an unchanged file keeps its page cache.
  void share_bodies(const Tree& old);

 private:
  std::deque<Entry> entries_;  // stable addresses
  std::unordered_map<std::string_view, Entry*> by_path_;
};

using TreeRef = std::shared_ptr<const Tree>;

}  // namespace cortexfs
