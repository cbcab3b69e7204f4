// Reading the shape of the tree: LOOKUP, GETATTR, READLINK, STATFS.
#include <fcntl.h>
#include <limits.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

int Server::lookup(Call& c) {
  std::string_view name;
  return c.in.take_text(&name) ? lookup_name(c, name) : MALFORMED;
}

int Server::lookup_name(Call& c, std::string_view name) {
  int error = check_name(name);
  if (error != 0) return error == EIO ? MALFORMED : error;
  NodeRef parent = nodes_.get(c.header->nodeid);
  if (!parent) return ESTALE;
  TreeRef tree;
  const Entry *at = nullptr, *entry = nullptr;
  if (parent->has_tree.load()) {
    tree = this->tree();
    at = tree->find(nodes_.tree_path(parent.get()));
    entry = at == nullptr ? nullptr : at->find_child(name);
    bool is_fixed = entry != nullptr ? entry->is_fixed : at != nullptr && at->is_fixed && at->type == EntryType::Backing;
    if (!is_fixed && is_stale(c)) return ask_refresh(c);
  }
  Child child;
  error = find_child(c, parent.get(), name, entry, at, &child);
  if (error == EMFILE || error == ENFILE) return ENOMEM;  // any other errno would detach what is mounted below the name
  if (error != 0) return error;
  NodeRef node = node_of(child, parent.get(), name);
  return reply_entry(c, node.get(), child);
}

int Server::getattr(Call& c) {
  const auto* in = c.in.take<fuse_getattr_in>();
  if (in == nullptr) return MALFORMED;
  NodeRef node = nodes_.get(c.header->nodeid);
  if (!node) return ESTALE;
  if (node->has_tree.load() && is_stale(c)) {
    TreeRef tree = this->tree();
    const Entry* entry = tree->find(nodes_.tree_path(node.get()));
    if (entry == nullptr || !entry->is_fixed) return ask_refresh(c);
  }
  Body object;
  int error = find_object(c, node.get(), &object);
  fuse_attr_out out;
  if (error == 0) error = attributes(node.get(), &out);
  if (error != 0) return error;
  if (object != nullptr) out.attr.size = object->size();
  HandleRef handle = (in->getattr_flags & FUSE_GETATTR_FH) != 0 ? handles_.get(in->fh) : nullptr;
  Stat copy;
  if (handle != nullptr && handle->copy != nullptr && stat_fd(handle->copy->fd, &copy) == 0) out.attr.size = copy.raw.stx_size;
  send(c, &out, sizeof out);
  return 0;
}

int Server::readlink(Call& c) {
  NodeRef node = nodes_.get(c.header->nodeid);
  if (!node) return ESTALE;
  if (node->type != S_IFLNK) return EINVAL;
  if (node->is_generated) {
    if (is_stale(c)) return ask_refresh(c);
    TreeRef tree = this->tree();
    const Entry* entry = tree->find(nodes_.tree_path(node.get()));
    if (entry == nullptr || entry->type != EntryType::Link) return ESTALE;
    send(c, entry->target.data(), entry->target.size());
    return 0;
  }
  Fd fd;
  int error = node_fd(node.get(), &fd);
  if (error != 0) return error;
  char text[PATH_MAX];
  ssize_t size = readlinkat(fd->fd, "", text, sizeof text);
  if (size < 0) return errno;
  send(c, text, static_cast<size_t>(size));
  return 0;
}

int Server::statfs(Call& c) {
  struct statfs now;
  if (fstatfs(options_.statfs_fd, &now) != 0) return errno;
  fuse_statfs_out out;
  memset(&out, 0, sizeof out);
  out.st.blocks = now.f_blocks;
  out.st.bfree = now.f_bfree;
  out.st.bavail = now.f_bavail;
  out.st.files = now.f_files;
  out.st.ffree = now.f_ffree;
  out.st.bsize = static_cast<uint32_t>(now.f_bsize);
  out.st.frsize = static_cast<uint32_t>(now.f_frsize);
  out.st.namelen = NAME_MAX_BYTES;
  send(c, &out, sizeof out);
  return 0;
}

}  // namespace cortexfs
