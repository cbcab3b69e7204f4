#pragma once

#include <napi.h>

// Registers every system call wrapper of this directory in `exports`.
void InitSys(Napi::Env env, Napi::Object exports);
