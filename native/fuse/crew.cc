#include "fuse/crew.h"

#include "fuse/backing.h"

namespace cortexfs {

bool Crew::add(std::function<void()> task) {
  std::lock_guard<std::mutex> guard(lock_);
  if (is_stopping_) return false;
  tasks_.push_back(std::move(task));
  if (idle_ < tasks_.size() && threads_.size() < size_) threads_.emplace_back([this] { run(); });
  wake_.notify_one();
  return true;
}

void Crew::run() {
  enter_thread();
  std::unique_lock<std::mutex> hold(lock_);
  for (;;) {
    idle_++;
    wake_.wait(hold, [this] { return is_stopping_ || !tasks_.empty(); });
    idle_--;
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    hold.unlock();
    task();
    task = nullptr;
    hold.lock();
  }
}

void Crew::stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard<std::mutex> guard(lock_);
    is_stopping_ = true;
    threads.swap(threads_);
    wake_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace cortexfs
