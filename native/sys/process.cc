// Processes by descriptor, accounts, and the namespaces a sandbox needs.
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <vector>

#include "sys/call.h"

#ifndef PIDFD_SIGNAL_PROCESS_GROUP
#define PIDFD_SIGNAL_PROCESS_GROUP (1U << 2)
#endif

namespace sys {

static Napi::Value PidfdOpen(const Napi::CallbackInfo& info) {
  int pid;
  if (!read_int(info, 0, "pidfd_open", &pid)) return info.Env().Undefined();
  long fd = syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0) return throw_errno(info.Env(), errno, "pidfd_open");
  return Napi::Number::New(info.Env(), static_cast<double>(fd));
}

// The pid that a pidfd names, from its fdinfo; -1 when the process is gone.
static int pid_of(int pidfd) {
  char path[64], line[128];
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
  FILE* facts = fopen(path, "re");
  if (facts == nullptr) return -1;
  int pid = -1;
  while (fgets(line, sizeof line, facts) != nullptr)
    if (sscanf(line, "Pid: %d", &pid) == 1) break;
  fclose(facts);
  return pid;
}

static Napi::Value PidfdSignal(const Napi::CallbackInfo& info) {
  int pidfd, number;
  if (!read_int(info, 0, "pidfd_send_signal", &pidfd) || !read_int(info, 1, "pidfd_send_signal", &number))
    return info.Env().Undefined();
  bool to_group = info[2].ToBoolean().Value();
  long result = syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, to_group ? PIDFD_SIGNAL_PROCESS_GROUP : 0u);
  if (result != 0 && errno == EINVAL && to_group) {
    // Kernels before 6.9. The descriptor still proves that the leader lives, so its number is not another group's.
    int pid = pid_of(pidfd);
    if (pid <= 1 || syscall(SYS_pidfd_send_signal, pidfd, 0, nullptr, 0) != 0)
      return Napi::Boolean::New(info.Env(), false);
    result = kill(-pid, number);
  }
  if (result == 0) return Napi::Boolean::New(info.Env(), true);
  if (errno == ESRCH) return Napi::Boolean::New(info.Env(), false);
  return throw_errno(info.Env(), errno, "pidfd_send_signal");
}

static Waited wait_exit(int pidfd, int timeout_ms) {
  struct timespec start, now;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int left = timeout_ms;;) {
    struct pollfd entry = {pidfd, POLLIN, 0};
    int ready = poll(&entry, 1, left);
    if (ready > 0) return {(entry.revents & POLLNVAL) ? EBADF : 0, true};
    if (ready < 0 && errno != EINTR) return {errno, false};
    clock_gettime(CLOCK_MONOTONIC, &now);
    long passed = (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
    if (passed >= timeout_ms) return {0, false};
    left = static_cast<int>(timeout_ms - passed);
  }
}

static Napi::Value PidfdWait(const Napi::CallbackInfo& info) {
  int pidfd, timeout_ms;
  if (!read_int(info, 0, "poll", &pidfd) || !read_int(info, 1, "poll", &timeout_ms)) return info.Env().Undefined();
  if (timeout_ms < 0) return throw_errno(info.Env(), EINVAL, "poll");
  return wait_on_thread(info.Env(), "poll", false, wait_exit, pidfd, timeout_ms);
}

static Napi::Value FindAccount(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  int uid;
  if (!read_int(info, 0, "getpwuid", &uid)) return env.Undefined();
  std::vector<char> text(16 * 1024);
  struct passwd record, *found = nullptr;
  int number;
  while ((number = getpwuid_r(static_cast<uid_t>(uid), &record, text.data(), text.size(), &found)) == ERANGE &&
         text.size() < (1u << 20))
    text.resize(text.size() * 2);
  if (number != 0 && number != ENOENT && number != ESRCH) return throw_errno(env, number, "getpwuid");
  if (found == nullptr) return env.Undefined();
  std::vector<gid_t> groups(64);
  int count = static_cast<int>(groups.size());
  while (getgrouplist(record.pw_name, record.pw_gid, groups.data(), &count) < 0)
    groups.resize(static_cast<size_t>(count));
  Napi::Object facts = Napi::Object::New(env);
  facts.Set("name", record.pw_name);
  facts.Set("gid", Napi::Number::New(env, record.pw_gid));
  Napi::Array list = Napi::Array::New(env);
  uint32_t at = 0;
  for (int i = 0; i < count; i++)
    if (groups[static_cast<size_t>(i)] != record.pw_gid)
      list.Set(at++, Napi::Number::New(env, groups[static_cast<size_t>(i)]));
  facts.Set("groups", list);
  return facts;
}

namespace {

struct Layer {
  const char* name;
  int flag;
};

// The user namespace first: it gives the right to make the others.
constexpr Layer LAYERS[] = {{"user", CLONE_NEWUSER}, {"mount", CLONE_NEWNS}, {"pid", CLONE_NEWPID},
                            {"uts", CLONE_NEWUTS},   {"ipc", CLONE_NEWIPC},  {"net", CLONE_NEWNET},
                            {"cgroup", CLONE_NEWCGROUP}};
constexpr size_t LAYER_COUNT = sizeof LAYERS / sizeof LAYERS[0];

// Runs in a forked child of a threaded process: system calls only.
void try_layers(int out_fd, uid_t uid, gid_t gid) {
  int numbers[LAYER_COUNT] = {};
  if (geteuid() == 0 && uid != 0 &&
      (syscall(SYS_setgroups, 0, nullptr) != 0 || syscall(SYS_setresgid, gid, gid, gid) != 0 ||
       syscall(SYS_setresuid, uid, uid, uid) != 0)) {
    numbers[0] = errno;
  } else {
    for (size_t i = 0; i < LAYER_COUNT; i++) {
      if (unshare(LAYERS[i].flag) != 0) numbers[i] = errno;
      // A security module may let the namespace be made and then refuse what it is for.
      else if (LAYERS[i].flag == CLONE_NEWNS && mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
        numbers[i] = errno;
      if (i == 0 && numbers[0] != 0) break;
    }
  }
  ssize_t put = write(out_fd, numbers, sizeof numbers);
  _exit(put == static_cast<ssize_t>(sizeof numbers) ? 0 : 1);
}

}  // namespace

static Napi::Value ProbeNamespaces(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  int uid, gid, fds[2];
  if (!read_int(info, 0, "unshare", &uid) || !read_int(info, 1, "unshare", &gid)) return env.Undefined();
  if (pipe2(fds, O_CLOEXEC) != 0) return throw_errno(env, errno, "pipe2");
  pid_t child = fork();
  if (child < 0) {
    int number = errno;
    close(fds[0]);
    close(fds[1]);
    return throw_errno(env, number, "fork");
  }
  if (child == 0) try_layers(fds[1], static_cast<uid_t>(uid), static_cast<gid_t>(gid));
  close(fds[1]);
  int numbers[LAYER_COUNT] = {};
  ssize_t got;
  do got = read(fds[0], numbers, sizeof numbers);
  while (got < 0 && errno == EINTR);
  close(fds[0]);
  int status;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  Napi::Array refused = Napi::Array::New(env);
  uint32_t at = 0;
  auto add = [&](const char* name, const char* code) {
    Napi::Object facts = Napi::Object::New(env);
    facts.Set("name", name);
    facts.Set("code", code);
    refused.Set(at++, facts);
  };
  if (got != static_cast<ssize_t>(sizeof numbers)) {
    add("user", "EIO");
    return refused;
  }
  for (size_t i = 0; i < LAYER_COUNT; i++)
    if (numbers[i] != 0) add(LAYERS[i].name, errno_name(numbers[i]));
  return refused;
}

void init_process(Napi::Env env, Napi::Object exports) {
  exports.Set("pidfdOpen", Napi::Function::New<PidfdOpen>(env));
  exports.Set("pidfdSignal", Napi::Function::New<PidfdSignal>(env));
  exports.Set("pidfdWait", Napi::Function::New<PidfdWait>(env));
  exports.Set("findAccount", Napi::Function::New<FindAccount>(env));
  exports.Set("probeNamespaces", Napi::Function::New<ProbeNamespaces>(env));
}

}  // namespace sys
