// A mutex for short critical sections: a thread that finds it taken looks again for a moment before it sleeps, since a
// sleep and its wake-up cost more than the section does.
#pragma once

#include <pthread.h>

namespace cortexfs {

class BriefMutex {
 public:
  BriefMutex() {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&mutex_, &kind);
    pthread_mutexattr_destroy(&kind);
  }
  ~BriefMutex() { pthread_mutex_destroy(&mutex_); }
  BriefMutex(const BriefMutex&) = delete;
  BriefMutex& operator=(const BriefMutex&) = delete;
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_;
};

}  // namespace cortexfs
