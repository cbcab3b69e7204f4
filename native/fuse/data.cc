// What goes with an open handle: READ, WRITE, FSYNC, LSEEK, FALLOCATE, COPY_FILE_RANGE.
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

int Server::read(Call& c) {
  const auto* in = c.in.take<fuse_read_in>();
  if (in == nullptr || in->size > DATA_MAX || in->offset > INT64_MAX) return MALFORMED;
  HandleRef handle = handles_.get(in->fh);
  if (handle == nullptr || handle->is_dir) return EBADF;
  if (handle->body != nullptr) {
    const std::string& body = *handle->body;
    size_t from = static_cast<size_t>(std::min<uint64_t>(in->offset, body.size()));
    send(c, body.data() + from, std::min<size_t>(in->size, body.size() - from));
    return 0;
  }
  uint8_t* bytes = scratch();
  ssize_t got = pread(handle->data_fd(), bytes, in->size, static_cast<off_t>(in->offset));
  if (got < 0) return errno;
  send(c, bytes, static_cast<size_t>(got));
  return 0;
}

int Server::write(Call& c) {
  const auto* in = c.in.take<fuse_write_in>();
  if (in == nullptr || in->size > DATA_MAX || in->offset > INT64_MAX) return MALFORMED;
  const uint8_t* bytes = c.in.take_bytes(in->size);
  if (bytes == nullptr) return MALFORMED;
  HandleRef handle = handles_.get(in->fh);
  if (handle == nullptr || handle->is_dir) return EBADF;
  if (handle->body != nullptr) return EROFS;
  if (handle->copy != nullptr) return write_copy(c, handle, in, bytes);
  if (handle->size_max != 0) {
    Stat now;
    int error = (handle->flags & O_APPEND) != 0 ? stat_fd(handle->fd->fd, &now) : 0;
    if (error != 0) return error;
    uint64_t from = (handle->flags & O_APPEND) != 0 ? now.raw.stx_size : in->offset;
    if (from + in->size > handle->size_max) return EFBIG;
  }
  if ((handle->flags & (O_SYNC | O_DSYNC)) != 0) {
    return defer(c, [this, handle](Call& later) {
      const auto* again = later.in.take<fuse_write_in>();
      return write_now(later, handle, again, later.in.take_bytes(again->size));
    });
  }
  return write_now(c, handle, in, bytes);
}

int Server::write_now(Call& c, const HandleRef& handle, const fuse_write_in* in, const uint8_t* bytes) {
  int fd = handle->fd->fd;
  if ((in->write_flags & FUSE_WRITE_KILL_SUIDGID) != 0) {
    Stat stat;
    int error = stat_fd(fd, &stat);
    if (error == 0) error = kill_privileges(fd, stat.raw, c.header->gid);
    if (error != 0) return error;
  }
  Fd at_offset;
  if ((in->write_flags & FUSE_WRITE_CACHE) != 0 && (handle->flags & O_APPEND) != 0) {
    // Dirty pages of a mapping come with any writable handle; on an appending descriptor pwrite ignores the offset.
    int plain = -1;
    int error = reopen(fd, O_WRONLY, &plain);
    if (error != 0) return error;
    at_offset = std::make_shared<FdBox>(plain);
    fd = plain;
  }
  size_t done = 0;
  while (done < in->size) {
    ssize_t put = pwrite(fd, bytes + done, in->size - done, static_cast<off_t>(in->offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && done == 0) return errno;
    if (put <= 0) break;
    done += static_cast<size_t>(put);
  }
  fuse_write_out out;
  out.size = static_cast<uint32_t>(done);
  out.padding = 0;
  send(c, &out, sizeof out);
  return 0;
}

int Server::fsync(Call& c, bool is_dir) {
  const auto* in = c.in.take<fuse_fsync_in>();
  if (in == nullptr) return MALFORMED;
  HandleRef handle = handles_.get(in->fh);
  if (handle == nullptr || handle->is_dir != is_dir) return EBADF;
  if (handle->fd == nullptr) {
    send(c, nullptr, 0);
    return 0;
  }
  if (handle->copy != nullptr) return publish(c, handle, false);
  bool is_data_only = (in->fsync_flags & FUSE_FSYNC_FDATASYNC) != 0;
  return defer(c, [this, handle, is_data_only](Call& later) {
    int fd = handle->fd->fd;
    if ((is_data_only ? ::fdatasync(fd) : ::fsync(fd)) != 0) return errno;
    send(later, nullptr, 0);
    return 0;
  });
}

int Server::lseek(Call& c) {
  const auto* in = c.in.take<fuse_lseek_in>();
  if (in == nullptr) return MALFORMED;
  HandleRef handle = handles_.get(in->fh);
  if (handle == nullptr || handle->is_dir) return EBADF;
  if (in->whence != SEEK_DATA && in->whence != SEEK_HOLE) return EINVAL;
  fuse_lseek_out out;
  if (handle->body != nullptr) {
    if (in->offset >= handle->body->size()) return ENXIO;
    out.offset = in->whence == SEEK_DATA ? in->offset : handle->body->size();
  } else {
    off_t got = ::lseek(handle->data_fd(), static_cast<off_t>(in->offset), static_cast<int>(in->whence));
    if (got < 0) return errno;
    out.offset = static_cast<uint64_t>(got);
  }
  send(c, &out, sizeof out);
  return 0;
}

int Server::fallocate(Call& c) {
  const auto* in = c.in.take<fuse_fallocate_in>();
  if (in == nullptr) return MALFORMED;
  HandleRef handle = handles_.get(in->fh);
  if (handle == nullptr || handle->is_dir) return EBADF;
  if (handle->body != nullptr) return EROFS;
  if (handle->copy != nullptr || handle->size_max != 0 || zones_.at(handle->node->zone.load()).only_append) return EOPNOTSUPP;
  uint32_t mode = in->mode;
  uint32_t base = mode & ~static_cast<uint32_t>(FALLOC_FL_KEEP_SIZE);
  bool is_known = base == 0 || base == FALLOC_FL_ZERO_RANGE ||
                  mode == (FALLOC_FL_PUNCH_HOLE | static_cast<uint32_t>(FALLOC_FL_KEEP_SIZE));
  if (!is_known) return EOPNOTSUPP;
  return defer(c, [this, handle](Call& later) {
    const auto* again = later.in.take<fuse_fallocate_in>();
    int fd = handle->fd->fd;
    Stat stat;
    int error = stat_fd(fd, &stat);
    // The kernel leaves the duty of clearing set-uid bits to us (killpriv v2), and says nothing about who asks.
    if (error == 0 && later.header->uid != 0) error = kill_privileges(fd, stat.raw, later.header->gid);
    if (error != 0) return error;
    if (::fallocate(fd, static_cast<int>(again->mode), static_cast<off_t>(again->offset), static_cast<off_t>(again->length)) != 0) {
      return errno;
    }
    send(later, nullptr, 0);
    return 0;
  });
}

int Server::copy_range(Call& c) {
  const auto* in = c.in.take<fuse_copy_file_range_in>();
  if (in == nullptr) return MALFORMED;
  HandleRef from = handles_.get(in->fh_in), to = handles_.get(in->fh_out);
  if (from == nullptr || to == nullptr || from->is_dir || to->is_dir) return EBADF;
  if (from->fd == nullptr || to->fd == nullptr) return EOPNOTSUPP;  // the kernel then copies by read and write
  if (from->copy != nullptr || to->copy != nullptr || to->size_max != 0) return EOPNOTSUPP;
  if ((to->flags & O_ACCMODE) == O_RDONLY || (from->flags & O_ACCMODE) == O_WRONLY) return EBADF;
  return defer(c, [this, from, to](Call& later) {
    const auto* again = later.in.take<fuse_copy_file_range_in>();
    Stat stat;
    int error = stat_fd(to->fd->fd, &stat);
    if (error == 0 && later.header->uid != 0) error = kill_privileges(to->fd->fd, stat.raw, later.header->gid);
    if (error != 0) return error;
    off_t from_at = static_cast<off_t>(again->off_in), to_at = static_cast<off_t>(again->off_out);
    size_t length = std::min<uint64_t>(again->len, 1u << 30);
    ssize_t put = ::copy_file_range(from->fd->fd, &from_at, to->fd->fd, &to_at, length, 0);
    if (put < 0) return errno == EXDEV ? EOPNOTSUPP : errno;
    fuse_write_out out;
    out.size = static_cast<uint32_t>(put);
    out.padding = 0;
    send(later, &out, sizeof out);
    return 0;
  });
}

}  // namespace cortexfs
