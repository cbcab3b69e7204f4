// SETATTR: truncate, chown, chmod, utimens, and the duty of killpriv v2.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "fuse/server.h"

namespace cortexfs {

constexpr uint32_t ABOUT_TIMES = FATTR_ATIME | FATTR_MTIME | FATTR_ATIME_NOW | FATTR_MTIME_NOW;
constexpr uint32_t ABOUT_META = FATTR_MODE | FATTR_UID | FATTR_GID | ABOUT_TIMES;
constexpr uint64_t LARGE_FILE = 64u << 20;  // cutting it may free many extents

int Server::setattr(Call& c) {
  const auto* in = c.in.take<fuse_setattr_in>();
  if (in == nullptr || ((in->valid & FATTR_SIZE) != 0 && in->size > INT64_MAX)) return MALFORMED;
  NodeRef node = nodes_.get(c.header->nodeid);
  if (!node) return ESTALE;
  uint32_t changes = in->valid & (ABOUT_META | FATTR_SIZE);
  if (node->is_generated) {
    if (changes != 0) return EROFS;
    fuse_attr_out out;
    int error = attributes(node.get(), &out);
    if (error != 0) return error;
    send(c, &out, sizeof out);
    return 0;
  }
  int zone = node->zone.load();
  if (!zones_.has(zone)) return ESTALE;
  HandleRef handle = (in->valid & FATTR_FH) != 0 ? handles_.get(in->fh) : nullptr;
  bool has_writing_handle = handle != nullptr && handle->fd != nullptr && handle->node.get() == node.get() &&
                            (handle->flags & O_ACCMODE) != O_RDONLY;
  if ((changes & FATTR_SIZE) != 0) {
    const Zone& of = zones_.at(zone);
    if (of.only_append) return EROFS;
    if (has_writing_handle && handle->copy != nullptr) return truncate_copy(c, node, handle, in->size);
    if (of.is_copied && changes == FATTR_SIZE) return truncate_path(c, node, in->size);
    if (of.size_max != 0 && in->size > of.size_max) return EFBIG;
    Body object;
    int error = find_object(c, node.get(), &object);
    if (error != 0) return error;
    if (object != nullptr) return EROFS;
  }
  int verdict = 0;
  // A handle open for writing has had its verdict.
  if ((changes & FATTR_SIZE) != 0 && !has_writing_handle) verdict = zones_.at(zone).write;
  if ((changes & ABOUT_META) != 0 && verdict <= 0) {
    int meta = zones_.at(zone).setattr;
    if (meta != 0) verdict = meta;
  }
  bool is_write_only = (changes & ABOUT_META) == 0;
  int error = judge(c, verdict, is_write_only ? Question::Write : Question::Setattr, [&](Upcall& upcall) {
    upcall.path = nodes_.path(node.get());
    upcall.mode = in->mode;
    upcall.flags = is_write_only ? static_cast<uint32_t>(O_WRONLY | O_TRUNC) : in->valid;
  });
  if (error != 0) return error;
  if (options_.has_own_uid && (changes & (FATTR_UID | FATTR_GID)) != 0) return EPERM;
  if ((changes & FATTR_SIZE) != 0) {
    if (node->type == S_IFDIR) return EISDIR;
    if (node->type != S_IFREG) return EINVAL;
    Stat before;
    if (stat_node(node.get(), &before) == 0 && before.raw.stx_size > in->size && before.raw.stx_size > LARGE_FILE) {
      return defer(c, [this](Call& later) {
        NodeRef again = nodes_.get(later.header->nodeid);
        return again ? setattr_now(later, again, later.in.take<fuse_setattr_in>()) : ESTALE;
      });
    }
  }
  return setattr_now(c, node, in);
}

static timespec time_of(uint32_t valid, uint32_t set, uint32_t now, uint64_t s, uint32_t ns) {
  timespec time{static_cast<time_t>(s), static_cast<long>(ns)};
  if ((valid & now) != 0) time.tv_nsec = UTIME_NOW;
  else if ((valid & set) == 0) time.tv_nsec = UTIME_OMIT;
  return time;
}

int Server::setattr_now(Call& c, const NodeRef& node, const fuse_setattr_in* in) {
  uint32_t valid = in->valid;
  HandleRef handle = (valid & FATTR_FH) != 0 ? handles_.get(in->fh) : nullptr;
  Fd fd;
  if (handle != nullptr && handle->fd != nullptr && handle->node.get() == node.get()) fd = handle->fd;
  if (fd == nullptr) {
    int error = node_fd(node.get(), &fd);
    if (error != 0) return error;
  }
  char path[40];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd->fd);
  uint32_t changes = valid & (ABOUT_META | FATTR_SIZE);
  // A SETATTR without any attribute announces a write that the kernel makes itself (passthrough).
  if (changes == 0 || (valid & FATTR_KILL_SUIDGID) != 0) {
    Stat stat;
    int error = stat_fd(fd->fd, &stat);
    // The kernel says this of every chown; uid 0 may keep a set-gid bit as a member of the group does.
    bool keeps = c.header->uid == 0 && (valid & (FATTR_UID | FATTR_GID)) != 0;
    if (error == 0) error = kill_privileges(fd->fd, stat.raw, keeps ? stat.raw.stx_gid : c.header->gid);
    if (error != 0) return error;
  }
  if ((valid & FATTR_SIZE) != 0) {
    bool is_writable = handle != nullptr && fd == handle->fd && (handle->flags & O_ACCMODE) != O_RDONLY;
    Fd writable = fd;
    if (!is_writable) {
      int opened = -1;
      int error = reopen(fd->fd, O_WRONLY | O_NONBLOCK | O_NOCTTY, &opened);
      if (error != 0) return error;
      writable = std::make_shared<FdBox>(opened);
    }
    if (ftruncate(writable->fd, static_cast<off_t>(in->size)) != 0) return errno;
  }
  if ((valid & (FATTR_UID | FATTR_GID)) != 0) {
    uid_t uid = (valid & FATTR_UID) != 0 ? in->uid : static_cast<uid_t>(-1);
    gid_t gid = (valid & FATTR_GID) != 0 ? in->gid : static_cast<gid_t>(-1);
    if (fchownat(fd->fd, "", uid, gid, AT_EMPTY_PATH) != 0) return errno;
  }
  if ((valid & FATTR_MODE) != 0) {
    if (node->type == S_IFLNK) return EOPNOTSUPP;
    if (chmod(path, in->mode & 07777) != 0) return errno;
  }
  if ((valid & ABOUT_TIMES) != 0) {
    timespec times[2] = {time_of(valid, FATTR_ATIME, FATTR_ATIME_NOW, in->atime, in->atimensec),
                         time_of(valid, FATTR_MTIME, FATTR_MTIME_NOW, in->mtime, in->mtimensec)};
    if (utimensat(fd->fd, "", times, AT_EMPTY_PATH) != 0) return errno;
  }
  fuse_attr_out out;
  int error = attributes(node.get(), &out);
  if (error != 0) return error;
  send(c, &out, sizeof out);
  return 0;
}

}  // namespace cortexfs
