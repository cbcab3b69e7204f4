// Mounting, unmounting, and the flags of the mount behind a descriptor.
#include <errno.h>
#include <sys/mount.h>
#include <sys/statfs.h>

#include "sys/call.h"

namespace sys {

static Napi::Value Mount(const Napi::CallbackInfo& info) {
  std::string source, target, type, data;
  int flags;
  if (!read_text(info, 0, "mount", &source) || !read_text(info, 1, "mount", &target) ||
      !read_text(info, 2, "mount", &type) || !read_int(info, 3, "mount", &flags) ||
      !read_text(info, 4, "mount", &data))
    return info.Env().Undefined();
  if (mount(source.c_str(), target.c_str(), type.c_str(), static_cast<unsigned>(flags), data.c_str()) != 0)
    throw_errno(info.Env(), errno, "mount", target);
  return info.Env().Undefined();
}

static Napi::Value Umount2(const Napi::CallbackInfo& info) {
  std::string target;
  int flags;
  if (!read_text(info, 0, "umount2", &target) || !read_int(info, 1, "umount2", &flags)) return info.Env().Undefined();
  if (umount2(target.c_str(), flags) != 0) throw_errno(info.Env(), errno, "umount2", target);
  return info.Env().Undefined();
}

static Napi::Value MountFlags(const Napi::CallbackInfo& info) {
  int fd;
  if (!read_int(info, 0, "fstatfs", &fd)) return info.Env().Undefined();
  struct statfs facts;
  int result;
  do result = fstatfs(fd, &facts);
  while (result != 0 && errno == EINTR);
  if (result != 0) return throw_errno(info.Env(), errno, "fstatfs");
  return Napi::Number::New(info.Env(), static_cast<double>(facts.f_flags & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)));
}

void init_mount(Napi::Env env, Napi::Object exports) {
  exports.Set("mount", Napi::Function::New<Mount>(env));
  exports.Set("umount2", Napi::Function::New<Umount2>(env));
  exports.Set("mountFlags", Napi::Function::New<MountFlags>(env));
}

}  // namespace sys
