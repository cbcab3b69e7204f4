// The desk where requests wait for TypeScript: questions out, answers in, deadlines, interrupts. A serving thread never waits here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace cortexfs {

enum class Question : uint8_t { Refresh, Render, Miss, Create, Mkdir, Mknod, Symlink, Link, Unlink, Rmdir, Rename, Write, Setattr, Truncate, Publish, Object };

// What TypeScript is told.
struct Upcall {
  uint64_t id = 0;
  Question question = Question::Refresh;
  std::string path, path2, target;  // target: text of a link, bytes to publish
  uint32_t mode = 0, flags = 0, uid = 0, gid = 0, pid = 0;
};

// Answers a request has gained; a second pass does not ask for them again.
struct Verdicts {
  bool is_refreshed = false, is_missed = false, is_asked = false;
  bool is_done = false;                       // TypeScript has done the operation itself
  std::shared_ptr<const std::string> object;  // rendered text of an object's program
};

// A request that waits, with its bytes.
struct Held {
  std::vector<uint64_t> words;
  size_t size = 0;
  uint64_t unique = 0;
  uint32_t opcode = 0;
  Verdicts verdicts;

  const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(words.data()); }
};

class Desk {
 public:
  using Clock = std::chrono::steady_clock;
  // `announce`: questions are there now. `refuse`: the request ends with this errno. Both are called without the lock.
  Desk(uint32_t timeout_ms, std::function<void()> announce, std::function<void(const Held&, int)> refuse);
  ~Desk() { stop(0); }
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  static constexpr size_t WAITING_MAX = 65536;

  // Takes a request in and asks. 0, or the errno to answer it with at once (interrupted meanwhile, too many, stopped).
  int park(Held held, Upcall upcall);
  // All questions not handed out yet.
  std::vector<Upcall> take_questions();
  // The requests that waited for this answer; empty for a late or unknown one. `question` says which it was.
  std::vector<Held> take_answered(uint64_t id, Question* question, Clock::time_point* asked_at);
  // FUSE_INTERRUPT: the request with this number ends with EINTR now, or when it comes to wait.
  void interrupt(uint64_t unique);
  // True once when the request was interrupted before it was known here.
  bool take_early(uint64_t unique);
  // Ends all that waits with `error` and takes nothing more.
  void stop(int error);
  size_t waiting();

 private:
  struct Waiting {
    Held held;
    uint64_t upcall;
    Clock::time_point deadline;
  };
  struct Asked {
    Question question;
    Clock::time_point at;
  };

  void watch();
  bool take_early_locked(uint64_t unique);

  const std::chrono::milliseconds timeout_;
  const std::function<void()> announce_;
  const std::function<void(const Held&, int)> refuse_;
  std::mutex lock_;                                   // guards all below
  std::condition_variable wake_;
  std::unordered_map<uint64_t, Waiting> waiting_;     // by the request's number
  std::unordered_map<uint64_t, Asked> asked_;         // by the question's id
  std::vector<Upcall> questions_;
  std::vector<uint64_t> early_;                       // interrupts that came before their request was seen; a ring
  size_t early_at_ = 0;
  uint64_t next_id_ = 1, refresh_id_ = 0;
  bool is_stopped_ = false, is_watching_ = false;
  std::thread watcher_;
};

}  // namespace cortexfs
