// Moving data between descriptors inside the kernel, and flushing a whole file system.
#include <errno.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <memory>

#include "sys/call.h"

namespace sys {

constexpr size_t CHUNK = 1 << 20;

// Copies at most `size` bytes; adds to *copied as it goes. Returns 0 or an errno.
static int copy_bytes(int src_fd, int dst_fd, uint64_t size, uint64_t* copied) {
  bool in_kernel = true;
  std::unique_ptr<char[]> buffer;
  while (*copied < size) {
    size_t want = static_cast<size_t>(size - *copied < CHUNK ? size - *copied : CHUNK);
    ssize_t got;
    if (in_kernel) {
      got = copy_file_range(src_fd, nullptr, dst_fd, nullptr, want, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS)) {
        in_kernel = false;
        continue;
      }
      // Some kernels answer 0 for files of /proc and /sys whose size is 0; reading tells the truth.
      if (got == 0 && *copied == 0) {
        in_kernel = false;
        continue;
      }
      if (got < 0) return errno;
      if (got == 0) return 0;
    } else {
      if (!buffer) buffer.reset(new char[CHUNK]);
      got = read(src_fd, buffer.get(), want);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno;
      if (got == 0) return 0;
      for (ssize_t written = 0; written < got;) {
        ssize_t put = write(dst_fd, buffer.get() + written, static_cast<size_t>(got - written));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return errno;
        written += put;
      }
    }
    *copied += static_cast<uint64_t>(got);
  }
  return 0;
}

static Napi::Value CopyRange(const Napi::CallbackInfo& info) {
  int src_fd, dst_fd;
  uint64_t size, copied = 0;
  if (!read_int(info, 0, "copy_file_range", &src_fd) || !read_int(info, 1, "copy_file_range", &dst_fd) ||
      !read_size(info, 2, "copy_file_range", uint64_t{1} << 53, &size))
    return info.Env().Undefined();
  int number = copy_bytes(src_fd, dst_fd, size, &copied);
  if (number != 0) return throw_errno(info.Env(), number, "copy_file_range");
  return Napi::Number::New(info.Env(), static_cast<double>(copied));
}

static Napi::Value Reflink(const Napi::CallbackInfo& info) {
  int dst_fd, src_fd;
  if (!read_int(info, 0, "ioctl", &dst_fd) || !read_int(info, 1, "ioctl", &src_fd)) return info.Env().Undefined();
  if (ioctl(dst_fd, FICLONE, src_fd) == 0) return Napi::Boolean::New(info.Env(), true);
  switch (errno) {
    case EOPNOTSUPP:
    case EXDEV:
    case EINVAL:
    case ENOTTY:
    case ENOSYS:
    case ETXTBSY:
      return Napi::Boolean::New(info.Env(), false);
  }
  return throw_errno(info.Env(), errno, "ioctl");
}

static Napi::Value Syncfs(const Napi::CallbackInfo& info) {
  int fd;
  if (!read_int(info, 0, "syncfs", &fd)) return info.Env().Undefined();
  if (syncfs(fd) != 0) throw_errno(info.Env(), errno, "syncfs");
  return info.Env().Undefined();
}

void init_copy(Napi::Env env, Napi::Object exports) {
  exports.Set("copyRange", Napi::Function::New<CopyRange>(env));
  exports.Set("reflink", Napi::Function::New<Reflink>(env));
  exports.Set("syncfs", Napi::Function::New<Syncfs>(env));
}

}  // namespace sys
