// Whole-file locks.
#include <errno.h>
#include <sys/file.h>

#include "sys/call.h"

namespace sys {

static Napi::Value Flock(const Napi::CallbackInfo& info) {
  int fd, kind;
  if (!read_int(info, 0, "flock", &fd) || !read_int(info, 1, "flock", &kind)) return info.Env().Undefined();
  if (!info[2].ToBoolean().Value()) kind |= LOCK_NB;
  int result;
  do result = flock(fd, kind);
  while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EWOULDBLOCK) return throw_errno(info.Env(), errno, "flock");
  return Napi::Boolean::New(info.Env(), result == 0);
}

static Waited wait_lock(int fd, int kind) {
  int result;
  do result = flock(fd, kind);
  while (result != 0 && errno == EINTR);
  return {result == 0 ? 0 : errno, true};
}

static Napi::Value FlockWait(const Napi::CallbackInfo& info) {
  int fd, kind;
  if (!read_int(info, 0, "flock", &fd) || !read_int(info, 1, "flock", &kind)) return info.Env().Undefined();
  return wait_on_thread(info.Env(), "flock", true, wait_lock, fd, kind);
}

void init_lock(Napi::Env env, Napi::Object exports) {
  exports.Set("flock", Napi::Function::New<Flock>(env));
  exports.Set("flockWait", Napi::Function::New<FlockWait>(env));
}

}  // namespace sys
