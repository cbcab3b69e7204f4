// From names to nodes: resolution against the tree and the backing side, descriptors, attributes, times to live.
#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

TreeRef Server::tree() {
  std::lock_guard<std::mutex> guard(tree_lock_);
  return tree_;
}

// True when an access to the tree has to wait for a refresh.
bool Server::is_stale(const Call& c) const {
  if (options_.fresh_ms == 0 || c.verdicts.is_refreshed) return false;
  return now_ms() - refreshed_at_ms_.load() >= static_cast<int64_t>(options_.fresh_ms);
}

int Server::ask_refresh(Call& c) {
  Upcall upcall;
  upcall.question = Question::Refresh;
  return park(c, std::move(upcall));
}

uint32_t Server::fresh_ms() const {
  int64_t left = static_cast<int64_t>(options_.fresh_ms) - (now_ms() - refreshed_at_ms_.load());
  return left < 0 ? 0 : static_cast<uint32_t>(left);
}

uint32_t Server::tree_ttl(const Entry& entry, uint32_t ttl_ms) const {
  if (entry.is_fixed || options_.fresh_ms == 0) return ttl_ms;
  uint32_t left = fresh_ms();
  return left < ttl_ms ? left : ttl_ms;
}

const Volume* Server::volume(int id) {
  std::lock_guard<std::mutex> guard(volume_lock_);
  return id < 0 || static_cast<size_t>(id) >= volumes_.size() ? nullptr : &volumes_[static_cast<size_t>(id)];
}

// The number of the volume whose root was found below another one.
int Server::volume_below(const Stat& stat, const std::string& host_path) {
  std::lock_guard<std::mutex> guard(volume_lock_);
  auto key = std::make_tuple(stat.dev(), static_cast<uint64_t>(stat.raw.stx_ino), static_cast<uint64_t>(stat.raw.stx_mnt_id));
  auto known = below_.find(key);
  if (known != below_.end()) return known->second;
  if (volumes_.size() >= INT16_MAX) return -1;
  int id = static_cast<int>(volumes_.size());
  volumes_.push_back(Volume{nullptr, stat.dev(), stat.raw.stx_mnt_id, host_path});
  below_.emplace(key, id);
  return id;
}

// An O_PATH descriptor of a node, opened along its names and proved by its identity. ESTALE when something else stands there.
int Server::open_node(Node* node, Fd* out) {
  Route route = nodes_.route(node);
  Fd base = route.base;
  if (route.base_node) {
    int error = node_fd(route.base_node.get(), &base);
    if (error != 0) return error;
  } else if (base == nullptr) {
    const Volume* from = volume(route.volume);
    if (from == nullptr || from->root == nullptr) return ESTALE;
    base = from->root;
  }
  int fd = -1;
  int error = open_beneath(base->fd, route.rel.c_str(), O_PATH, 0, route.is_across, &fd);
  if (error != 0) return error == ENOENT || error == ENOTDIR || error == ELOOP ? ESTALE : error;
  Fd opened = std::make_shared<FdBox>(fd);
  Stat stat;
  error = stat_fd(fd, &stat);
  if (error != 0) return error;
  if (!is_same(node->identity, stat.identity())) return ESTALE;
  nodes_.keep_fd(node, opened);
  *out = std::move(opened);
  return 0;
}

int Server::node_fd(Node* node, Fd* out) {
  if (node->is_generated) return ESTALE;
  *out = nodes_.find_fd(node);
  return *out != nullptr ? 0 : open_node(node, out);
}

// One statx where the parent's descriptor is at hand.
int Server::stat_node(Node* node, Stat* out) {
  Fd fd = nodes_.find_fd(node);
  if (fd != nullptr) return stat_fd(fd->fd, out);
  NodeRef parent;
  std::string name;
  if (node->has_tree.load() || !nodes_.find_name(node, &parent, &name) || parent->is_generated) {
    int error = open_node(node, &fd);
    return error != 0 ? error : stat_fd(fd->fd, out);
  }
  Fd dir;
  int error = node_fd(parent.get(), &dir);
  if (error != 0) return error;
  error = stat_name(dir->fd, name.c_str(), out);
  if (error != 0) return error == ENOENT ? ESTALE : error;
  return is_same(node->identity, out->identity()) ? 0 : ESTALE;
}

int Server::find_backing_entry(Node* parent, const Entry& entry, Child* out) {
  const Volume* from = volume(entry.volume);
  if (from == nullptr || from->root == nullptr) return EIO;
  int error;
  if (entry.rel.empty()) {
    error = stat_fd(from->root->fd, &out->stat);
  } else if (entry.rel.find('/') == std::string::npos) {
    error = stat_name(from->root->fd, entry.rel.c_str(), &out->stat);
    if (error == 0 && out->stat.raw.stx_mnt_id != from->mount) error = EXDEV;
  } else {
    int fd = -1;
    error = open_beneath(from->root->fd, entry.rel.c_str(), O_PATH, 0, false, &fd);
    if (error == 0) {
      out->fd = std::make_shared<FdBox>(fd);
      error = stat_fd(fd, &out->stat);
    }
  }
  if (error != 0) return error == ELOOP || error == ENOTDIR ? ENOENT : error;
  if (!zones_.at(entry.zone).shows(out->stat.raw.stx_mode & S_IFMT)) return ENOENT;
  out->entry = &entry;
  out->is_backing = true;
  out->found.identity = out->stat.identity();
  out->found.type = out->stat.raw.stx_mode & S_IFMT;
  out->found.parent = parent;
  out->found.name = entry.name();
  out->found.zone = entry.zone;
  out->found.entry = &entry;
  out->found.volume = entry.volume;
  out->found.is_volume_root = zones_.at(entry.zone).is_volume;
  if (out->found.is_volume_root && !entry.rel.empty()) {
    out->found.volume = volume_below(out->stat, from->host_path + "/" + entry.rel);
    if (out->found.volume < 0) return ENOMEM;
  }
  return 0;
}

int Server::find_plain(Node* parent, std::string_view name, Child* out) {
  int parent_zone = parent->zone.load();
  if (!zones_.has(parent_zone)) return ENOENT;
  int zone = zones_.classify(parent_zone, name).zone;
  if (zone == HIDDEN) return ENOENT;
  out->found.zone = zone;
  Fd dir;
  int error = node_fd(parent, &dir);
  if (error != 0) return error;
  char text[NAME_MAX_BYTES + 1];
  memcpy(text, name.data(), name.size());
  text[name.size()] = 0;
  error = stat_name(dir->fd, text, &out->stat);
  if (error != 0) return error;
  if (!zones_.at(zone).shows(out->stat.raw.stx_mode & S_IFMT)) return ENOENT;
  out->is_object = is_object(zone, dir->fd, name, out->stat);
  const Volume* from = volume(parent->volume.load());
  out->is_backing = true;
  out->found.identity = out->stat.identity();
  out->found.type = out->stat.raw.stx_mode & S_IFMT;
  out->found.parent = parent;
  out->found.name = name;
  out->found.volume = parent->volume.load();
  if (zones_.at(zone).is_volume && out->found.type == S_IFDIR) {
    out->found.is_volume_root = true;
    out->found.volume = volume_below(out->stat, std::string());
    if (out->found.volume < 0) return ENOMEM;
  } else if (from == nullptr || out->stat.raw.stx_mnt_id != from->mount) {
    return EXDEV;
  }
  return 0;
}

// `at` is the tree's entry of the parent, if it has one, `entry` the tree's entry of the child.
int Server::find_child(Call& c, Node* parent, std::string_view name, const Entry* entry, const Entry* at, Child* out) {
  int error;
  bool asks = at != nullptr && at->ask_miss;
  if (entry != nullptr) {
    if (entry->type != EntryType::Backing) {
      out->entry = entry;
      return 0;
    }
    error = find_backing_entry(parent, *entry, out);
    asks = asks || entry->ask_miss || zones_.at(entry->zone).ask_miss;
  } else if (parent->is_generated) {
    error = at == nullptr ? ESTALE : ENOENT;
  } else if (parent->type != S_IFDIR) {
    error = ENOTDIR;
  } else {
    error = find_plain(parent, name, out);
    if (error == 0 && zones_.at(out->found.zone).only_owner && c.header != nullptr && out->stat.raw.stx_uid != c.header->uid) return ENOENT;
    if (error == 0 && out->is_object && c.header != nullptr && c.verdicts.object == nullptr) return ask_object(c, child_path(parent, name));
    asks = asks || (out->found.zone != HIDDEN && zones_.at(out->found.zone).ask_miss);
  }
  if (error == ENOENT && asks && !c.verdicts.is_missed) {
    Upcall upcall;
    upcall.question = Question::Miss;
    upcall.path = child_path(parent, name);
    return park(c, std::move(upcall));
  }
  return error;
}

NodeRef Server::node_of(Child& child, Node* parent, std::string_view name) {
  if (!child.is_backing) return nodes_.ensure_generated(*child.entry);
  NodeRef node = nodes_.ensure_backing(child.found);
  if (child.fd != nullptr) nodes_.keep_fd(node.get(), child.fd);
  return node;
}

void Server::fill_generated(Node* node, const Entry& entry, fuse_attr* attr) {
  memset(attr, 0, sizeof *attr);
  attr->ino = nodes_.shown_ino(*node);
  attr->mode = node->type | entry.mode;
  attr->nlink = 1;
  attr->uid = entry.uid;
  attr->gid = entry.gid;
  attr->size = entry.size;
  if (entry.type == EntryType::Live) {
    nodes_.with_extra(node, [&](Extra& extra) {
      if (!extra.live.empty()) attr->size = extra.live.back().second;
    });
  }
  attr->blocks = (attr->size + 511) / 512;
  attr->blksize = 4096;
  attr->atime = attr->mtime = attr->ctime = static_cast<uint64_t>(entry.mtime_ns / 1000000000);
  attr->atimensec = attr->mtimensec = attr->ctimensec = static_cast<uint32_t>(entry.mtime_ns % 1000000000);
}

void Server::fill_backing(Node* node, const Stat& stat, const Entry* entry, fuse_attr* attr) {
  memset(attr, 0, sizeof *attr);
  const struct statx& raw = stat.raw;
  attr->ino = nodes_.shown_ino(*node);
  attr->size = raw.stx_size;
  attr->blocks = raw.stx_blocks;
  attr->blksize = raw.stx_blksize;
  attr->atime = static_cast<uint64_t>(raw.stx_atime.tv_sec);
  attr->mtime = static_cast<uint64_t>(raw.stx_mtime.tv_sec);
  attr->ctime = static_cast<uint64_t>(raw.stx_ctime.tv_sec);
  attr->atimensec = raw.stx_atime.tv_nsec;
  attr->mtimensec = raw.stx_mtime.tv_nsec;
  attr->ctimensec = raw.stx_ctime.tv_nsec;
  attr->nlink = raw.stx_nlink;
  uint32_t mode = raw.stx_mode & 07777;
  attr->uid = raw.stx_uid;
  attr->gid = raw.stx_gid;
  attr->rdev = (raw.stx_rdev_major << 8) | (raw.stx_rdev_minor & 0xff) | ((raw.stx_rdev_minor & ~0xffu) << 12);
  int zone_id = node->zone.load();
  if (zones_.has(zone_id)) {
    const Zone& zone = zones_.at(zone_id);
    uint32_t projected = node->type == S_IFDIR ? zone.dir_mode : node->type == S_IFLNK ? UNSET : zone.file_mode;
    if (projected != UNSET) mode = projected;
    if (zone.uid != UNSET) attr->uid = zone.uid;
    if (zone.gid != UNSET) attr->gid = zone.gid;
  }
  if (entry != nullptr && entry->type == EntryType::Backing) {
    if (entry->mode != UNSET && node->type != S_IFLNK) mode = entry->mode;
    if (entry->uid != UNSET) attr->uid = entry->uid;
    if (entry->gid != UNSET) attr->gid = entry->gid;
  }
  attr->mode = node->type | mode;
}

void Server::fill_entry(Node* node, const Child& child, fuse_entry_out* out) {
  memset(out, 0, sizeof *out);
  out->nodeid = node->id;
  uint32_t entry_ttl, attr_ttl;
  if (child.is_backing) {
    const Zone& zone = zones_.at(child.found.zone);
    entry_ttl = zone.entry_ttl_ms;
    attr_ttl = zone.attr_ttl_ms;
    if (child.entry != nullptr) {
      if (child.entry->has_ttl) {
        entry_ttl = child.entry->entry_ttl_ms;
        attr_ttl = child.entry->attr_ttl_ms;
      }
      entry_ttl = tree_ttl(*child.entry, entry_ttl);
      attr_ttl = tree_ttl(*child.entry, attr_ttl);
    }
    fill_backing(node, child.stat, child.entry, &out->attr);
  } else {
    entry_ttl = tree_ttl(*child.entry, child.entry->entry_ttl_ms);
    attr_ttl = tree_ttl(*child.entry, child.entry->attr_ttl_ms);
    fill_generated(node, *child.entry, &out->attr);
  }
  put_ttl(entry_ttl, &out->entry_valid, &out->entry_valid_nsec);
  put_ttl(attr_ttl, &out->attr_valid, &out->attr_valid_nsec);
}

int Server::attributes(Node* node, fuse_attr_out* out) {
  memset(out, 0, sizeof *out);
  TreeRef tree;
  const Entry* entry = nullptr;
  if (node->has_tree.load()) {
    tree = this->tree();
    entry = tree->find(nodes_.tree_path(node));
  }
  uint32_t ttl;
  if (node->is_generated) {
    if (entry == nullptr || entry->type != node->entry_type) return ESTALE;
    ttl = tree_ttl(*entry, entry->attr_ttl_ms);
    fill_generated(node, *entry, &out->attr);
  } else {
    Stat stat;
    int error = stat_node(node, &stat);
    if (error != 0) return error == EMFILE || error == ENFILE ? ENOMEM : error;
    int zone = node->zone.load();
    ttl = zones_.has(zone) ? zones_.at(zone).attr_ttl_ms : 0;
    if (entry != nullptr) ttl = tree_ttl(*entry, entry->has_ttl ? entry->attr_ttl_ms : ttl);
    fill_backing(node, stat, entry, &out->attr);
  }
  put_ttl(ttl, &out->attr_valid, &out->attr_valid_nsec);
  return 0;
}

// The reference the kernel takes with an entry is counted before the reply leaves, and taken back when nobody got it.
int Server::reply_entry(Call& c, Node* node, const Child& child) {
  fuse_entry_out out;
  fill_entry(node, child, &out);
  if (child.is_object && c.verdicts.object != nullptr) out.attr.size = c.verdicts.object->size();
  nodes_.add_lookup(node);
  if (send(c, &out, sizeof out) != 0) nodes_.forget(node->id, 1);
  return 0;
}

}  // namespace cortexfs
