#include "fuse/mount.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

extern char** environ;

namespace cortexfs {

MountFault mount_root(const std::string& mount_point, bool allow_other, int* device_fd) {
  int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fd < 0) return {errno == ENOENT || errno == ENXIO ? ENODEV : errno, "open"};
  char data[160];
  snprintf(data, sizeof data, "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions%s", fd, geteuid(), getegid(),
           allow_other ? ",allow_other" : "");
  if (mount("cortexfs", mount_point.c_str(), "fuse.cortexfs", MS_NOSUID | MS_NODEV | MS_NOATIME, data) != 0) {
    int error = errno;
    close(fd);
    return {error, "mount"};
  }
  *device_fd = fd;
  return {};
}

// Starts fusermount3 and waits for it; `comm_fd` < 0 = none. 0 or an errno.
static int run_helper(const std::vector<std::string>& args, int comm_fd, pid_t* pid) {
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  std::string comm = "_FUSE_COMMFD=" + std::to_string(comm_fd);
  std::vector<char*> env;
  for (char** at = environ; *at != nullptr; at++) {
    if (strncmp(*at, "_FUSE_COMMFD=", 13) != 0) env.push_back(*at);
  }
  if (comm_fd >= 0) env.push_back(const_cast<char*>(comm.c_str()));
  env.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (comm_fd >= 0) posix_spawn_file_actions_adddup2(&actions, comm_fd, comm_fd);  // onto itself: stays open in the child
  int error = posix_spawnp(pid, "fusermount3", &actions, nullptr, argv.data(), env.data());
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

static int wait_helper(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return errno;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : EPERM;
}

static int receive_fd(int socket_fd) {
  char byte;
  iovec part{&byte, 1};
  union {
    cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  msghdr message;
  memset(&message, 0, sizeof message);
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t got;
  do {
    got = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return -1;
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head == nullptr || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(sizeof(int))) return -1;
  int fd;
  memcpy(&fd, CMSG_DATA(head), sizeof fd);
  return fd;
}

MountFault mount_helper(const std::string& mount_point, bool allow_other, int* device_fd) {
  if (access("/dev/fuse", F_OK) != 0) return {ENODEV, "open"};
  struct stat st;
  if (stat(mount_point.c_str(), &st) != 0) return {errno, "stat"};
  if (!S_ISDIR(st.st_mode)) return {ENOTDIR, "stat"};
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return {errno, "socketpair"};
  std::string options = "fsname=cortexfs,subtype=cortexfs,nosuid,nodev,noatime,default_permissions";
  if (allow_other) options += ",allow_other";
  pid_t pid = -1;
  int error = run_helper({"fusermount3", "-o", options, "--", mount_point}, pair[0], &pid);
  close(pair[0]);
  if (error != 0) {
    close(pair[1]);
    return {error, "posix_spawn"};
  }
  int fd = receive_fd(pair[1]);
  close(pair[1]);
  error = wait_helper(pid);
  if (fd < 0) return {error != 0 ? error : EIO, "fusermount3"};
  *device_fd = fd;
  return {};
}

// mountinfo writes blanks and backslashes of a path as octal numbers.
static std::string unescape(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain.push_back(static_cast<char>(strtol(text.substr(i + 1, 3).c_str(), nullptr, 8)));
      i += 3;
    } else {
      plain.push_back(text[i]);
    }
  }
  return plain;
}

std::string find_mount(const std::string& mount_point) {
  std::string device;
  FILE* file = fopen("/proc/self/mountinfo", "re");
  if (file == nullptr) return device;
  char* line = nullptr;
  size_t size = 0;
  while (getline(&line, &size, file) > 0) {
    std::vector<std::string> fields;
    char* rest = nullptr;
    for (char* word = strtok_r(line, " \n", &rest); word != nullptr; word = strtok_r(nullptr, " \n", &rest)) fields.emplace_back(word);
    if (fields.size() < 8 || unescape(fields[4]) != mount_point) continue;
    size_t dash = 6;
    while (dash < fields.size() && fields[dash] != "-") dash++;
    bool is_ours = dash + 1 < fields.size() && fields[dash + 1] == "fuse.cortexfs";
    device = is_ours ? fields[2] : std::string();
  }
  free(line);
  fclose(file);
  return device;
}

int unmount_helper(const std::string& mount_point) {
  pid_t pid = -1;
  int error = run_helper({"fusermount3", "-u", "-q", "-z", "--", mount_point}, -1, &pid);
  return error != 0 ? error : wait_helper(pid);
}

}  // namespace cortexfs
