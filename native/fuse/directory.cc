// OPENDIR, READDIR, READDIRPLUS: a snapshot at offset 0, later pages from a cursor in it.
#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

struct RawEntry {
  uint64_t ino;
  int64_t offset;
  uint16_t size;
  uint8_t type;
  char name[];
};

static uint32_t type_of(const Entry& entry) {
  return entry.type == EntryType::Dir ? DT_DIR : entry.type == EntryType::Link ? DT_LNK : DT_REG;
}

int Server::opendir(Call& c) {
  const auto* in = c.in.take<fuse_open_in>();
  if (in == nullptr) return MALFORMED;
  NodeRef node = nodes_.get(c.header->nodeid);
  if (!node) return ESTALE;
  if (node->type != S_IFDIR) return ENOTDIR;
  if (node->has_tree.load() && is_stale(c)) return ask_refresh(c);
  auto handle = std::make_shared<Handle>();
  handle->is_dir = true;
  handle->flags = in->flags;
  fuse_open_out out;
  memset(&out, 0, sizeof out);
  if (!node->is_generated) {
    Fd path;
    int error = node_fd(node.get(), &path);
    int fd = -1;
    if (error == 0) error = open_beneath(path->fd, ".", O_RDONLY | O_DIRECTORY, 0, false, &fd);
    if (error != 0) return error == EMFILE ? ENFILE : error;
    handle->fd = std::make_shared<FdBox>(fd);
    // The kernel may keep its own listing while the mtime stands; what is laid over by the tree can change without it.
    int zone = node->zone.load();
    if (!node->has_tree.load() && zones_.has(zone) && zones_.at(zone).attr_ttl_ms > 0) {
      Stat stat;
      if (stat_fd(fd, &stat) == 0) {
        out.open_flags |= FOPEN_CACHE_DIR;
        nodes_.with_extra(node.get(), [&](Extra& extra) {
          // Two changes within one tick of the clock look alike: a listing made in the tick of the mtime is not kept.
          timespec now;
          clock_gettime(CLOCK_REALTIME_COARSE, &now);
          int64_t now_ns = total_ns(now.tv_sec, static_cast<uint32_t>(now.tv_nsec));
          if (extra.was_opened && extra.opened_mtime_ns == stat.mtime_ns()) out.open_flags |= FOPEN_KEEP_CACHE;
          int64_t mtime_ns = stat.mtime_ns();
          extra.was_opened = mtime_ns < now_ns - 20000000 || mtime_ns > now_ns;
          extra.opened_mtime_ns = stat.mtime_ns();
        });
      }
    }
  }
  handle->node = std::move(node);
  out.fh = handles_.add(handle);
  if (send(c, &out, sizeof out) != 0) handles_.take(out.fh);
  return 0;
}

int Server::fill_listing(Handle* handle) {
  Listing& listing = handle->listing;
  listing.items.clear();
  listing.names.clear();
  listing.is_filled = false;
  Node* node = handle->node.get();
  const Entry* at = nullptr;
  if (node->has_tree.load()) {
    listing.tree = tree();
    at = listing.tree->find(nodes_.tree_path(node));
    if (at == nullptr && node->is_generated) return ESTALE;
  }
  NodeRef parent;
  std::string name;
  bool has_parent = nodes_.find_name(node, &parent, &name);
  uint64_t own = nodes_.shown_ino(*node);
  uint64_t up = own;
  if (has_parent) {
    up = nodes_.shown_ino(*parent.get());
  } else if (at != nullptr && at->parent != nullptr && at->parent->type == EntryType::Dir) {
    up = nodes_.shown_ino(*nodes_.ensure_generated(*at->parent).get());
  }
  listing.add(".", own, DT_DIR, nullptr);
  listing.add("..", up, DT_DIR, nullptr);
  if (at != nullptr) {
    for (const Entry* entry : at->children) {
      if (entry->type != EntryType::Backing) {
        listing.add(entry->name(), nodes_.shown_ino(*nodes_.ensure_generated(*entry).get()), type_of(*entry), entry);
        continue;
      }
      Child child;
      if (find_backing_entry(node, *entry, &child) != 0) continue;  // not there now
      listing.add(entry->name(), nodes_.shown_ino(child.found.identity), child.found.type >> 12, entry);
    }
  }
  if (handle->fd != nullptr) {
    int zone = node->zone.load();
    if (!zones_.has(zone)) return ESTALE;
    Stat stat;
    int error = stat_fd(handle->fd->fd, &stat);
    if (error != 0) return error;
    Identity identity = stat.identity();
    if (::lseek(handle->fd->fd, 0, SEEK_SET) < 0) return errno;
    uint8_t* bytes = scratch();
    uint64_t next = 0;  // the backing cursor at which the next entry stands
    for (;;) {
      long got = syscall(SYS_getdents64, handle->fd->fd, bytes, DATA_MAX);
      if (got < 0) return errno;
      if (got == 0) break;
      for (long offset = 0; offset < got;) {
        const auto* raw = reinterpret_cast<const RawEntry*>(bytes + offset);
        offset += raw->size;
        uint64_t place = next;
        next = static_cast<uint64_t>(raw->offset);
        std::string_view text(raw->name);
        if (text == "." || text == "..") continue;
        if (at != nullptr && at->find_child(text) != nullptr) continue;
        Class of = zones_.classify(zone, text);
        if (!of.is_listed) continue;
        const Zone& entry_zone = zones_.at(of.zone);
        if (entry_zone.only_plain) {
          uint32_t type = DTTOIF(raw->type);
          if (raw->type == DT_UNKNOWN) {  // not every file system says it in the listing
            Stat entry;
            if (stat_name(handle->fd->fd, raw->name, &entry) != 0) continue;
            type = entry.raw.stx_mode & S_IFMT;
          }
          if (!entry_zone.shows(type)) continue;
        }
        identity.ino = raw->ino;
        listing.add(text, nodes_.shown_ino(identity), raw->type, nullptr, place);
      }
    }
  }
  listing.settle();
  listing.is_filled = true;
  return 0;
}

int Server::readdir(Call& c, bool is_plus) {
  const auto* in = c.in.take<fuse_read_in>();
  if (in == nullptr || in->size > DATA_MAX) return MALFORMED;
  HandleRef handle = handles_.get(in->fh);
  if (handle == nullptr || !handle->is_dir) return EBADF;
  std::lock_guard<std::mutex> guard(handle->lock);
  Listing& listing = handle->listing;
  if (in->offset == 0 || !listing.is_filled) {
    int error = fill_listing(handle.get());
    if (error != 0) return error;
  }
  Node* dir = handle->node.get();
  // The page is built after the getdents buffer is done with.
  uint8_t* page = scratch();
  size_t used = 0;
  std::vector<uint64_t> counted;
  for (size_t i = listing.begin(in->offset); i < listing.items.size(); i++) {
    const Item& item = listing.items[i];
    std::string_view name = listing.name(item);
    size_t head = is_plus ? sizeof(fuse_entry_out) : 0;
    size_t size = FUSE_REC_ALIGN(head + offsetof(fuse_dirent, name) + name.size());
    if (used + size > in->size) break;
    memset(page + used, 0, size);
    auto* entry = reinterpret_cast<fuse_dirent*>(page + used + head);
    entry->ino = item.ino;
    entry->off = listing.cursor_after(i);
    entry->namelen = static_cast<uint32_t>(name.size());
    entry->type = item.type;
    memcpy(entry->name, name.data(), name.size());
    if (is_plus && i >= 2) {
      Child child;
      int error;
      if (item.entry == nullptr) {
        error = find_plain(dir, name, &child);
      } else if (item.entry->type == EntryType::Backing) {
        error = find_backing_entry(dir, *item.entry, &child);
      } else {
        child.entry = item.entry;
        error = 0;
      }
      if (error == ENOENT) continue;  // gone since the snapshot
      if (error == 0 && !child.is_object) {
        NodeRef node = node_of(child, dir, name);
        fuse_entry_out out;
        fill_entry(node.get(), child, &out);
        memcpy(page + used, &out, sizeof out);
        entry->ino = out.attr.ino;
        nodes_.add_lookup(node.get());
        counted.push_back(node->id);
      }  // else without attributes: node 0 tells the kernel to look it up itself
    }
    used += size;
  }
  if (send(c, page, used) != 0) {
    for (uint64_t id : counted) nodes_.forget(id, 1);
  }
  return 0;
}

}  // namespace cortexfs
