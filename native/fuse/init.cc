#include "fuse/init.h"

#include "fuse/face.h"

void InitFuse(Napi::Env env, Napi::Object exports) { cortexfs::MountFace::init(env, exports); }
