// RENAME and RENAME2.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "fuse/server.h"

namespace cortexfs {

static bool is_link(const Target& target) {
  Stat stat;
  return stat_name(target.dir->fd, target.base.c_str(), &stat) == 0 && S_ISLNK(stat.raw.stx_mode);
}

int Server::rename(Call& c, bool has_flags) {
  uint64_t to_id;
  uint32_t flags = 0;
  if (has_flags) {
    const auto* in = c.in.take<fuse_rename2_in>();
    if (in == nullptr) return MALFORMED;
    to_id = in->newdir;
    flags = in->flags;
  } else {
    const auto* in = c.in.take<fuse_rename_in>();
    if (in == nullptr) return MALFORMED;
    to_id = in->newdir;
  }
  std::string_view from_name, to_name;
  if (!c.in.take_text(&from_name) || !c.in.take_text(&to_name)) return MALFORMED;
  for (std::string_view name : {from_name, to_name}) {
    int error = check_name(name);
    if (error != 0) return error == EIO ? MALFORMED : error;
  }
  if (c.verdicts.is_done) return send(c, nullptr, 0);
  if (flags != 0 && flags != RENAME_NOREPLACE && flags != RENAME_EXCHANGE) return EINVAL;
  NodeRef from_dir = nodes_.get(c.header->nodeid), to_dir = nodes_.get(to_id);
  if (!from_dir || !to_dir) return ESTALE;
  Target from, to;
  int error = find_target(from_dir.get(), from_name, &from);
  if (error == 0) error = find_target(to_dir.get(), to_name, &to);
  if (error != 0) return error;
  const Zone &from_zone = zones_.at(from.zone), &to_zone = zones_.at(to.zone);
  int verdicts[4] = {from_zone.rename_from, to_zone.rename_to, 0, 0};
  if (flags == RENAME_EXCHANGE) {
    verdicts[2] = to_zone.rename_from;
    verdicts[3] = from_zone.rename_to;
  }
  int verdict = 0;
  for (int one : verdicts) {
    if (one > 0) return one;
    if (one == ASK) verdict = ASK;
  }
  if (verdict == ASK && from.zone == to.zone && from_zone.asks_only_links && !is_link(from) &&
      (flags != RENAME_EXCHANGE || !is_link(to))) {
    verdict = 0;
  }
  error = judge(c, verdict, Question::Rename, [&](Upcall& upcall) {
    upcall.path = child_path(from_dir.get(), from_name);
    upcall.path2 = child_path(to_dir.get(), to_name);
    upcall.flags = flags;
  });
  if (error == 0 && (from.dir == nullptr || to.dir == nullptr)) error = EROFS;
  if (error != 0) return error;
  if (from.volume != to.volume) return EXDEV;

  // A known node that is replaced must be found after its name is gone: its descriptor is opened before.
  NodeRef replaced;
  Fd replaced_fd;
  Stat stat;
  if (flags == 0 && stat_name(to.dir->fd, to.base.c_str(), &stat) == 0) {
    replaced = nodes_.find(stat.identity());
    if (replaced && nodes_.find_fd(replaced.get()) == nullptr) {
      int opened = -1;
      if (open_beneath(to.dir->fd, to.base.c_str(), O_PATH, 0, false, &opened) == 0) {
        replaced_fd = std::make_shared<FdBox>(opened);
      }
    }
  }
  if (syscall(SYS_renameat2, from.dir->fd, from.base.c_str(), to.dir->fd, to.base.c_str(), flags) != 0) return errno;
  NodeRef moved;
  if (stat_name(to.dir->fd, to.base.c_str(), &stat) == 0) moved = nodes_.find(stat.identity());
  // Two names of one inode: rename does nothing, and the node keeps a name that exists.
  if (replaced && replaced.get() != moved.get()) nodes_.removed(replaced.get(), to_dir.get(), to_name, replaced_fd);
  if (moved) nodes_.moved(moved.get(), to_dir.get(), to_name, to.zone, zones_);
  if (flags == RENAME_EXCHANGE && stat_name(from.dir->fd, from.base.c_str(), &stat) == 0) {
    NodeRef other = nodes_.find(stat.identity());
    if (other) nodes_.moved(other.get(), from_dir.get(), from_name, from.zone, zones_);
  }
  send(c, nullptr, 0);
  return 0;
}

}  // namespace cortexfs
