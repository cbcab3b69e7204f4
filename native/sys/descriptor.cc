// Descriptors that no path names, their flags, and random bytes.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "sys/call.h"

namespace sys {

static Napi::Value Getrandom(const Napi::CallbackInfo& info) {
  uint64_t size;
  if (!read_size(info, 0, "getrandom", 1 << 20, &size)) return info.Env().Undefined();
  auto bytes = Napi::Buffer<uint8_t>::New(info.Env(), static_cast<size_t>(size));
  for (size_t filled = 0; filled < size;) {
    ssize_t got = getrandom(bytes.Data() + filled, size - filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return throw_errno(info.Env(), errno, "getrandom");
    filled += static_cast<size_t>(got);
  }
  return bytes;
}

static Napi::Value Pipe(const Napi::CallbackInfo& info) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return throw_errno(info.Env(), errno, "pipe2");
  Napi::Array pair = Napi::Array::New(info.Env(), 2);
  pair.Set(0u, fds[0]);
  pair.Set(1u, fds[1]);
  return pair;
}

static Napi::Value Memfd(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  std::string name;
  if (!read_text(info, 0, "memfd_create", &name)) return env.Undefined();
  if (!info[1].IsBuffer()) return throw_errno(env, EINVAL, "memfd_create");
  auto data = info[1].As<Napi::Buffer<char>>();
  int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return throw_errno(env, errno, "memfd_create");
  for (size_t written = 0; written < data.Length();) {
    ssize_t put = write(fd, data.Data() + written, data.Length() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      int number = errno;
      close(fd);
      return throw_errno(env, number, "write");
    }
    written += static_cast<size_t>(put);
  }
  if (lseek(fd, 0, SEEK_SET) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    int number = errno;
    close(fd);
    return throw_errno(env, number, "fcntl");
  }
  return Napi::Number::New(env, fd);
}

static Napi::Value CloseOnExec(const Napi::CallbackInfo& info) {
  int fd;
  if (!read_int(info, 0, "fcntl", &fd)) return info.Env().Undefined();
  if (fcntl(fd, F_SETFD, info[1].ToBoolean().Value() ? FD_CLOEXEC : 0) != 0) throw_errno(info.Env(), errno, "fcntl");
  return info.Env().Undefined();
}

static Napi::Value SetNofileLimit(const Napi::CallbackInfo& info) {
  uint64_t soft;
  if (!read_size(info, 0, "setrlimit", uint64_t{1} << 31, &soft)) return info.Env().Undefined();
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return throw_errno(info.Env(), errno, "getrlimit");
  limit.rlim_cur = soft < limit.rlim_max ? soft : limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) throw_errno(info.Env(), errno, "setrlimit");
  return info.Env().Undefined();
}

static Napi::Value Getxattr(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  int fd;
  std::string name;
  if (!read_int(info, 0, "fgetxattr", &fd) || !read_text(info, 1, "fgetxattr", &name)) return env.Undefined();
  char value[65536];
  const ssize_t size = fgetxattr(fd, name.c_str(), value, sizeof value);
  if (size < 0) return throw_errno(env, errno, "fgetxattr", name);
  return Napi::Buffer<char>::Copy(env, value, static_cast<size_t>(size));
}

void init_descriptor(Napi::Env env, Napi::Object exports) {
  exports.Set("getrandom", Napi::Function::New<Getrandom>(env));
  exports.Set("pipe", Napi::Function::New<Pipe>(env));
  exports.Set("memfd", Napi::Function::New<Memfd>(env));
  exports.Set("closeOnExec", Napi::Function::New<CloseOnExec>(env));
  exports.Set("getxattr", Napi::Function::New<Getxattr>(env));
  exports.Set("setNofileLimit", Napi::Function::New<SetNofileLimit>(env));
}

}  // namespace sys
