// OPEN and RELEASE: which bytes a handle gives, and by which way the kernel reads them.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

static bool is_writing(uint32_t flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0; }

int Server::open(Call& c) {
  const auto* in = c.in.take<fuse_open_in>();
  if (in == nullptr) return MALFORMED;
  NodeRef node = nodes_.get(c.header->nodeid);
  if (!node) return ESTALE;
  if (node->type == S_IFDIR) return EISDIR;
  if (node->type != S_IFREG) return EIO;
  if (node->is_generated) return open_generated(c, std::move(node), in->flags);
  int zone = node->zone.load();
  if (!zones_.has(zone)) return ESTALE;
  Body object;
  int error = find_object(c, node.get(), &object);
  if (error != 0) return error;
  if (object != nullptr) {
    if (is_writing(in->flags)) return EROFS;
    finish_render(copy(c), *object);
    c.is_answered = true;
    return 0;
  }
  if (is_writing(in->flags)) {
    Node* raw = node.get();
    error = judge(c, zones_.at(zone).write, Question::Write, [&](Upcall& upcall) {
      upcall.path = nodes_.path(raw);
      upcall.flags = in->flags;
    });
    if (error != 0) return error;
  }
  auto handle = std::make_shared<Handle>();
  Stat stat;
  bool is_copy = zones_.at(zone).is_copied && is_writing(in->flags);
  handle->flags = in->flags;
  handle->size_max = zones_.at(zone).size_max;
  error = open_file(node.get(), is_copy ? O_RDONLY : in->flags, &handle->fd, &stat);
  if (error == 0 && is_copy) {
    handle->path = nodes_.path(node.get());
    error = open_copy(c, handle, zones_.at(zone));
  } else if (error == 0 && (in->flags & O_TRUNC) != 0) {
    if (ftruncate(handle->fd->fd, 0) != 0) error = errno;
    if (error == 0 && (in->open_flags & FUSE_OPEN_KILL_SUIDGID) != 0) error = kill_privileges(handle->fd->fd, stat.raw, c.header->gid);
    if (error == 0) error = stat_fd(handle->fd->fd, &stat);
  }
  if (error != 0) return error == EMFILE ? ENFILE : error;
  handle->node = std::move(node);
  fuse_open_out out;
  finish_open(handle.get(), zone, stat, &out);
  // Closing such a handle has something to say.
  if (is_copy) out.open_flags &= ~static_cast<uint32_t>(FOPEN_NOFLUSH);
  out.fh = handles_.add(handle);
  // A reply that nobody took brings no RELEASE.
  if (send(c, &out, sizeof out) != 0) close_handle(out.fh);
  return 0;
}

// Opens the very inode. The name is tried first and proved; O_NONBLOCK keeps a fifo put there meanwhile from blocking the thread.
int Server::open_file(Node* node, uint32_t flags, Fd* fd, Stat* stat) {
  int own = static_cast<int>(flags & (O_ACCMODE | O_APPEND | O_SYNC | O_DSYNC)) | O_NONBLOCK | O_NOCTTY;
  // O_TRUNC alone wants a descriptor that can be truncated.
  if ((flags & O_TRUNC) != 0 && (flags & O_ACCMODE) == O_RDONLY) own |= O_RDWR;
  int got = -1;
  int error = ESTALE;
  NodeRef parent;
  std::string name;
  if (!node->has_tree.load() && nodes_.find_name(node, &parent, &name) && !parent->is_generated) {
    Fd dir;
    error = node_fd(parent.get(), &dir);
    if (error == 0) error = open_beneath(dir->fd, name.c_str(), static_cast<uint64_t>(own), 0, false, &got);
    if (error == 0) {
      *fd = std::make_shared<FdBox>(got);
      error = stat_fd(got, stat);
      if (error == 0 && is_same(node->identity, stat->identity())) return 0;
      fd->reset();
      error = ESTALE;
    }
    if (error != ESTALE && error != ENOENT && error != ELOOP && error != ENXIO) return error;
  }
  Fd path;
  error = node_fd(node, &path);
  if (error != 0) return error;
  error = reopen(path->fd, own, &got);
  if (error != 0) return error;
  *fd = std::make_shared<FdBox>(got);
  error = stat_fd(got, stat);
  if (error != 0) return error;
  return is_same(node->identity, stat->identity()) ? 0 : ESTALE;
}

// Decides how the kernel gets at the data, in agreement with the other open handles of the node, and counts the handle.
void Server::finish_open(Handle* handle, int zone_id, const Stat& stat, fuse_open_out* out) {
  memset(out, 0, sizeof *out);
  out->open_flags = FOPEN_NOFLUSH;
  handle->is_data = true;
  const Zone& zone = zones_.at(zone_id);
  // A close must be heard of where it can free a POSIX lock; for the many that only read a file without locks it is not.
  bool is_writable = (handle->flags & O_ACCMODE) != O_RDONLY;
  if (zone.can_lock && (is_writable || locks_.has_any(handle->node->id))) out->open_flags &= ~static_cast<uint32_t>(FOPEN_NOFLUSH);
  bool wants_direct = (handle->flags & O_DIRECT) != 0;
  std::lock_guard<std::mutex> opening(open_lock(handle->node->id));
  uint32_t backing_id = 0;
  bool is_first = nodes_.with_extra(handle->node.get(), [](Extra& extra) { return extra.opens == 0; });
  if (is_first && zone.can_passthrough && has_passthrough_.load()) {
    fuse_backing_map map;
    memset(&map, 0, sizeof map);
    map.fd = handle->fd->fd;
    int id = ioctl(device_fd_, FUSE_DEV_IOC_BACKING_OPEN, &map);
    if (id > 0) backing_id = static_cast<uint32_t>(id);
  }
  nodes_.with_extra(handle->node.get(), [&](Extra& extra) {
    if (is_first) {
      extra.mode = backing_id != 0 ? Mode::Passthrough : zone.caching == Caching::Direct ? Mode::Direct : Mode::Cached;
      extra.backing_id = backing_id;
    }
    extra.opens++;
    extra.open_fds.push_back(handle->fd);
    if (extra.mode == Mode::Passthrough) {
      out->open_flags |= FOPEN_PASSTHROUGH;
      out->padding = extra.backing_id;
      if (wants_direct) out->open_flags |= FOPEN_DIRECT_IO;
    } else if (extra.mode == Mode::Direct || (handle->flags & (O_ACCMODE | O_APPEND)) == (O_WRONLY | O_APPEND)) {
      // By the page cache the kernel may cut one append in two at a page border; direct I/O sends it whole.
      out->open_flags |= FOPEN_DIRECT_IO;
    } else if (zone.caching == Caching::Keep && extra.was_opened && extra.opened_size == stat.raw.stx_size &&
               extra.opened_mtime_ns == stat.mtime_ns()) {
      out->open_flags |= FOPEN_KEEP_CACHE;
    }
    extra.was_opened = true;
    extra.opened_size = stat.raw.stx_size;
    extra.opened_mtime_ns = stat.mtime_ns();
  });
}

// The bytes of a generated file are fixed at open. Versions do not share pages: while a handle on other bytes is open, the new
// one reads past the page cache.
int Server::open_generated(Call& c, NodeRef node, uint32_t flags) {
  if (is_writing(flags)) return EROFS;
  TreeRef tree = this->tree();
  const Entry* entry = tree->find(nodes_.tree_path(node.get()));
  if ((entry == nullptr || !entry->is_fixed) && is_stale(c)) return ask_refresh(c);
  if (entry == nullptr || entry->type != node->entry_type) return ESTALE;
  if (entry->type == EntryType::Live) {
    Upcall upcall;
    upcall.question = Question::Render;
    upcall.path = entry->path;
    return park(c, std::move(upcall));
  }
  if (entry->type != EntryType::File) return EIO;
  auto handle = std::make_shared<Handle>();
  handle->flags = flags;
  handle->body = entry->body;
  handle->is_data = true;
  fuse_open_out out;
  memset(&out, 0, sizeof out);
  out.open_flags = FOPEN_NOFLUSH;
  nodes_.with_extra(node.get(), [&](Extra& extra) {
    if (extra.opens > 0 && extra.opened_body != entry->body) {
      out.open_flags |= FOPEN_DIRECT_IO;
      extra.was_opened = false;  // pages of the older bytes may come back until its handles are closed
    } else {
      if (entry->keep && extra.was_opened && extra.opened_body == entry->body) out.open_flags |= FOPEN_KEEP_CACHE;
      extra.was_opened = true;
      extra.opened_body = entry->body;
    }
    extra.opens++;
  });
  handle->node = std::move(node);
  out.fh = handles_.add(handle);
  if (send(c, &out, sizeof out) != 0) close_handle(out.fh);
  return 0;
}

// The answer of a rendered open.
void Server::finish_render(const Held& held, std::string body) {
  Call c;
  c.bytes = held.bytes();
  c.size = held.size;
  c.header = reinterpret_cast<const fuse_in_header*>(c.bytes);
  NodeRef node = nodes_.get(c.header->nodeid);
  if (!node) {
    send_error(c, ESTALE);
    return;
  }
  auto handle = std::make_shared<Handle>();
  handle->is_live = true;
  handle->is_data = true;
  handle->body = std::make_shared<const std::string>(std::move(body));
  uint64_t size = handle->body->size();
  Node* raw = node.get();
  handle->node = std::move(node);
  fuse_open_out out;
  memset(&out, 0, sizeof out);
  out.open_flags = FOPEN_NOFLUSH | FOPEN_DIRECT_IO;
  out.fh = handles_.add(handle);
  nodes_.with_extra(raw, [&](Extra& extra) {
    extra.live.emplace_back(out.fh, size);
    extra.opens++;
  });
  if (send(c, &out, sizeof out) != 0) close_handle(out.fh);
}

void Server::close_handle(uint64_t id) {
  HandleRef handle = handles_.take(id);
  if (handle == nullptr || !handle->is_data) return;
  if (handle->fd != nullptr) locks_.drop_handle(handle->node->id, id);
  std::unique_lock<std::mutex> opening(open_lock(handle->node->id));
  uint32_t closing_id = 0;
  nodes_.with_extra(handle->node.get(), [&](Extra& extra) {
    for (auto at = extra.live.begin(); at != extra.live.end(); ++at) {
      if (at->first == id) {
        extra.live.erase(at);
        break;
      }
    }
    for (auto at = extra.open_fds.begin(); at != extra.open_fds.end(); ++at) {
      if (*at == handle->fd) {
        extra.open_fds.erase(at);
        break;
      }
    }
    if (extra.opens > 0) extra.opens--;
    if (extra.opens == 0) {
      if (extra.mode == Mode::Passthrough) closing_id = extra.backing_id;
      extra.mode = Mode::Closed;
      extra.backing_id = 0;
    }
  });
  opening.unlock();  // the number is this call's alone now
  if (closing_id != 0) ioctl(device_fd_, FUSE_DEV_IOC_BACKING_CLOSE, &closing_id);
}

int Server::release(Call& c) {
  const auto* in = c.in.take<fuse_release_in>();
  if (in == nullptr) return MALFORMED;
  HandleRef handle = handles_.get(in->fh);
  // Work that is still under way holds the descriptor: the lock does not wait for it.
  bool has_lock = (in->release_flags & FUSE_RELEASE_FLOCK_UNLOCK) != 0;
  if (has_lock && handle != nullptr && handle->fd != nullptr) flock(handle->fd->fd, LOCK_UN);
  close_handle(in->fh);
  return handle != nullptr && handle->copy != nullptr ? publish(c, handle, true) : send(c, nullptr, 0);
}

}  // namespace cortexfs
