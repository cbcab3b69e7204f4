#include "fuse/zone.h"

namespace cortexfs {

static bool is_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_name(std::string_view s) {
  if (s.empty() || s.size() > 64 || !is_alnum(s[0])) return false;
  for (char c : s) {
    if (!is_alnum(c) && c != '.' && c != '_' && c != '+' && c != '-') return false;
  }
  return !s.ends_with(".sock") && !s.ends_with(".d");
}

bool is_uid(std::string_view s) {
  if (s.empty() || s.size() > 10 || (s[0] == '0' && s.size() > 1)) return false;
  uint64_t value = 0;
  for (char c : s) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value <= 4294967294u;
}

bool is_alias(std::string_view s) {
  for (std::string_view alias : {"main", "helper", "fast", "reason", "code", "vision"}) {
    if (s == alias) return true;
  }
  return false;
}

bool Match::holds(std::string_view name) const {
  if (has_exact && name != exact) return false;
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  if (!name.ends_with(suffix)) return false;
  name.remove_suffix(suffix.size());
  switch (grammar) {
    case Grammar::None: return true;
    case Grammar::Name: return is_name(name);
    case Grammar::Uid: return is_uid(name);
    case Grammar::Alias: return is_alias(name);
  }
  return false;
}

Class ZoneTable::classify(int parent_zone, std::string_view name) const {
  const Zone& zone = at(parent_zone);
  for (const ZoneChild& child : zone.children) {
    if (child.match.holds(name)) return {child.zone, child.zone != HIDDEN && child.is_listed};
  }
  return {zone.child_default, zone.child_default != HIDDEN};
}

}  // namespace cortexfs
