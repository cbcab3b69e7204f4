// Operations that make and remove names. The kernel has checked the modes; the zone decides here, then the backing side.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

std::string Server::child_path(Node* parent, std::string_view name) {
  std::string path = nodes_.path(parent);
  if (!path.empty()) path += "/";
  return path.append(name);
}

// Where a name lies on the backing side. EROFS for what only the tree makes.
int Server::find_target(Node* parent, std::string_view name, Target* out) {
  const Entry* entry = nullptr;
  TreeRef tree;
  if (parent->has_tree.load()) {
    tree = this->tree();
    const Entry* at = tree->find(nodes_.tree_path(parent));
    entry = at == nullptr ? nullptr : at->find_child(name);
  }
  if (entry != nullptr) {
    if (entry->type != EntryType::Backing && entry->zone != HIDDEN) {
      out->zone = entry->zone;  // only TypeScript can do anything to it
      return 0;
    }
    if (entry->type != EntryType::Backing || entry->rel.empty()) return EROFS;
    const Volume* from = volume(entry->volume);
    if (from == nullptr || from->root == nullptr) return EROFS;
    size_t slash = entry->rel.rfind('/');
    out->zone = entry->zone;
    out->volume = entry->volume;
    out->base = slash == std::string::npos ? entry->rel : entry->rel.substr(slash + 1);
    if (slash == std::string::npos) {
      out->dir = from->root;
      return 0;
    }
    int fd = -1;
    int error = open_beneath(from->root->fd, entry->rel.substr(0, slash).c_str(), O_PATH | O_DIRECTORY, 0, false, &fd);
    if (error == 0) out->dir = std::make_shared<FdBox>(fd);
    return error;
  }
  if (parent->is_generated) return EROFS;
  if (parent->type != S_IFDIR) return ENOTDIR;
  int zone = parent->zone.load();
  if (!zones_.has(zone)) return ESTALE;
  out->zone = zones_.classify(zone, name).zone;
  if (out->zone == HIDDEN) return EROFS;
  out->volume = parent->volume.load();
  out->base = name;
  return node_fd(parent, &out->dir);
}

int Server::judge(Call& c, int verdict, Question question, const std::function<void(Upcall&)>& describe) {
  if (verdict != ASK) return verdict;
  if (c.verdicts.is_asked) return 0;
  Upcall upcall;
  upcall.question = question;
  describe(upcall);
  return park(c, std::move(upcall));
}

// Answers with the entry that now is there.
int Server::finish_create(Call& c, Node* parent, std::string_view name, const Target& target) {
  Child child;
  int error = stat_name(target.dir->fd, target.base.c_str(), &child.stat);
  if (error != 0) return error;
  child.is_backing = true;
  child.found.identity = child.stat.identity();
  child.found.type = child.stat.raw.stx_mode & S_IFMT;
  child.found.parent = parent;
  child.found.name = name;
  child.found.zone = target.zone;
  child.found.volume = target.volume;
  if (zones_.at(target.zone).is_volume && child.found.type == S_IFDIR) {
    child.found.is_volume_root = true;
    child.found.volume = volume_below(child.stat, std::string());
    if (child.found.volume < 0) return ENOMEM;
  }
  NodeRef node = node_of(child, parent, name);
  return reply_entry(c, node.get(), child);
}

// Gives a new node to the caller where fsuid could not do it: owner, and the group unless the directory decides it.
static int give(const Caller& caller, const Call& c, const Target& target) {
  if (!caller.needs_chown()) return 0;
  Stat dir;
  int error = stat_fd(target.dir->fd, &dir);
  if (error != 0) return error;
  gid_t gid = (dir.raw.stx_mode & S_ISGID) != 0 ? static_cast<gid_t>(-1) : c.header->gid;
  return fchownat(target.dir->fd, target.base.c_str(), c.header->uid, gid, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
}

// The parent of a name that is to be changed, and what the name means there.
int Server::aim(const Call& c, std::string_view name, NodeRef* parent, Target* target) {
  int error = check_name(name);
  if (error != 0) return error == EIO ? MALFORMED : error;
  *parent = nodes_.get(c.header->nodeid);
  return *parent ? find_target(parent->get(), name, target) : ESTALE;
}

int Server::create(Call& c) {
  const auto* in = c.in.take<fuse_create_in>();
  std::string_view name;
  if (in == nullptr || !c.in.take_text(&name)) return MALFORMED;
  NodeRef parent;
  Target target;
  int error = aim(c, name, &parent, &target);
  if (error != 0) return error;
  error = judge(c, zones_.at(target.zone).create, Question::Create, [&](Upcall& upcall) {
    upcall.path = child_path(parent.get(), name);
    upcall.mode = in->mode;
    upcall.flags = in->flags;
  });
  if (error == 0 && target.dir == nullptr) error = EROFS;
  if (error != 0) return error;
  // Always exclusive: the kernel has checked no right to a file that came to be there meanwhile; ESTALE makes it look again.
  uint64_t flags = (in->flags & (O_ACCMODE | O_APPEND | O_SYNC | O_DSYNC)) | O_CREAT | O_EXCL | O_NOCTTY;
  int fd = -1;
  {
    Caller caller(is_root_ && !options_.has_own_uid, c.header->uid, c.header->gid);
    error = open_beneath(target.dir->fd, target.base.c_str(), flags, in->mode & 07777, false, &fd);
    if (error == 0) error = give(caller, c, target);
  }
  if (error == EEXIST && (in->flags & O_EXCL) == 0) return ESTALE;
  if (error != 0) {
    if (fd >= 0) close(fd);
    return error == EMFILE ? ENFILE : error;
  }
  auto handle = std::make_shared<Handle>();
  handle->fd = std::make_shared<FdBox>(fd);
  handle->flags = in->flags;
  handle->size_max = zones_.at(target.zone).size_max;
  Child child;
  error = stat_fd(fd, &child.stat);
  if (error != 0) return error;
  child.is_backing = true;
  child.found.identity = child.stat.identity();
  child.found.type = child.stat.raw.stx_mode & S_IFMT;
  child.found.parent = parent.get();
  child.found.name = name;
  child.found.zone = target.zone;
  child.found.volume = target.volume;
  NodeRef node = node_of(child, parent.get(), name);
  struct {
    fuse_entry_out entry;
    fuse_open_out open;
  } out;
  fill_entry(node.get(), child, &out.entry);
  nodes_.add_lookup(node.get());
  uint64_t id = node->id;
  handle->node = std::move(node);
  finish_open(handle.get(), target.zone, child.stat, &out.open);
  out.open.fh = handles_.add(handle);
  if (send(c, &out, sizeof out) != 0) {
    close_handle(out.open.fh);
    nodes_.forget(id, 1);
  }
  return 0;
}

int Server::mknod(Call& c) {
  const auto* in = c.in.take<fuse_mknod_in>();
  std::string_view name;
  if (in == nullptr || !c.in.take_text(&name)) return MALFORMED;
  NodeRef parent;
  Target target;
  int error = aim(c, name, &parent, &target);
  if (error != 0) return error;
  const Zone& zone = zones_.at(target.zone);
  uint32_t type = in->mode & S_IFMT;
  bool is_file = type == S_IFREG || type == 0;
  bool is_special = type == S_IFIFO || type == S_IFSOCK;
  if (!is_file && !is_special) return zone.create > 0 ? zone.create : EPERM;
  error = judge(c, is_file ? zone.create : zone.mknod_special, is_file ? Question::Create : Question::Mknod, [&](Upcall& upcall) {
    upcall.path = child_path(parent.get(), name);
    upcall.mode = in->mode;
  });
  if (error == 0 && target.dir == nullptr) error = EROFS;
  if (error != 0) return error;
  {
    Caller caller(is_root_ && !options_.has_own_uid, c.header->uid, c.header->gid);
    if (mknodat(target.dir->fd, target.base.c_str(), is_file ? (in->mode & 07777) | S_IFREG : in->mode, 0) != 0) return errno;
    error = give(caller, c, target);
  }
  return error != 0 ? error : finish_create(c, parent.get(), name, target);
}

int Server::mkdir(Call& c) {
  const auto* in = c.in.take<fuse_mkdir_in>();
  std::string_view name;
  if (in == nullptr || !c.in.take_text(&name)) return MALFORMED;
  if (c.verdicts.is_done) return lookup_name(c, name);
  NodeRef parent;
  Target target;
  int error = aim(c, name, &parent, &target);
  if (error != 0) return error;
  error = judge(c, zones_.at(target.zone).mkdir, Question::Mkdir, [&](Upcall& upcall) {
    upcall.path = child_path(parent.get(), name);
    upcall.mode = in->mode;
  });
  if (error == 0 && target.dir == nullptr) error = EROFS;
  if (error != 0) return error;
  {
    Caller caller(is_root_ && !options_.has_own_uid, c.header->uid, c.header->gid);
    if (mkdirat(target.dir->fd, target.base.c_str(), in->mode & 07777) != 0) return errno;
    error = give(caller, c, target);
  }
  return error != 0 ? error : finish_create(c, parent.get(), name, target);
}

int Server::symlink(Call& c) {
  std::string_view name, text;
  if (!c.in.take_text(&name) || !c.in.take_text(&text)) return MALFORMED;
  NodeRef parent;
  Target target;
  int error = aim(c, name, &parent, &target);
  if (error != 0) return error;
  if (text.empty()) return ENOENT;
  if (text.size() > 4095) return ENAMETOOLONG;
  error = judge(c, zones_.at(target.zone).symlink, Question::Symlink, [&](Upcall& upcall) {
    upcall.path = child_path(parent.get(), name);
    upcall.target = text;
    upcall.mode = S_IFLNK | 0777;
  });
  if (error == 0 && target.dir == nullptr) error = EROFS;
  if (error != 0) return error;
  {
    Caller caller(is_root_ && !options_.has_own_uid, c.header->uid, c.header->gid);
    if (symlinkat(std::string(text).c_str(), target.dir->fd, target.base.c_str()) != 0) return errno;
    error = give(caller, c, target);
  }
  return error != 0 ? error : finish_create(c, parent.get(), name, target);
}

int Server::link(Call& c) {
  const auto* in = c.in.take<fuse_link_in>();
  std::string_view name;
  if (in == nullptr || !c.in.take_text(&name)) return MALFORMED;
  int error = check_name(name);
  if (error != 0) return error == EIO ? MALFORMED : error;
  NodeRef parent = nodes_.get(c.header->nodeid), source = nodes_.get(in->oldnodeid);
  if (!parent || !source) return ESTALE;
  if (source->is_generated) return EROFS;
  Target target;
  error = find_target(parent.get(), name, &target);
  if (error != 0) return error;
  int from = source->zone.load();
  if (!zones_.has(from)) return ESTALE;
  int verdict = zones_.at(from).link_from > 0 ? zones_.at(from).link_from : zones_.at(target.zone).link_to;
  if (verdict <= 0 && zones_.at(from).link_from == ASK) verdict = ASK;
  if (verdict <= 0 && source->type == S_IFDIR) return EPERM;
  error = judge(c, verdict, Question::Link, [&](Upcall& upcall) {
    upcall.path = nodes_.path(source.get());
    upcall.path2 = child_path(parent.get(), name);
  });
  if (error == 0 && target.dir == nullptr) error = EROFS;
  if (error != 0) return error;
  if (source->volume.load() != target.volume) return EXDEV;
  Fd fd;
  error = node_fd(source.get(), &fd);
  if (error != 0) return error;
  char path[40];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd->fd);
  if (linkat(AT_FDCWD, path, target.dir->fd, target.base.c_str(), AT_SYMLINK_FOLLOW) != 0) return errno;
  return finish_create(c, parent.get(), name, target);
}

int Server::remove(Call& c, bool is_dir) {
  std::string_view name;
  if (!c.in.take_text(&name)) return MALFORMED;
  if (c.verdicts.is_done) return send(c, nullptr, 0);
  NodeRef parent;
  Target target;
  int error = aim(c, name, &parent, &target);
  if (error != 0) return error;
  const Zone& zone = zones_.at(target.zone);
  error = judge(c, is_dir ? zone.rmdir : zone.unlink, is_dir ? Question::Rmdir : Question::Unlink, [&](Upcall& upcall) {
    upcall.path = child_path(parent.get(), name);
  });
  if (error == 0 && target.dir == nullptr) error = EROFS;
  if (error != 0) return error;
  // A node the kernel knows must be found after its name is gone: its descriptor is opened before.
  Stat stat;
  error = stat_name(target.dir->fd, target.base.c_str(), &stat);
  if (error != 0) return error;
  NodeRef node = nodes_.find(stat.identity());
  Fd fd;
  if (node && nodes_.find_fd(node.get()) == nullptr) {
    int opened = -1;
    if (open_beneath(target.dir->fd, target.base.c_str(), O_PATH, 0, false, &opened) == 0) fd = std::make_shared<FdBox>(opened);
  }
  if (unlinkat(target.dir->fd, target.base.c_str(), is_dir ? AT_REMOVEDIR : 0) != 0) return errno;
  if (node) nodes_.removed(node.get(), parent.get(), name, fd);
  send(c, nullptr, 0);
  return 0;
}

}  // namespace cortexfs
