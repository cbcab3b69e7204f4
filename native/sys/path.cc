// Calls that name a file relative to a directory descriptor.
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sys/call.h"

namespace sys {

static Napi::Value Openat2(const Napi::CallbackInfo& info) {
  int dir_fd, flags, mode, resolve;
  std::string path;
  if (!read_int(info, 0, "openat2", &dir_fd) || !read_text(info, 1, "openat2", &path) ||
      !read_int(info, 2, "openat2", &flags) || !read_int(info, 3, "openat2", &mode) ||
      !read_int(info, 4, "openat2", &resolve))
    return info.Env().Undefined();
  struct open_how how;
  memset(&how, 0, sizeof how);
  how.flags = static_cast<unsigned>(flags | O_CLOEXEC);
  how.mode = (flags & (O_CREAT | O_TMPFILE)) ? static_cast<unsigned>(mode) : 0;
  how.resolve = static_cast<unsigned>(resolve);
  long fd;
  // EAGAIN: a rename happened during a scoped walk; the kernel asks for another try.
  int tries = 0;
  do fd = syscall(SYS_openat2, dir_fd, path.c_str(), &how, sizeof how);
  while (fd < 0 && (errno == EINTR || (errno == EAGAIN && ++tries < 64)));
  if (fd < 0) return throw_errno(info.Env(), errno, "openat2", path);
  return Napi::Number::New(info.Env(), static_cast<double>(fd));
}

static Napi::Value Renameat2(const Napi::CallbackInfo& info) {
  int old_fd, new_fd, flags;
  std::string old_name, new_name;
  if (!read_int(info, 0, "renameat2", &old_fd) || !read_text(info, 1, "renameat2", &old_name) ||
      !read_int(info, 2, "renameat2", &new_fd) || !read_text(info, 3, "renameat2", &new_name) ||
      !read_int(info, 4, "renameat2", &flags))
    return info.Env().Undefined();
  if (renameat2(old_fd, old_name.c_str(), new_fd, new_name.c_str(), static_cast<unsigned>(flags)) != 0)
    throw_errno(info.Env(), errno, "renameat2", new_name);
  return info.Env().Undefined();
}

static Napi::Value Mkdirat(const Napi::CallbackInfo& info) {
  int dir_fd, mode;
  std::string name;
  if (!read_int(info, 0, "mkdirat", &dir_fd) || !read_text(info, 1, "mkdirat", &name) ||
      !read_int(info, 2, "mkdirat", &mode))
    return info.Env().Undefined();
  if (mkdirat(dir_fd, name.c_str(), static_cast<mode_t>(mode)) != 0)
    throw_errno(info.Env(), errno, "mkdirat", name);
  return info.Env().Undefined();
}

static Napi::Value Unlinkat(const Napi::CallbackInfo& info) {
  int dir_fd;
  std::string name;
  if (!read_int(info, 0, "unlinkat", &dir_fd) || !read_text(info, 1, "unlinkat", &name))
    return info.Env().Undefined();
  int flags = info[2].ToBoolean().Value() ? AT_REMOVEDIR : 0;
  if (unlinkat(dir_fd, name.c_str(), flags) != 0) throw_errno(info.Env(), errno, "unlinkat", name);
  return info.Env().Undefined();
}

static Napi::Value Symlinkat(const Napi::CallbackInfo& info) {
  int dir_fd;
  std::string target, name;
  if (!read_text(info, 0, "symlinkat", &target) || !read_int(info, 1, "symlinkat", &dir_fd) ||
      !read_text(info, 2, "symlinkat", &name))
    return info.Env().Undefined();
  if (symlinkat(target.c_str(), dir_fd, name.c_str()) != 0) throw_errno(info.Env(), errno, "symlinkat", name);
  return info.Env().Undefined();
}

static Napi::Value Readlinkat(const Napi::CallbackInfo& info) {
  int dir_fd;
  std::string name;
  if (!read_int(info, 0, "readlinkat", &dir_fd) || !read_text(info, 1, "readlinkat", &name))
    return info.Env().Undefined();
  char text[4096];
  ssize_t size = readlinkat(dir_fd, name.c_str(), text, sizeof text);
  if (size < 0) return throw_errno(info.Env(), errno, "readlinkat", name);
  return Napi::Buffer<char>::Copy(info.Env(), text, static_cast<size_t>(size));
}

static Napi::Value Linkat(const Napi::CallbackInfo& info) {
  int old_fd, new_fd;
  std::string old_name, new_name;
  if (!read_int(info, 0, "linkat", &old_fd) || !read_text(info, 1, "linkat", &old_name) ||
      !read_int(info, 2, "linkat", &new_fd) || !read_text(info, 3, "linkat", &new_name))
    return info.Env().Undefined();
  if (linkat(old_fd, old_name.c_str(), new_fd, new_name.c_str(), 0) != 0)
    throw_errno(info.Env(), errno, "linkat", new_name);
  return info.Env().Undefined();
}

static Napi::Value Fstatat(const Napi::CallbackInfo& info) {
  int dir_fd;
  std::string name;
  if (!read_int(info, 0, "fstatat", &dir_fd) || !read_text(info, 1, "fstatat", &name))
    return info.Env().Undefined();
  struct stat st;
  int flags = AT_SYMLINK_NOFOLLOW | (name.empty() ? AT_EMPTY_PATH : 0);
  if (fstatat(dir_fd, name.c_str(), &st, flags) != 0) return throw_errno(info.Env(), errno, "fstatat", name);
  Napi::Env env = info.Env();
  Napi::Object facts = Napi::Object::New(env);
  auto big = [&](uint64_t value) { return Napi::BigInt::New(env, value); };
  auto nanoseconds = [&](const struct timespec& t) {
    return Napi::BigInt::New(env, static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec);
  };
  facts.Set("dev", big(st.st_dev));
  facts.Set("ino", big(st.st_ino));
  facts.Set("mode", Napi::Number::New(env, st.st_mode));
  facts.Set("nlink", big(st.st_nlink));
  facts.Set("uid", Napi::Number::New(env, st.st_uid));
  facts.Set("gid", Napi::Number::New(env, st.st_gid));
  facts.Set("rdev", big(st.st_rdev));
  facts.Set("size", big(static_cast<uint64_t>(st.st_size)));
  facts.Set("mtimeNs", nanoseconds(st.st_mtim));
  facts.Set("ctimeNs", nanoseconds(st.st_ctim));
  return facts;
}

static Napi::Value Fchownat(const Napi::CallbackInfo& info) {
  int dir_fd, uid, gid;
  std::string name;
  if (!read_int(info, 0, "fchownat", &dir_fd) || !read_text(info, 1, "fchownat", &name) ||
      !read_int(info, 2, "fchownat", &uid) || !read_int(info, 3, "fchownat", &gid))
    return info.Env().Undefined();
  int flags = AT_SYMLINK_NOFOLLOW | (name.empty() ? AT_EMPTY_PATH : 0);
  if (fchownat(dir_fd, name.c_str(), static_cast<uid_t>(uid), static_cast<gid_t>(gid), flags) != 0)
    throw_errno(info.Env(), errno, "fchownat", name);
  return info.Env().Undefined();
}

static Napi::Value Fchmodat(const Napi::CallbackInfo& info) {
  int dir_fd, mode;
  std::string name;
  if (!read_int(info, 0, "fchmodat", &dir_fd) || !read_text(info, 1, "fchmodat", &name) ||
      !read_int(info, 2, "fchmodat", &mode))
    return info.Env().Undefined();
  int result;
  if (name.empty()) {
    // An O_PATH descriptor takes no fchmod; its link in /proc names the same inode.
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir_fd);
    result = chmod(link, static_cast<mode_t>(mode));
  } else {
    result = fchmodat(dir_fd, name.c_str(), static_cast<mode_t>(mode), AT_SYMLINK_NOFOLLOW);
  }
  if (result != 0) throw_errno(info.Env(), errno, "fchmodat", name);
  return info.Env().Undefined();
}

// Sets atime and mtime; times are whole ns since the epoch.
static Napi::Value Utimensat(const Napi::CallbackInfo& info) {
  int dir_fd;
  std::string name;
  bool is_lossless = true;
  if (!read_int(info, 0, "utimensat", &dir_fd) || !read_text(info, 1, "utimensat", &name)) return info.Env().Undefined();
  if (!info[2].IsBigInt()) return throw_errno(info.Env(), EINVAL, "utimensat", name);
  const int64_t ns = info[2].As<Napi::BigInt>().Int64Value(&is_lossless);
  if (!is_lossless) return throw_errno(info.Env(), EINVAL, "utimensat", name);
  struct timespec time;
  time.tv_sec = ns / 1000000000;
  time.tv_nsec = ns % 1000000000;
  if (time.tv_nsec < 0) {
    time.tv_nsec += 1000000000;
    time.tv_sec--;
  }
  const struct timespec both[2] = {time, time};
  const int done = name.empty() ? futimens(dir_fd, both) : utimensat(dir_fd, name.c_str(), both, AT_SYMLINK_NOFOLLOW);
  if (done != 0) throw_errno(info.Env(), errno, "utimensat", name);
  return info.Env().Undefined();
}

void init_path(Napi::Env env, Napi::Object exports) {
  exports.Set("openat2", Napi::Function::New<Openat2>(env));
  exports.Set("renameat2", Napi::Function::New<Renameat2>(env));
  exports.Set("mkdirat", Napi::Function::New<Mkdirat>(env));
  exports.Set("unlinkat", Napi::Function::New<Unlinkat>(env));
  exports.Set("symlinkat", Napi::Function::New<Symlinkat>(env));
  exports.Set("readlinkat", Napi::Function::New<Readlinkat>(env));
  exports.Set("linkat", Napi::Function::New<Linkat>(env));
  exports.Set("fstatat", Napi::Function::New<Fstatat>(env));
  exports.Set("fchownat", Napi::Function::New<Fchownat>(env));
  exports.Set("utimensat", Napi::Function::New<Utimensat>(env));
  exports.Set("fchmodat", Napi::Function::New<Fchmodat>(env));
}

}  // namespace sys
