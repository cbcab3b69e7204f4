#include "fuse/tree.h"

namespace cortexfs {

std::string_view Entry::name() const {
  std::string_view all(path);
  size_t slash = all.rfind('/');
  return slash == std::string_view::npos ? all : all.substr(slash + 1);
}

const Entry* Entry::find_child(std::string_view name) const {
  auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

bool Tree::add(Entry entry) {
  if (by_path_.contains(entry.path)) return false;
  Entry* parent = nullptr;
  if (!entry.path.empty()) {
    size_t slash = entry.path.rfind('/');
    auto found = by_path_.find(slash == std::string::npos ? std::string_view() : std::string_view(entry.path).substr(0, slash));
    if (found == by_path_.end()) return false;
    parent = found->second;
    if (parent->type != EntryType::Dir && parent->type != EntryType::Backing) return false;
  }
  entries_.push_back(std::move(entry));
  Entry* own = &entries_.back();
  own->parent = parent;
  by_path_.emplace(own->path, own);
  if (parent != nullptr) {
    parent->children.push_back(own);
    parent->by_name.emplace(own->name(), own);
  }
  return true;
}

const Entry* Tree::find(std::string_view path) const {
  auto found = by_path_.find(path);
  return found == by_path_.end() ? nullptr : found->second;
}

void Tree::share_bodies(const Tree& old) {
  for (Entry& entry : entries_) {
    if (entry.type != EntryType::File) continue;
    const Entry* before = old.find(entry.path);
    if (before != nullptr && before->type == EntryType::File && *before->body == *entry.body) entry.body = before->body;
  }
}

}  // namespace cortexfs
