#include "fuse/desk.h"

#include <linux/fuse.h>

#include <algorithm>
#include <cerrno>

namespace cortexfs {

constexpr size_t EARLY_MAX = 256;

Desk::Desk(uint32_t timeout_ms, std::function<void()> announce, std::function<void(const Held&, int)> refuse)
    : timeout_(timeout_ms), announce_(std::move(announce)), refuse_(std::move(refuse)) {}

int Desk::park(Held held, Upcall upcall) {
  bool is_first = false;
  {
    std::lock_guard<std::mutex> guard(lock_);
    if (is_stopped_) return ENOTCONN;
    if (take_early_locked(held.unique)) return EINTR;
    if (waiting_.size() >= WAITING_MAX || waiting_.contains(held.unique)) return ENOMEM;
    Clock::time_point now = Clock::now();
    uint64_t id;
    if (upcall.question == Question::Refresh && refresh_id_ != 0 && now - asked_[refresh_id_].at < timeout_) {
      id = refresh_id_;
    } else {
      id = next_id_++;
      if (upcall.question == Question::Refresh) {
        asked_.erase(refresh_id_);  // one that was never answered
        refresh_id_ = id;
      }
      asked_.emplace(id, Asked{upcall.question, now});
      upcall.id = id;
      is_first = questions_.empty();
      questions_.push_back(std::move(upcall));
    }
    uint64_t unique = held.unique;
    waiting_.emplace(unique, Waiting{std::move(held), id, now + timeout_});
    if (!is_watching_) {
      is_watching_ = true;
      watcher_ = std::thread([this] { watch(); });
    }
    if (waiting_.size() == 1) wake_.notify_one();
  }
  if (is_first) announce_();
  return 0;
}

std::vector<Upcall> Desk::take_questions() {
  std::lock_guard<std::mutex> guard(lock_);
  std::vector<Upcall> taken;
  taken.swap(questions_);
  return taken;
}

std::vector<Held> Desk::take_answered(uint64_t id, Question* question, Clock::time_point* asked_at) {
  std::lock_guard<std::mutex> guard(lock_);
  std::vector<Held> answered;
  auto asked = asked_.find(id);
  if (asked == asked_.end()) return answered;
  *question = asked->second.question;
  *asked_at = asked->second.at;
  asked_.erase(asked);
  if (id == refresh_id_) refresh_id_ = 0;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (at->second.upcall == id) {
      answered.push_back(std::move(at->second.held));
      at = waiting_.erase(at);
    } else {
      ++at;
    }
  }
  return answered;
}

bool Desk::take_early_locked(uint64_t unique) {
  auto early = std::find(early_.begin(), early_.end(), unique);
  if (early == early_.end()) return false;
  *early = 0;
  return true;
}

bool Desk::take_early(uint64_t unique) {
  std::lock_guard<std::mutex> guard(lock_);
  return take_early_locked(unique);
}

void Desk::interrupt(uint64_t unique) {
  Held held;
  {
    std::lock_guard<std::mutex> guard(lock_);
    auto found = waiting_.find(unique);
    if (found == waiting_.end()) {
      // Another serving thread may be about to park it; a request that is served in place just ends.
      if (early_.size() < EARLY_MAX) {
        early_.push_back(unique);
      } else {
        early_[early_at_++ % EARLY_MAX] = unique;
      }
      return;
    }
    held = std::move(found->second.held);
    waiting_.erase(found);
  }
  refuse_(held, EINTR);
}

// Ends requests at their deadline. A failed lookup would detach what is mounted below the name unless it says ENOMEM.
void Desk::watch() {
  std::unique_lock<std::mutex> hold(lock_);
  while (!is_stopped_) {
    if (waiting_.empty()) {
      wake_.wait(hold);
      continue;
    }
    Clock::time_point first = Clock::time_point::max();
    for (const auto& [unique, waiting] : waiting_) first = std::min(first, waiting.deadline);
    wake_.wait_until(hold, first);
    std::vector<Held> late;
    Clock::time_point now = Clock::now();
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      if (at->second.deadline <= now) {
        late.push_back(std::move(at->second.held));
        at = waiting_.erase(at);
      } else {
        ++at;
      }
    }
    hold.unlock();
    for (const Held& held : late) refuse_(held, held.opcode == FUSE_LOOKUP ? ENOMEM : EIO);
    hold.lock();
  }
}

void Desk::stop(int error) {
  std::vector<Held> left;
  std::thread watcher;
  {
    std::lock_guard<std::mutex> guard(lock_);
    is_stopped_ = true;
    for (auto& [unique, waiting] : waiting_) left.push_back(std::move(waiting.held));
    waiting_.clear();
    questions_.clear();
    asked_.clear();
    watcher.swap(watcher_);
    wake_.notify_all();
  }
  for (const Held& held : left) refuse_(held, error);
  if (watcher.joinable()) watcher.join();
}

size_t Desk::waiting() {
  std::lock_guard<std::mutex> guard(lock_);
  return waiting_.size();
}

}  // namespace cortexfs
