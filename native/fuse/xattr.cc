// Extended attributes: what a node is, as text. None can be set.
#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

int Server::change_xattr(Call& c, bool is_set) {
  if (is_set && c.in.take_bytes(FUSE_COMPAT_SETXATTR_IN_SIZE) == nullptr) return MALFORMED;
  std::string_view name;
  if (!c.in.take_text(&name)) return MALFORMED;
  return name.starts_with(options_.xattr_prefix) ? EROFS : EOPNOTSUPP;
}

int Server::getxattr(Call& c, bool is_list) {
  const auto* in = c.in.take<fuse_getxattr_in>();
  std::string_view name;
  if (in == nullptr || (!is_list && !c.in.take_text(&name))) return MALFORMED;
  NodeRef node = nodes_.get(c.header->nodeid);
  if (!node) return ESTALE;
  if (!is_list && !name.starts_with(options_.xattr_prefix)) return name.starts_with("system.") ? EOPNOTSUPP : ENODATA;
  bool has_any = node->type == S_IFREG || node->type == S_IFDIR;
  std::string value;
  if (!has_any) {
    if (!is_list) return ENODATA;
  } else {
    TreeRef tree;
    const Entry* entry = nullptr;
    if (node->has_tree.load()) {
      tree = this->tree();
      entry = tree->find(nodes_.tree_path(node.get()));
      if (is_stale(c) && (entry == nullptr || !entry->is_fixed)) return ask_refresh(c);
    }
    if (node->is_generated && (entry == nullptr || entry->type != node->entry_type)) return ESTALE;
    fuse_attr_out attr;
    Body object;
    int error = find_object(c, node.get(), &object);
    if (error == 0) error = attributes(node.get(), &attr);
    if (error != 0) return error;
    if (object != nullptr) attr.attr.size = object->size();
    bool is_virtual = node->is_generated || object != nullptr;
    uint64_t size = node->type == S_IFDIR ? 0 : attr.attr.size;
    int zone = node->zone.load();
    std::string kind;
    if (node->is_generated) kind = entry->kind;
    else if (zones_.has(zone)) kind = node->type == S_IFDIR ? zones_.at(zone).kind_dir : zones_.at(zone).kind_file;
    std::string behind;
    if (node->is_generated) {
      behind = entry->backing_path;
    } else {
      int id = -1;
      std::string rel = nodes_.volume_path(node.get(), &id);
      const Volume* from = volume(id);
      if (from != nullptr) behind = rel.empty() ? from->host_path : from->host_path + "/" + rel;
    }
    std::string tokens = std::to_string(size / 4 + (size % 4 != 0 ? 1 : 0));
    const std::pair<const char*, std::string> all[] = {
        {"abi_path", nodes_.path(node.get())},
        {"kind", kind},
        {"origin", is_virtual ? "virtual" : "disk"},
        {"storage", is_virtual ? "memory" : "disk"},
        {"virtual", is_virtual ? "true" : "false"},
        {"backing_exists", behind.empty() ? "false" : "true"},
        {"backing_path", behind},
        {"bytes", std::to_string(size)},
        {"token_estimate", tokens},
        {"input_token_estimate", tokens},
        {"output_token_estimate", "0"},
        {"cache_bytes", "0"},
        {"cache_entries", "0"},
        {"cache_state", "none"},
        {"tokenizer", "byte-estimate-v1"},
    };
    bool is_found = false;
    std::string_view short_name = is_list ? std::string_view() : name.substr(options_.xattr_prefix.size());
    for (const auto& [key, text] : all) {
      if (strcmp(key, "backing_path") == 0 && (behind.empty() || !options_.shows_backing_path)) continue;
      if (is_list) {
        value += options_.xattr_prefix + key;
        value.push_back('\0');
      } else if (short_name == key) {
        value = text;
        is_found = true;
      }
    }
    if (!is_list && !is_found) return ENODATA;
  }
  if (in->size == 0) {
    fuse_getxattr_out out;
    out.size = static_cast<uint32_t>(value.size());
    out.padding = 0;
    send(c, &out, sizeof out);
    return 0;
  }
  if (value.size() > in->size) return ERANGE;
  send(c, value.data(), value.size());
  return 0;
}

}  // namespace cortexfs
