// The one entry point of the addon. Each area registers its own functions and classes.
#include <napi.h>

#include "sys/init.h"
#if __has_include("fuse/init.h")
#include "fuse/init.h"
#define CORTEXFS_HAS_FUSE 1
#endif

static Napi::Object Init(Napi::Env env, Napi::Object exports) {
  InitSys(env, exports);
#ifdef CORTEXFS_HAS_FUSE
  InitFuse(env, exports);
#endif
  return exports;
}

NODE_API_MODULE(cortexfs, Init)
