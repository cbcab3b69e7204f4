// The automaton that classifies backing entries: the zone of an entry follows from its parent's zone and its name.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cortexfs {

constexpr int ASK = -1;           // a verdict: TypeScript decides
constexpr int HIDDEN = -1;        // a zone: the name is not there
constexpr uint32_t UNSET = ~0u;   // no projected mode or owner

enum class Grammar : uint8_t { None, Name, Uid, Alias, Attempt, Temp };
enum class Caching : uint8_t { Direct, Keep, Drop };

// A condition on a name; empty parts hold for all names.
struct Match {
  std::string exact, prefix, suffix;
  bool has_exact = false;
  Grammar grammar = Grammar::None;

  bool holds(std::string_view name) const;
};

struct ZoneChild {
  Match match;
  int zone = HIDDEN;
  bool is_listed = true;
};

// One zone. A verdict is 0 (native), a positive errno, or ASK.
struct Zone {
  int create = 0, mkdir = 0, mknod_special = 0, symlink = 0, link_from = 0, link_to = 0, unlink = 0, rmdir = 0;
  int rename_from = 0, rename_to = 0, write = 0, setattr = 0;
  std::string kind_file, kind_dir;
  uint32_t file_mode = UNSET, dir_mode = UNSET, uid = UNSET, gid = UNSET;
  uint32_t entry_ttl_ms = 0, attr_ttl_ms = 0;
  Caching caching = Caching::Keep;
  bool can_passthrough = false, is_volume = false, ask_miss = false, can_lock = false;
  bool asks_only_links = false;     // a rename that stays in the zone asks for symbolic links alone
  bool only_plain = false;          // an entry that is no regular file and no directory is not there
  bool only_tree = false;           // a backing entry is not there unless the tree shows it
  bool only_owner = false;          // a backing entry is there for its owner alone
  bool is_copied = false;           // who opens for writing gets a private copy, which TypeScript publishes whole
  bool only_append = false;         // neither cut nor overwritten; TypeScript sees to it that it is opened with O_APPEND
  bool is_object = false;           // a program with NAME.d beside it reads as the text that TypeScript renders
  uint32_t size_max = 0;            // the most bytes a file may come to by writes; 0 = no limit
  std::vector<ZoneChild> children;
  int child_default = HIDDEN;

  // Whether an entry of this type (S_IFMT bits) exists in the zone.
  bool shows(uint32_t type) const { return !only_tree && (!only_plain || type == S_IFREG || type == S_IFDIR); }
};

// The zone of a child and whether a listing shows it.
struct Class {
  int zone;
  bool is_listed;
};

// All zones of a mount. Immutable once the mount exists, so it is read without a lock.
class ZoneTable {
 public:
  explicit ZoneTable(std::vector<Zone> zones) : zones_(std::move(zones)) {}
  const Zone& at(int zone) const { return zones_[static_cast<size_t>(zone)]; }
  bool has(int zone) const { return zone >= 0 && static_cast<size_t>(zone) < zones_.size(); }
  Class classify(int parent_zone, std::string_view name) const;

 private:
  std::vector<Zone> zones_;
};

bool is_name(std::string_view s);   // NAME of root-abi.md 2
bool is_uid(std::string_view s);    // UID of root-abi.md 2
bool is_alias(std::string_view s);  // root-abi.md 2.1
bool is_attempt(std::string_view s);  // pid "-" nonce "-" attempt of fuse.md 6.1
bool is_temp(std::string_view s);   // "." NAME ".tmp-" pid "-" nonce "-" attempt

}  // namespace cortexfs
