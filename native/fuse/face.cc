#include "fuse/face.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "fuse/parse.h"
#include "sys/call.h"

namespace cortexfs {

struct MountFace::Event {
  enum Kind { Questions, Started, Ended, Journal } kind;
  int error = 0;
  std::string text;
};

// Collects replies of the test transport.
class MountFace::MemorySink : public Sink {
 public:
  int send(const iovec* parts, int count) override {
    std::string reply;
    for (int i = 0; i < count; i++) reply.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
    std::lock_guard<std::mutex> guard(lock_);
    replies_.push_back(std::move(reply));
    return 0;
  }
  std::vector<std::string> take() {
    std::lock_guard<std::mutex> guard(lock_);
    std::vector<std::string> taken;
    taken.swap(replies_);
    return taken;
  }

 private:
  std::mutex lock_;  // guards replies_
  std::vector<std::string> replies_;
};

static Napi::Error error_of(Napi::Env env, int error, const std::string& syscall, const std::string& path, const std::string& what) {
  const char* name = sys::errno_name(error);
  Napi::Error made = Napi::Error::New(env, what + ": " + strerror(error));
  made.Set("code", Napi::String::New(env, name));
  made.Set("errno", Napi::Number::New(env, -error));
  if (!syscall.empty()) made.Set("syscall", Napi::String::New(env, syscall));
  if (!path.empty()) made.Set("path", Napi::String::New(env, path));
  return made;
}

static Napi::Value refuse(Napi::Env env, int error, const std::string& syscall, const std::string& path, const std::string& what) {
  error_of(env, error, syscall, path, what).ThrowAsJavaScriptException();
  return env.Undefined();
}

void MountFace::init(Napi::Env env, Napi::Object exports) {
  exports.Set("FuseMount", DefineClass(env, "FuseMount",
                                       {
                                           InstanceMethod<&MountFace::add_volume>("addVolume"),
                                           InstanceMethod<&MountFace::set_tree>("setTree"),
                                           InstanceMethod<&MountFace::start>("start"),
                                           InstanceMethod<&MountFace::reply>("reply"),
                                           InstanceMethod<&MountFace::invalidate>("invalidate"),
                                           InstanceMethod<&MountFace::stats>("stats"),
                                           InstanceMethod<&MountFace::stop>("stop"),
                                           InstanceMethod<&MountFace::feed>("feed"),
                                           InstanceMethod<&MountFace::take_replies>("takeReplies"),
                                       }));
}

MountFace::MountFace(const Napi::CallbackInfo& info) : Napi::ObjectWrap<MountFace>(info) {
  Napi::Env env = info.Env();
  if (info.Length() < 1 || !info[0].IsObject()) {
    refuse(env, EINVAL, "", "", "no options");
    return;
  }
  Napi::Object from = info[0].As<Napi::Object>();
  Options options;
  std::vector<Zone> zones;
  std::string fault;
  Napi::Value zone_list = from.Get("zones");
  if (!from.Get("onRequest").IsFunction() || !from.Get("onEnd").IsFunction()) fault = "onRequest and onEnd are functions";
  else if (!zone_list.IsArray()) fault = "zones is no array";
  else if (parse_options(from, &options, &fault)) parse_zones(zone_list.As<Napi::Array>(), &zones, &fault);
  if (!fault.empty()) {
    refuse(env, EINVAL, "", "", fault);
    return;
  }
  Stat stat;
  int error = stat_fd(options.statfs_fd, &stat);
  int own = error != 0 ? -1 : fcntl(options.statfs_fd, F_DUPFD_CLOEXEC, 3);
  if (own < 0) {
    refuse(env, error != 0 ? error : errno, "dup", "", "statfsFd is not usable");
    return;
  }
  options.statfs_fd = own;
  mount_point_ = options.mount_point;
  on_request_ = Napi::Persistent(from.Get("onRequest").As<Napi::Function>());
  on_end_ = Napi::Persistent(from.Get("onEnd").As<Napi::Function>());
  if (from.Get("onJournal").IsFunction()) on_journal_ = Napi::Persistent(from.Get("onJournal").As<Napi::Function>());
  napi_create_threadsafe_function(env, nullptr, nullptr, Napi::String::New(env, "cortexfs"), 0, 1, nullptr, nullptr, this, on_event,
                                  &queue_);
  napi_unref_threadsafe_function(env, queue_);
  napi_threadsafe_function queue = queue_;
  auto tell = [queue](Event::Kind kind, int event_error, std::string text) {
    auto* event = new Event{kind, event_error, std::move(text)};
    if (napi_call_threadsafe_function(queue, event, napi_tsfn_nonblocking) != napi_ok) delete event;
  };
  Voice voice;
  voice.questions = [tell] { tell(Event::Questions, 0, ""); };
  voice.started = [tell](int event_error, const char* syscall) { tell(Event::Started, event_error, syscall); };
  voice.ended = [tell](const std::string& reason) { tell(Event::Ended, 0, reason); };
  voice.journal = [tell](const std::string& line) { tell(Event::Journal, 0, line); };
  server_ = std::make_shared<Server>(std::move(options), ZoneTable(std::move(zones)), stat.dev(), std::move(voice));
}

MountFace::~MountFace() {
  if (server_ != nullptr) {
    server_->request_stop();
    server_->join();
  }
  release();
}

void MountFace::release() {
  if (queue_ != nullptr) napi_release_threadsafe_function(queue_, napi_tsfn_abort);
  queue_ = nullptr;
}

Napi::Value MountFace::add_volume(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 2 || !info[0].IsNumber() || !info[1].IsString()) return refuse(env, EINVAL, "", "", "no volume");
  std::string path = info[1].As<Napi::String>().Utf8Value();
  int id = -1;
  int error = server_->add_volume(info[0].As<Napi::Number>().Int32Value(), path, &id);
  if (error != 0) return refuse(env, error, "statx", path, "the volume is not usable");
  return Napi::Number::New(env, id);
}

Napi::Value MountFace::set_tree(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (info.Length() < 1 || !info[0].IsArray()) return refuse(env, EINVAL, "", "", "no entries");
  auto tree = std::make_shared<Tree>();
  std::string fault;
  if (!parse_tree(info[0].As<Napi::Array>(), server_.get(), tree.get(), &fault)) return refuse(env, EINVAL, "", "", fault);
  server_->set_tree(std::move(tree));
  return env.Undefined();
}

// process.exit runs no clean-up hook of the environment, but it does run those of the C library: no mount is left behind dead.
static std::mutex running_lock;  // guards running
static std::vector<Server*> running;

static void stop_running() {
  std::vector<Server*> left;
  {
    std::lock_guard<std::mutex> guard(running_lock);
    left.swap(running);
  }
  for (Server* server : left) {
    server->mute();
    server->request_stop();
    server->join();
  }
}

static void enlist(Server* server) {
  static const int once = atexit(stop_running);
  (void)once;
  std::lock_guard<std::mutex> guard(running_lock);
  running.push_back(server);
}

static void discharge(Server* server) {
  std::lock_guard<std::mutex> guard(running_lock);
  std::erase(running, server);
}

void MountFace::on_env_end(void* self) {
  auto* face = static_cast<MountFace*>(self);
  discharge(face->server_.get());
  face->server_->mute();
  face->server_->request_stop();
  face->server_->join();
}

Napi::Value MountFace::start(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  auto deferred = std::make_unique<Napi::Promise::Deferred>(env);
  Napi::Value promise = deferred->Promise();
  if (was_started_ || memory_ != nullptr) {
    deferred->Reject(error_of(env, EALREADY, "", mount_point_, "the mount was started before").Value());
    return promise;
  }
  was_started_ = is_running_ = true;
  starting_ = std::move(deferred);
  Ref();
  napi_ref_threadsafe_function(env, queue_);
  napi_add_env_cleanup_hook(env, on_env_end, this);
  enlist(server_.get());
  server_->start();
  return promise;
}

void MountFace::on_event(napi_env raw_env, napi_value, void* context, void* data) {
  std::unique_ptr<Event> event(static_cast<Event*>(data));
  if (raw_env == nullptr) return;
  Napi::Env env(raw_env);
  auto* face = static_cast<MountFace*>(context);
  switch (event->kind) {
    case Event::Questions: return face->see_questions(env);
    case Event::Started: return face->see_started(env, *event);
    case Event::Ended: return face->see_ended(env, *event);
    case Event::Journal:
      if (!face->on_journal_.IsEmpty()) face->on_journal_.Value().Call({Napi::String::New(env, event->text)});
      return;
  }
}

void MountFace::see_questions(Napi::Env env) {
  static const char* const ops[] = {"refresh", "render", "miss",  "create", "mkdir",  "mknod", "symlink",
                                    "link",    "unlink", "rmdir", "rename", "write",  "setattr", "truncate", "publish", "object"};
  std::vector<Upcall> questions = server_->take_questions();
  if (questions.empty()) return;
  Napi::Array batch = Napi::Array::New(env, questions.size());
  for (size_t i = 0; i < questions.size(); i++) {
    const Upcall& from = questions[i];
    Napi::Object to = Napi::Object::New(env);
    to.Set("id", Napi::Number::New(env, static_cast<double>(from.id)));
    to.Set("op", Napi::String::New(env, ops[static_cast<size_t>(from.question)]));
    if (from.question != Question::Refresh) {
      to.Set("path", Napi::String::New(env, from.path));
      to.Set("uid", Napi::Number::New(env, from.uid));
      to.Set("gid", Napi::Number::New(env, from.gid));
      to.Set("pid", Napi::Number::New(env, from.pid));
      if (from.question != Question::Render && from.question != Question::Miss) {
        to.Set("mode", Napi::Number::New(env, from.mode));
        to.Set("flags", Napi::Number::New(env, from.flags));
      }
      if (!from.path2.empty()) to.Set("path2", Napi::String::New(env, from.path2));
      if (from.question == Question::Publish) to.Set("body", Napi::Buffer<char>::Copy(env, from.target.data(), from.target.size()));
      else if (!from.target.empty()) to.Set("target", Napi::String::New(env, from.target));
    }
    batch.Set(static_cast<uint32_t>(i), to);
  }
  on_request_.Value().Call({batch});
}

void MountFace::see_started(Napi::Env env, const Event& event) {
  std::unique_ptr<Napi::Promise::Deferred> starting = std::move(starting_);
  if (event.error == 0) {
    starting->Resolve(env.Undefined());
    return;
  }
  server_->join();
  discharge(server_.get());
  is_running_ = false;
  napi_remove_env_cleanup_hook(env, on_env_end, this);
  napi_unref_threadsafe_function(env, queue_);
  starting->Reject(error_of(env, event.error, event.text, mount_point_, "the mount cannot be made").Value());
  for (Napi::Promise::Deferred& stopping : stopping_) stopping.Resolve(env.Undefined());
  stopping_.clear();
  Unref();
}

void MountFace::see_ended(Napi::Env env, const Event& event) {
  server_->join();
  discharge(server_.get());
  is_running_ = false;
  napi_remove_env_cleanup_hook(env, on_env_end, this);
  napi_unref_threadsafe_function(env, queue_);
  for (Napi::Promise::Deferred& stopping : stopping_) stopping.Resolve(env.Undefined());
  stopping_.clear();
  Napi::Function on_end = on_end_.Value();
  Unref();
  on_end.Call({Napi::String::New(env, event.text)});
}

Napi::Value MountFace::reply(const Napi::CallbackInfo& info) {
  if (info.Length() < 2 || !info[0].IsNumber() || !info[1].IsNumber()) return refuse(info.Env(), EINVAL, "", "", "no answer");
  int error = info[1].As<Napi::Number>().Int32Value();
  if (error < DONE || error > 4095) error = EIO;
  std::string body;
  if (info.Length() > 2 && info[2].IsBuffer()) {
    Napi::Buffer<char> bytes = info[2].As<Napi::Buffer<char>>();
    body.assign(bytes.Data(), bytes.Length());
  }
  server_->reply(static_cast<uint64_t>(info[0].As<Napi::Number>().Int64Value()), error, std::move(body));
  return info.Env().Undefined();
}

Napi::Value MountFace::invalidate(const Napi::CallbackInfo& info) {
  if (info.Length() < 1 || !info[0].IsString()) return refuse(info.Env(), EINVAL, "", "", "no path");
  return Napi::Boolean::New(info.Env(), server_->invalidate(info[0].As<Napi::String>().Utf8Value()));
}

Napi::Value MountFace::stats(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  Server::Counts counts = server_->counts();
  Napi::Object to = Napi::Object::New(env);
  to.Set("requests", Napi::Number::New(env, static_cast<double>(counts.requests)));
  to.Set("passthrough", Napi::Number::New(env, counts.has_passthrough ? 1 : 0));
  to.Set("nodes", Napi::Number::New(env, static_cast<double>(counts.nodes)));
  to.Set("descriptors", Napi::Number::New(env, static_cast<double>(counts.descriptors)));
  to.Set("handles", Napi::Number::New(env, static_cast<double>(counts.handles)));
  to.Set("parked", Napi::Number::New(env, static_cast<double>(counts.parked)));
  return to;
}

Napi::Value MountFace::stop(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  Napi::Promise::Deferred deferred(env);
  if (is_running_) {
    stopping_.push_back(deferred);
    server_->request_stop();
  } else {
    deferred.Resolve(env.Undefined());
  }
  return deferred.Promise();
}

Napi::Value MountFace::feed(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  if (was_started_) return refuse(env, EALREADY, "", mount_point_, "a started mount takes no raw requests");
  if (info.Length() < 1 || !info[0].IsBuffer()) return refuse(env, EINVAL, "", "", "no request");
  if (memory_ == nullptr) {
    auto sink = std::make_unique<MemorySink>();
    memory_ = sink.get();
    server_->set_sink(std::move(sink));
    int error = server_->seed();
    if (error != 0) return refuse(env, error, "open", "", "the root is not usable");
  }
  Napi::Buffer<uint8_t> bytes = info[0].As<Napi::Buffer<uint8_t>>();
  std::vector<uint64_t> words((bytes.Length() + 7) / 8);
  if (bytes.Length() > 0) memcpy(words.data(), bytes.Data(), bytes.Length());
  server_->serve(reinterpret_cast<const uint8_t*>(words.data()), bytes.Length(), Verdicts());
  return env.Undefined();
}

Napi::Value MountFace::take_replies(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  std::vector<std::string> replies;
  if (memory_ != nullptr) replies = memory_->take();
  Napi::Array list = Napi::Array::New(env, replies.size());
  for (size_t i = 0; i < replies.size(); i++) {
    list.Set(static_cast<uint32_t>(i), Napi::Buffer<char>::Copy(env, replies[i].data(), replies[i].size()));
  }
  return list;
}

}  // namespace cortexfs
