#include "sys/call.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include <cmath>

namespace sys {

const char* errno_name(int number) {
  switch (number) {
    case EAGAIN:
      return "EAGAIN";
    case EOPNOTSUPP:
      return "EOPNOTSUPP";
    case EDEADLK:
      return "EDEADLK";
  }
  const char* name = strerrorname_np(number);
  return name == nullptr ? "EIO" : name;
}

static Napi::Error make_error(Napi::Env env, int number, const char* syscall, const std::string& path) {
  std::string text = std::string(errno_name(number)) + ": " + strerrordesc_np(number) + ", " + syscall;
  if (!path.empty()) text += " '" + path + "'";
  Napi::Error error = Napi::Error::New(env, text);
  Napi::Object facts = error.Value();
  facts.Set("code", errno_name(number));
  facts.Set("errno", -number);
  facts.Set("syscall", syscall);
  if (!path.empty()) facts.Set("path", path);
  return error;
}

Napi::Value throw_errno(Napi::Env env, int number, const char* syscall, const std::string& path) {
  make_error(env, number, syscall, path).ThrowAsJavaScriptException();
  return env.Undefined();
}

bool read_int(const Napi::CallbackInfo& info, size_t at, const char* syscall, int* out) {
  if (at >= info.Length() || !info[at].IsNumber()) {
    throw_errno(info.Env(), EINVAL, syscall);
    return false;
  }
  double value = info[at].As<Napi::Number>().DoubleValue();
  if (!(value >= -2147483648.0 && value <= 4294967295.0) || value != std::floor(value)) {
    throw_errno(info.Env(), EINVAL, syscall);
    return false;
  }
  *out = static_cast<int>(static_cast<int64_t>(value));
  return true;
}

bool read_size(const Napi::CallbackInfo& info, size_t at, const char* syscall, uint64_t max, uint64_t* out) {
  if (at >= info.Length() || !info[at].IsNumber()) {
    throw_errno(info.Env(), EINVAL, syscall);
    return false;
  }
  double value = info[at].As<Napi::Number>().DoubleValue();
  if (!(value >= 0 && value <= static_cast<double>(max)) || value != std::floor(value)) {
    throw_errno(info.Env(), EINVAL, syscall);
    return false;
  }
  *out = static_cast<uint64_t>(value);
  return true;
}

bool read_text(const Napi::CallbackInfo& info, size_t at, const char* syscall, std::string* out) {
  if (at < info.Length() && info[at].IsString()) {
    *out = info[at].As<Napi::String>().Utf8Value();
  } else if (at < info.Length() && info[at].IsBuffer()) {
    auto bytes = info[at].As<Napi::Buffer<char>>();
    out->assign(bytes.Data(), bytes.Length());
  } else {
    throw_errno(info.Env(), EINVAL, syscall);
    return false;
  }
  if (out->find('\0') == std::string::npos) return true;
  throw_errno(info.Env(), EINVAL, syscall);
  return false;
}

namespace {

struct Wait {
  Napi::Promise::Deferred deferred;
  const char* syscall;
  bool is_void;
  Waited (*wait)(int, int);
  int fd;
  int argument;
  Waited result;
  napi_threadsafe_function settle;
};

void settle_wait(napi_env raw, napi_value, void*, void* data) {
  Wait* wait = static_cast<Wait*>(data);
  if (raw != nullptr) {
    Napi::Env env(raw);
    Napi::HandleScope scope(env);
    if (wait->result.number != 0)
      wait->deferred.Reject(make_error(env, wait->result.number, wait->syscall, "").Value());
    else if (wait->is_void)
      wait->deferred.Resolve(env.Undefined());
    else
      wait->deferred.Resolve(Napi::Boolean::New(env, wait->result.value));
  }
  delete wait;
}

void* run_wait(void* data) {
  Wait* wait = static_cast<Wait*>(data);
  wait->result = wait->wait(wait->fd, wait->argument);
  napi_threadsafe_function settle = wait->settle;
  // When the environment is being torn down nobody is left to tell, and the record is given up with the process.
  if (napi_call_threadsafe_function(settle, wait, napi_tsfn_blocking) == napi_ok)
    napi_release_threadsafe_function(settle, napi_tsfn_release);
  return nullptr;
}

}  // namespace

Napi::Value wait_on_thread(Napi::Env env, const char* syscall, bool is_void, Waited (*wait)(int, int), int fd,
                           int argument) {
  Wait* job = new Wait{Napi::Promise::Deferred::New(env), syscall, is_void, wait, fd, argument, {}, nullptr};
  Napi::Value promise = job->deferred.Promise();
  if (napi_create_threadsafe_function(env, nullptr, nullptr, Napi::String::New(env, syscall), 1, 1, nullptr, nullptr,
                                      nullptr, settle_wait, &job->settle) != napi_ok) {
    delete job;
    return throw_errno(env, ENOMEM, syscall);
  }
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  pthread_t thread;
  int number = pthread_create(&thread, &attributes, run_wait, job);
  pthread_attr_destroy(&attributes);
  if (number != 0) {
    napi_release_threadsafe_function(job->settle, napi_tsfn_abort);
    delete job;
    return throw_errno(env, number, syscall);
  }
  return promise;
}

}  // namespace sys
