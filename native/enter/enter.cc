// cortexfs-enter: the first program of every sandbox (agent-tool-security 7.4). It proves the restrictions that
// bubblewrap was asked for, sets the limits, and executes the payload. Nothing of it remains afterwards.
//
// argv[1..] are the payload's arguments. Descriptor 3 is the payload as it was checked (O_PATH), 4 the status socket.
// On it one LF says that the sandbox stands; the launcher answers with one byte. One errno name says that the payload
// has not run; the end without a name, after the LF, says that it does.
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

extern char** environ;

namespace {

constexpr int PAYLOAD_FD = 3;
constexpr int STATUS_FD = 4;
constexpr char PAYLOAD_PATH[] = "/run/cortexfs/payload";
constexpr int EXIT_REFUSED = 126;
constexpr int INIT_WAIT_US = 5000000;

[[noreturn]] void refuse(int number) {
  const char* name = strerrorname_np(number);
  char line[64];
  int size = snprintf(line, sizeof line, "%s\n", name == nullptr ? "EIO" : name);
  ssize_t put = send(STATUS_FD, line, static_cast<size_t>(size), MSG_NOSIGNAL);
  (void)put;
  _exit(EXIT_REFUSED);
}

// no_new_privs, a filter in force, and no capability in any set.
bool is_restricted() {
  if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return false;
  if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 2) return false;
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct sets[2];
  memset(sets, 0, sizeof sets);
  if (syscall(SYS_capget, &header, sets) != 0) return false;
  for (const auto& set : sets)
    if (set.effective != 0 || set.permitted != 0 || set.inheritable != 0) return false;
  for (int capability = 0; capability < 64; capability++) {
    int is_bound = prctl(PR_CAPBSET_READ, capability, 0, 0, 0);
    if (is_bound < 0) break;  // past the last capability of this kernel
    if (is_bound != 0) return false;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, capability, 0, 0) != 0) return false;
  }
  return true;
}

void set_limit(int resource, rlim_t value) {
  struct rlimit limit = {value, value};
  struct rlimit now;
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &now) != 0) refuse(errno);
  if (now.rlim_max < value) limit.rlim_cur = limit.rlim_max = now.rlim_max;
  if (setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) refuse(errno);
}

// Waits until the init of this sandbox serves as one. bubblewrap makes it die with its parent only after it has started
// us; a launcher killed before that would leave a sandbox that nobody ends. An orphan tells: once the init has reaped
// it, everything it does before it waits for children is done.
void await_init() {
  pid_t* orphan = static_cast<pid_t*>(mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (orphan == MAP_FAILED) refuse(errno);
  *orphan = 0;
  pid_t parent = fork();
  if (parent < 0) refuse(errno);
  if (parent == 0) {
    pid_t child = fork();
    if (child == 0) _exit(0);
    *orphan = child;
    _exit(0);
  }
  while (waitpid(parent, nullptr, 0) < 0)
    if (errno != EINTR) refuse(errno);
  if (*orphan <= 0) refuse(EAGAIN);
  for (int waited_us = 0; kill(*orphan, 0) == 0; waited_us += 100) {
    if (waited_us > INIT_WAIT_US) refuse(EHOSTDOWN);
    usleep(100);
  }
  munmap(orphan, sizeof(pid_t));
}

// Says that the sandbox stands, and waits for the launcher's word. A launcher that still speaks now dies later than the
// init began to die with it; one that is gone closes the socket, and the payload must not begin, for nobody would end it.
void await_launcher() {
  if (send(STATUS_FD, "\n", 1, MSG_NOSIGNAL) != 1) _exit(EXIT_REFUSED);
  char word;
  ssize_t got;
  do got = read(STATUS_FD, &word, 1);
  while (got < 0 && errno == EINTR);
  if (got != 1) _exit(EXIT_REFUSED);
}

bool is_same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// Whether the file at the bound path is a script. A file that cannot be read is none: its interpreter could not read
// it either.
bool is_script(const struct stat& checked) {
  int fd = open(PAYLOAD_PATH, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat opened;
  if (fstat(fd, &opened) != 0 || !is_same_file(opened, checked)) refuse(EACCES);
  char mark[2] = {};
  ssize_t got;
  do got = pread(fd, mark, sizeof mark, 0);
  while (got < 0 && errno == EINTR);
  close(fd);
  return got == 2 && mark[0] == '#' && mark[1] == '!';
}

}  // namespace

int main(int argc, char** argv) {
  if (syscall(SYS_close_range, PAYLOAD_FD, ~0U, CLOSE_RANGE_CLOEXEC) != 0) refuse(errno);
  if (!is_restricted()) refuse(EHOSTDOWN);
  await_init();
  await_launcher();

  set_limit(RLIMIT_NOFILE, 1024);
  set_limit(RLIMIT_CORE, 0);

  // The file is executed through the mount inside: through the descriptor from outside it would show its host path.
  int payload_fd = open(PAYLOAD_PATH, O_PATH | O_CLOEXEC | O_NOFOLLOW);
  if (payload_fd < 0) refuse(errno);
  struct stat checked, bound;
  if (fstat(PAYLOAD_FD, &checked) != 0 || fstat(payload_fd, &bound) != 0) refuse(errno);
  if (!S_ISREG(checked.st_mode) || !is_same_file(checked, bound)) refuse(EACCES);

  // bubblewrap sets PWD to the directory it changed to; it is not a name of section 8.
  unsetenv("PWD");
  if (argc < 1) refuse(EINVAL);
  argv[0] = const_cast<char*>(PAYLOAD_PATH);
  if (is_script(checked))
    execve(PAYLOAD_PATH, argv, environ);
  else
    syscall(SYS_execveat, payload_fd, "", argv, environ, AT_EMPTY_PATH);
  refuse(errno);
}
