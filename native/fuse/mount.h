// Making and removing the kernel mount: mount(2) as root, fusermount3 otherwise.
#pragma once

#include <string>

namespace cortexfs {

struct MountFault {
  int error = 0;
  const char* syscall = "";
};

// Opens /dev/fuse and mounts it. The descriptor is close-on-exec.
MountFault mount_root(const std::string& mount_point, bool allow_other, int* device_fd);
// The same through the set-uid helper; it hands the descriptor over a socket.
MountFault mount_helper(const std::string& mount_point, bool allow_other, int* device_fd);
// "major:minor" of the topmost fuse.cortexfs mount on a path, from mountinfo without touching it; empty without one.
std::string find_mount(const std::string& mount_point);
// fusermount3 -u -q -z. 0 or an errno.
int unmount_helper(const std::string& mount_point);

}  // namespace cortexfs
