// Files that are published whole: who opens one for writing works on a private copy, and TypeScript puts the copy in its
// place in one step. And programs of objects, whose text TypeScript renders.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

// All bytes of a descriptor from offset 0; EFBIG above `max`.
static int read_all(int fd, size_t max, std::string* out) {
  out->resize(max + 1);
  size_t done = 0;
  while (done < out->size()) {
    ssize_t got = pread(fd, out->data() + done, out->size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  out->resize(done);
  return done > max ? EFBIG : 0;
}

static int write_all(int fd, const char* bytes, size_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    ssize_t put = pwrite(fd, bytes + done, size - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return put == 0 ? EIO : errno;
    done += static_cast<size_t>(put);
  }
  return 0;
}

// Gives a handle just opened its copy: empty after O_TRUNC, else what the file holds now.
int Server::open_copy(Call& c, const HandleRef& handle, const Zone& zone) {
  int fd = memfd_create("cortexfs", MFD_CLOEXEC);
  if (fd < 0) return errno;
  handle->copy = std::make_shared<FdBox>(fd);
  handle->uid = c.header->uid;
  handle->is_cut = (handle->flags & O_TRUNC) != 0;
  if (handle->is_cut) return 0;
  std::string bytes;
  int error = read_all(handle->fd->fd, zone.size_max, &bytes);
  return error != 0 ? error : write_all(fd, bytes.data(), bytes.size(), 0);
}

int Server::write_copy(Call& c, const HandleRef& handle, const fuse_write_in* in, const uint8_t* bytes) {
  std::lock_guard<std::mutex> guard(handle->lock);
  uint64_t from = in->offset;
  if ((handle->flags & O_APPEND) != 0) {
    // The kernel's offset is the size of the published file.
    Stat now;
    int error = stat_fd(handle->copy->fd, &now);
    if (error != 0) return error;
    from = now.raw.stx_size;
  }
  if (from + in->size > handle->size_max) return EFBIG;
  int error = write_all(handle->copy->fd, reinterpret_cast<const char*>(bytes), in->size, from);
  if (error != 0) return error;
  handle->is_dirty = true;
  handle->is_cut = false;
  fuse_write_out out;
  out.size = in->size;
  out.padding = 0;
  send(c, &out, sizeof out);
  return 0;
}

int Server::truncate_copy(Call& c, const NodeRef& node, const HandleRef& handle, uint64_t size) {
  if (size > handle->size_max) return EFBIG;
  fuse_attr_out out;
  int error = attributes(node.get(), &out);
  if (error != 0) return error;
  {
    std::lock_guard<std::mutex> guard(handle->lock);
    if (ftruncate(handle->copy->fd, static_cast<off_t>(size)) != 0) return errno;
    handle->is_dirty = true;
    handle->is_cut = false;
  }
  out.attr.size = size;
  send(c, &out, sizeof out);
  return 0;
}

// A cut by path is published at once.
int Server::truncate_path(Call& c, const NodeRef& node, uint64_t size) {
  if (!c.verdicts.is_done) {
    // The inode loses its name; the descriptor kept now lets its attributes be told afterwards.
    Fd fd;
    int error = node_fd(node.get(), &fd);
    if (error != 0) return error;
    Upcall upcall;
    upcall.question = Question::Truncate;
    upcall.path = nodes_.path(node.get());
    upcall.mode = static_cast<uint32_t>(std::min<uint64_t>(size, UINT32_MAX));
    return park(c, std::move(upcall));
  }
  fuse_attr_out out;
  int error = attributes(node.get(), &out);
  if (error != 0) return error;
  out.attr.size = size;
  send(c, &out, sizeof out);
  return 0;
}

// Hands the copy to TypeScript when there is anything new in it. O_TRUNC alone counts only at the last close: a shell's
// redirection closes a duplicate before its first write.
int Server::publish(Call& c, const HandleRef& handle, bool is_last) {
  if (c.verdicts.is_asked) {
    send(c, nullptr, 0);
    return 0;
  }
  Upcall upcall;
  {
    std::lock_guard<std::mutex> guard(handle->lock);
    if (!handle->is_dirty && !(is_last && handle->is_cut)) {
      send(c, nullptr, 0);
      return 0;
    }
    int error = read_all(handle->copy->fd, handle->size_max, &upcall.target);
    if (error != 0) return error;
    handle->is_dirty = handle->is_cut = false;
  }
  upcall.question = Question::Publish;
  upcall.path = handle->path;
  upcall.uid = handle->uid;
  return park(c, std::move(upcall));
}

bool Server::is_object(int zone, int dir_fd, std::string_view name, const Stat& stat) {
  if (!zones_.has(zone) || !zones_.at(zone).is_object) return false;
  if (!S_ISREG(stat.raw.stx_mode) || (stat.raw.stx_mode & 0111) == 0) return false;
  std::string controls(name);
  controls += ".d";
  Stat beside;
  return controls.size() <= NAME_MAX_BYTES && stat_name(dir_fd, controls.c_str(), &beside) == 0 && S_ISDIR(beside.raw.stx_mode);
}

int Server::ask_object(Call& c, std::string path) {
  Upcall upcall;
  upcall.question = Question::Object;
  upcall.path = std::move(path);
  return park(c, std::move(upcall));
}

// The text that a known node is shown as; none when it is an ordinary file.
int Server::find_object(Call& c, Node* node, Body* body) {
  int zone = node->zone.load();
  if (node->type != S_IFREG || node->is_generated || !zones_.has(zone) || !zones_.at(zone).is_object) return 0;
  NodeRef parent;
  std::string name;
  if (!nodes_.find_name(node, &parent, &name)) return 0;  // unlinked: nothing but its bytes is left, for those who have it open
  Fd dir;
  int error = node_fd(parent.get(), &dir);
  Stat stat;
  if (error == 0) error = stat_name(dir->fd, name.c_str(), &stat);
  if (error != 0) return error == ENOENT ? ESTALE : error;
  if (!is_same(node->identity, stat.identity())) return ESTALE;
  if (!is_object(zone, dir->fd, name, stat)) return 0;
  if (c.verdicts.object == nullptr) return ask_object(c, nodes_.path(node));
  *body = c.verdicts.object;
  return 0;
}

}  // namespace cortexfs
