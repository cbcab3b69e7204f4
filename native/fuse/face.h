// The class the typed face uses. All methods run in the JavaScript thread; events of the engine come there by one queue.
#pragma once

#include <napi.h>

#include <memory>
#include <string>
#include <vector>

#include "fuse/server.h"

namespace cortexfs {

class MountFace : public Napi::ObjectWrap<MountFace> {
 public:
  static void init(Napi::Env env, Napi::Object exports);
  explicit MountFace(const Napi::CallbackInfo& info);
  ~MountFace() override;

 private:
  struct Event;
  class MemorySink;

  Napi::Value add_volume(const Napi::CallbackInfo& info);
  Napi::Value set_tree(const Napi::CallbackInfo& info);
  Napi::Value start(const Napi::CallbackInfo& info);
  Napi::Value reply(const Napi::CallbackInfo& info);
  Napi::Value invalidate(const Napi::CallbackInfo& info);
  Napi::Value stats(const Napi::CallbackInfo& info);
  Napi::Value stop(const Napi::CallbackInfo& info);
  Napi::Value feed(const Napi::CallbackInfo& info);
  Napi::Value take_replies(const Napi::CallbackInfo& info);

  static void on_event(napi_env env, napi_value callback, void* context, void* data);
  static void on_env_end(void* self);
  void see_questions(Napi::Env env);
  void see_started(Napi::Env env, const Event& event);
  void see_ended(Napi::Env env, const Event& event);
  void release();

  std::shared_ptr<Server> server_;
  MemorySink* memory_ = nullptr;           // of the test transport; owned by the server
  napi_threadsafe_function queue_ = nullptr;
  Napi::FunctionReference on_request_, on_end_, on_journal_;
  std::unique_ptr<Napi::Promise::Deferred> starting_;
  std::vector<Napi::Promise::Deferred> stopping_;
  std::string mount_point_;
  bool is_running_ = false, was_started_ = false;
};

}  // namespace cortexfs
