#include "sys/init.h"

void InitSys(Napi::Env env, Napi::Object exports) {
  (void)env;
  (void)exports;
}
