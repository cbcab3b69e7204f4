// A few worker threads for work that must not hold up a serving thread. They are started with the first task.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace cortexfs {

class Crew {
 public:
  explicit Crew(size_t threads) : size_(threads) {}
  ~Crew() { stop(); }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // False after stop: the task was not taken.
  bool add(std::function<void()> task);
  // Runs what is queued, then joins.
  void stop();

 private:
  void run();

  const size_t size_;
  std::mutex lock_;                  // guards all below
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool is_stopping_ = false;
};

}  // namespace cortexfs
