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

bool is_attempt(std::string_view s) {
  size_t first = s.find('-'), last = s.rfind('-');
  if (first == std::string_view::npos || first == last) return false;
  std::string_view pid = s.substr(0, first), nonce = s.substr(first + 1, last - first - 1), attempt = s.substr(last + 1);
  auto is_digits = [](std::string_view text, size_t max) {
    if (text.empty() || text.size() > max) return false;
    for (char c : text) {
      if (c < '0' || c > '9') return false;
    }
    return true;
  };
  if (nonce.empty() || nonce.size() > 32) return false;
  for (char c : nonce) {
    if (!is_alnum(c)) return false;
  }
  return is_digits(pid, 10) && is_digits(attempt, 4);
}

bool is_temp(std::string_view s) {
  size_t at = s.rfind(".tmp-");
  return at != std::string_view::npos && at > 0 && s[0] == '.' && is_name(s.substr(1, at - 1)) && is_attempt(s.substr(at + 5));
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
    case Grammar::Attempt: return is_attempt(name);
    case Grammar::Temp: return is_temp(name);
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
