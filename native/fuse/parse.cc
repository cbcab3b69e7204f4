#include "fuse/parse.h"

namespace cortexfs {

static bool has(const Napi::Object& from, const char* key) {
  Napi::Value value = from.Get(key);
  return !value.IsUndefined() && !value.IsNull();
}

static std::string text(const Napi::Object& from, const char* key) {
  Napi::Value value = from.Get(key);
  return value.IsString() ? value.As<Napi::String>().Utf8Value() : std::string();
}

static int64_t number(const Napi::Object& from, const char* key, int64_t absent) {
  Napi::Value value = from.Get(key);
  return value.IsNumber() ? value.As<Napi::Number>().Int64Value() : absent;
}

static uint32_t optional(const Napi::Object& from, const char* key) {
  return has(from, key) ? static_cast<uint32_t>(number(from, key, 0)) : UNSET;
}

static bool flag(const Napi::Object& from, const char* key) {
  Napi::Value value = from.Get(key);
  return value.IsBoolean() && value.As<Napi::Boolean>().Value();
}

bool parse_options(const Napi::Object& from, Options* out, std::string* fault) {
  out->mount_point = text(from, "mountPoint");
  out->allow_other = flag(from, "allowOther");
  out->is_rootless = flag(from, "rootless");
  out->wants_passthrough = flag(from, "passthrough");
  out->shows_backing_path = flag(from, "backingPathVisible");
  out->has_own_uid = has(from, "ownUid");
  if (has(from, "xattrPrefix")) out->xattr_prefix = text(from, "xattrPrefix");
  int64_t threads = number(from, "threads", 0), fresh = number(from, "freshMs", 1000), timeout = number(from, "upcallTimeoutMs", 10000);
  out->statfs_fd = static_cast<int>(number(from, "statfsFd", -1));
  int64_t nodes = number(from, "nodesMax", 0);
  if (out->mount_point.empty()) *fault = "mountPoint is empty";
  else if (threads < 0 || threads > 16) *fault = "threads is not 0..16";
  else if (fresh < 0 || fresh > 3600000) *fault = "freshMs is not 0..3600000";
  else if (timeout < 1 || timeout > 3600000) *fault = "upcallTimeoutMs is not 1..3600000";
  else if (out->statfs_fd < 0) *fault = "statfsFd is no descriptor";
  else if (nodes < 0 || nodes > 100000000) *fault = "nodesMax is not 0..100000000";
  if (!fault->empty()) return false;
  out->nodes_max = static_cast<size_t>(nodes);
  out->threads = static_cast<uint32_t>(threads);
  out->fresh_ms = static_cast<uint32_t>(fresh);
  out->timeout_ms = static_cast<uint32_t>(timeout);
  return true;
}

static bool parse_child(const Napi::Object& from, ZoneChild* out, std::string* fault) {
  Napi::Value match_value = from.Get("match");
  if (!match_value.IsObject()) {
    *fault = "a zone rule has no match";
    return false;
  }
  Napi::Object match = match_value.As<Napi::Object>();
  out->match.has_exact = has(match, "exact");
  out->match.exact = text(match, "exact");
  out->match.prefix = text(match, "prefix");
  out->match.suffix = text(match, "suffix");
  std::string grammar = text(match, "grammar");
  if (grammar == "name") out->match.grammar = Grammar::Name;
  else if (grammar == "uid") out->match.grammar = Grammar::Uid;
  else if (grammar == "alias") out->match.grammar = Grammar::Alias;
  else if (grammar == "attempt") out->match.grammar = Grammar::Attempt;
  else if (grammar == "temp") out->match.grammar = Grammar::Temp;
  else if (!grammar.empty()) *fault = "no grammar " + grammar;
  out->zone = static_cast<int>(number(from, "zone", HIDDEN));
  out->is_listed = !has(from, "isListed") || flag(from, "isListed");
  return fault->empty();
}

bool parse_zones(const Napi::Array& from, std::vector<Zone>* out, std::string* fault) {
  struct Verdict {
    const char* key;
    int Zone::*field;
  };
  static const Verdict verdicts[] = {
      {"create", &Zone::create},       {"mkdir", &Zone::mkdir},           {"mknodSpecial", &Zone::mknod_special},
      {"symlink", &Zone::symlink},     {"linkFrom", &Zone::link_from},    {"linkTo", &Zone::link_to},
      {"unlink", &Zone::unlink},       {"rmdir", &Zone::rmdir},           {"renameFrom", &Zone::rename_from},
      {"renameTo", &Zone::rename_to},  {"write", &Zone::write},           {"setattr", &Zone::setattr},
  };
  for (uint32_t i = 0; i < from.Length(); i++) {
    if (!from.Get(i).IsObject()) {
      *fault = "a zone is no object";
      return false;
    }
    Napi::Object object = from.Get(i).As<Napi::Object>();
    Zone zone;
    for (const Verdict& verdict : verdicts) {
      if (!object.Get(verdict.key).IsNumber()) *fault = std::string("a zone has no verdict for ") + verdict.key;
      int64_t value = number(object, verdict.key, -2);
      if (value < ASK || value > 4095) *fault = std::string("a zone verdict is no errno: ") + verdict.key;
      zone.*(verdict.field) = static_cast<int>(value);
    }
    zone.kind_file = text(object, "kindFile");
    zone.kind_dir = text(object, "kindDir");
    zone.file_mode = optional(object, "fileMode");
    zone.dir_mode = optional(object, "dirMode");
    zone.uid = optional(object, "uid");
    zone.gid = optional(object, "gid");
    zone.entry_ttl_ms = static_cast<uint32_t>(number(object, "entryTtlMs", 0));
    zone.attr_ttl_ms = static_cast<uint32_t>(number(object, "attrTtlMs", 0));
    std::string data = text(object, "data");
    if (data == "direct") zone.caching = Caching::Direct;
    else if (data == "keep") zone.caching = Caching::Keep;
    else if (data == "drop") zone.caching = Caching::Drop;
    else *fault = "a zone's data is not direct, keep or drop";
    zone.can_passthrough = flag(object, "passthrough") && zone.caching != Caching::Direct;
    zone.can_lock = flag(object, "locks");
    zone.is_volume = flag(object, "isVolume");
    zone.ask_miss = flag(object, "askMiss");
    zone.asks_only_links = flag(object, "asksOnlyLinks");
    zone.only_plain = flag(object, "onlyPlain");
    zone.only_tree = flag(object, "onlyTree");
    zone.only_owner = flag(object, "onlyOwner");
    zone.is_copied = flag(object, "isCopied");
    zone.only_append = flag(object, "onlyAppend");
    zone.is_object = flag(object, "isObject");
    zone.size_max = static_cast<uint32_t>(number(object, "sizeMax", 0));
    if (zone.is_copied && (zone.caching != Caching::Direct || zone.size_max == 0)) *fault = "a zone that is copied is direct and has a sizeMax";
    if (zone.is_object && zone.can_passthrough) *fault = "a zone with objects has no passthrough";
    zone.child_default = static_cast<int>(number(object, "childDefault", HIDDEN));
    Napi::Value children = object.Get("children");
    for (uint32_t j = 0; children.IsArray() && j < children.As<Napi::Array>().Length() && fault->empty(); j++) {
      ZoneChild child;
      Napi::Value rule = children.As<Napi::Array>().Get(j);
      if (!rule.IsObject()) *fault = "a zone rule is no object";
      else if (parse_child(rule.As<Napi::Object>(), &child, fault)) zone.children.push_back(std::move(child));
    }
    if (!fault->empty()) return false;
    out->push_back(std::move(zone));
  }
  auto is_zone = [&](int zone) { return zone == HIDDEN || (zone >= 0 && static_cast<size_t>(zone) < out->size()); };
  for (const Zone& zone : *out) {
    bool is_whole = is_zone(zone.child_default);
    for (const ZoneChild& child : zone.children) is_whole = is_whole && is_zone(child.zone);
    if (!is_whole) {
      *fault = "a zone rule leads to an unknown zone";
      return false;
    }
  }
  return true;
}

static bool parse_entry(const Napi::Object& from, Server* server, Entry* out, std::string* fault) {
  out->path = text(from, "path");
  std::string type = text(from, "type");
  out->kind = text(from, "kind");
  out->mode = has(from, "mode") ? static_cast<uint32_t>(number(from, "mode", 0)) & 07777 : UNSET;
  out->uid = optional(from, "uid");
  out->gid = optional(from, "gid");
  Napi::Value mtime = from.Get("mtimeMs");
  if (mtime.IsNumber()) out->mtime_ns = static_cast<int64_t>(mtime.As<Napi::Number>().DoubleValue() * 1000.0) * 1000;
  if (out->mtime_ns < 0) out->mtime_ns = 0;
  out->is_fixed = flag(from, "isFixed");
  out->ask_miss = flag(from, "askMiss");
  out->backing_path = text(from, "backingPath");
  out->has_ttl = has(from, "entryTtlMs") || has(from, "attrTtlMs");
  out->entry_ttl_ms = static_cast<uint32_t>(number(from, "entryTtlMs", 1000));
  out->attr_ttl_ms = static_cast<uint32_t>(number(from, "attrTtlMs", 1000));
  if (type == "dir") {
    out->type = EntryType::Dir;
  } else if (type == "file") {
    out->type = EntryType::File;
    Napi::Value body = from.Get("body");
    if (!body.IsBuffer()) *fault = "a file entry has no body: " + out->path;
    else {
      Napi::Buffer<char> bytes = body.As<Napi::Buffer<char>>();
      out->body = std::make_shared<const std::string>(bytes.Data(), bytes.Length());
      out->size = bytes.Length();
    }
    out->keep = text(from, "data") == "keep";
  } else if (type == "link") {
    out->type = EntryType::Link;
    out->target = text(from, "target");
    out->size = out->target.size();
    if (out->target.empty() || out->target.size() > 4095) *fault = "a link entry has no usable target: " + out->path;
  } else if (type == "live") {
    out->type = EntryType::Live;
    out->size = static_cast<uint64_t>(number(from, "sizeBytes", 0));
    out->entry_ttl_ms = out->attr_ttl_ms = 0;
  } else if (type == "backing") {
    out->type = EntryType::Backing;
    out->volume = static_cast<int>(number(from, "volume", -1));
    out->rel = text(from, "rel");
    out->zone = static_cast<int>(number(from, "zone", HIDDEN));
    if (!server->has_volume(out->volume)) *fault = "a backing entry names an unknown volume: " + out->path;
    else if (!server->zones().has(out->zone)) *fault = "a backing entry names an unknown zone: " + out->path;
  } else {
    *fault = "an entry has no known type: " + out->path;
  }
  if (out->type != EntryType::Backing && has(from, "zone")) {
    out->zone = static_cast<int>(number(from, "zone", HIDDEN));
    if (!server->zones().has(out->zone)) *fault = "an entry names an unknown zone: " + out->path;
  }
  if (out->type != EntryType::Backing) {
    if (out->mode == UNSET) out->mode = out->type == EntryType::Dir ? 0755 : out->type == EntryType::Link ? 0777 : 0444;
    if (out->uid == UNSET) out->uid = 0;
    if (out->gid == UNSET) out->gid = 0;
  }
  return fault->empty();
}

bool parse_tree(const Napi::Array& from, Server* server, Tree* out, std::string* fault) {
  for (uint32_t i = 0; i < from.Length(); i++) {
    Napi::HandleScope scope(from.Env());
    if (!from.Get(i).IsObject()) {
      *fault = "an entry is no object";
      return false;
    }
    Entry entry;
    if (!parse_entry(from.Get(i).As<Napi::Object>(), server, &entry, fault)) return false;
    std::string path = entry.path;
    bool is_name_good = path.empty() || (path.front() != '/' && check_name(entry.name()) == 0);
    if (!is_name_good || !out->add(std::move(entry))) {
      *fault = "an entry is doubled, badly named or stands before its parent: \"" + path + "\"";
      return false;
    }
  }
  const Entry* root = out->find("");
  if (root == nullptr) *fault = "the tree has no root entry";
  else if (root->type != EntryType::Dir && root->type != EntryType::Backing) *fault = "the root is no directory";
  return fault->empty();
}

}  // namespace cortexfs
