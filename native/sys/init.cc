#include "sys/init.h"

#include "sys/call.h"

void InitSys(Napi::Env env, Napi::Object exports) {
  sys::init_path(env, exports);
  sys::init_lock(env, exports);
  sys::init_copy(env, exports);
  sys::init_socket(env, exports);
  sys::init_descriptor(env, exports);
  sys::init_mount(env, exports);
  sys::init_process(env, exports);
  sys::init_seccomp(env, exports);
}
