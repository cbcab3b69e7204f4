// Registers the FUSE engine with the addon.
#pragma once

#include <napi.h>

void InitFuse(Napi::Env env, Napi::Object exports);
