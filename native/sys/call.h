// What every wrapper needs: arguments out of JavaScript, errors into it, and waiting off the main thread.
#pragma once

#include <napi.h>

#include <string>

namespace sys {

// The errno name that the project uses; "EIO" for a number without one.
const char* errno_name(int number);

// Throws an Error with code, errno (negative), syscall and, unless empty, path, in the form Node.js itself uses.
Napi::Value throw_errno(Napi::Env env, int number, const char* syscall, const std::string& path = "");

// Argument readers. A wrong type or a text that holds NUL leaves a pending EINVAL exception and returns false.
bool read_int(const Napi::CallbackInfo& info, size_t at, const char* syscall, int* out);
bool read_size(const Napi::CallbackInfo& info, size_t at, const char* syscall, uint64_t max, uint64_t* out);
bool read_text(const Napi::CallbackInfo& info, size_t at, const char* syscall, std::string* out);

// What a wait gives back: an errno (0 = none) and a truth value.
struct Waited {
  int number = 0;
  bool value = false;
};

// Runs `wait` on a thread of its own (never on the shared pool, which waits must not fill) and settles the returned
// promise: rejected with the errno, else resolved with the value, or with nothing when `is_void`.
Napi::Value wait_on_thread(Napi::Env env, const char* syscall, bool is_void, Waited (*wait)(int fd, int argument), int fd,
                           int argument);

void init_path(Napi::Env env, Napi::Object exports);
void init_lock(Napi::Env env, Napi::Object exports);
void init_copy(Napi::Env env, Napi::Object exports);
void init_socket(Napi::Env env, Napi::Object exports);
void init_descriptor(Napi::Env env, Napi::Object exports);
void init_mount(Napi::Env env, Napi::Object exports);
void init_process(Napi::Env env, Napi::Object exports);
void init_seccomp(Napi::Env env, Napi::Object exports);

}  // namespace sys
