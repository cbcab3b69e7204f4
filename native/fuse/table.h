// The node table: every node the kernel still knows, with its lookup count, its last name and, for some, a descriptor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fuse/backing.h"
#include "fuse/brief.h"
#include "fuse/tree.h"

namespace cortexfs {

constexpr uint64_t ROOT_NODE = 1;  // FUSE_ROOT_ID

class NodeTable;
struct Node;

// How the data of a node is served while handles are open; decided at the first open, kept until the last close.
enum class Mode : uint8_t { Closed, Cached, Direct, Passthrough };

// What only some nodes need. Guarded by the table's lock.
struct Extra {
  std::string tree_path;              // path in the generated tree
  bool has_tree = false;
  int tree_volume = -1;               // of a backing entry: where it was found
  std::string tree_rel;
  Fd fd;                              // O_PATH, counted in the limit unless pinned
  bool is_pinned = false;             // unlinked: the descriptor is all that leads to the node
  Node *older = nullptr, *newer = nullptr;  // list of kept descriptors by use
  std::vector<Fd> open_fds;           // one for each open data handle of a backing node
  uint32_t opens = 0;                 // open data handles
  Mode mode = Mode::Closed;
  uint32_t backing_id = 0;            // registered with the kernel while mode is Passthrough
  bool was_opened = false;            // the facts of the last open, for the page cache
  uint64_t opened_size = 0;
  int64_t opened_mtime_ns = 0;
  Body opened_body;
  std::vector<std::pair<uint64_t, uint64_t>> live;  // open rendered handles: (handle, size), newest last
};

struct Node {
  uint64_t id = 0;                    // immutable
  Identity identity;                  // immutable; generated: only ino
  uint32_t type = 0;                  // S_IFMT bits, immutable
  bool is_generated = false;          // immutable
  EntryType entry_type = EntryType::Backing;  // immutable, of a generated node
  std::atomic<int16_t> zone{HIDDEN};
  std::atomic<int16_t> volume{-1};
  std::atomic<bool> has_tree{false};
  bool is_volume_root = false;        // table lock
  bool is_unlinked = false;           // table lock
  bool is_indexed = false;            // table lock: found by identity
  uint32_t refs = 0;                  // table lock: requests, handles and children that hold it
  uint64_t lookups = 0;               // table lock: references of the kernel
  uint32_t looked_at = 0;             // table lock: when the kernel last got one, in thousands of lookups
  Node* parent = nullptr;             // table lock; counted
  std::unique_ptr<char[]> name;       // table lock; the name it was last found by
  std::unique_ptr<Extra> extra;       // table lock
};

// A counted hold on a node.
class NodeRef {
 public:
  NodeRef() = default;
  NodeRef(NodeTable* table, Node* node) : table_(table), node_(node) {}
  NodeRef(NodeRef&& other) noexcept : table_(other.table_), node_(other.node_) { other.node_ = nullptr; }
  NodeRef& operator=(NodeRef&& other) noexcept;
  NodeRef(const NodeRef&) = delete;
  NodeRef& operator=(const NodeRef&) = delete;
  ~NodeRef() { reset(); }
  void reset();
  Node* operator->() const { return node_; }
  Node* get() const { return node_; }
  explicit operator bool() const { return node_ != nullptr; }

 private:
  NodeTable* table_ = nullptr;
  Node* node_ = nullptr;
};

// A backing node as it was just found.
struct Found {
  Identity identity;
  uint32_t type = 0;
  Node* parent = nullptr;             // null for the root
  std::string_view name;
  int zone = HIDDEN;
  int volume = -1;
  bool is_volume_root = false;
  const Entry* entry = nullptr;       // the tree entry that shows it, if one does
};

// The way to a node's descriptor: `rel` below `base`; `base_node` instead of `base` when that one must be opened first.
struct Route {
  Fd base;
  int volume = -1;                    // the base is this volume's directory
  NodeRef base_node;
  std::string rel;
  bool is_across = false;
};

class NodeTable {
 public:
  static constexpr size_t KEPT_FDS_MAX = 4096;
  static constexpr uint64_t GENERATED_BASE = 1ULL << 62;
  static constexpr uint64_t FOREIGN_BASE = 1ULL << 63;

  explicit NodeTable(uint64_t main_dev) : main_dev_(main_dev) { slots_.resize(2); }
  ~NodeTable();
  NodeTable(const NodeTable&) = delete;
  NodeTable& operator=(const NodeTable&) = delete;

  // The node of an id the kernel gave; empty for an unknown one.
  NodeRef get(uint64_t id);
  NodeRef hold(Node* node);
  void put(Node* node);
  // The node of a generated path; made when new. It is never freed: its numbers are fixed for the life of the mount.
  NodeRef ensure_generated(const Entry& entry);
  // The node of a backing inode, with its newest name; made when new.
  NodeRef ensure_backing(const Found& found);
  // Node 1 as a backing directory. Only before serving starts.
  void seed_root(const Found& found);

  void add_lookup(Node* node);
  // False when the node was not looked up so often.
  bool forget(uint64_t id, uint64_t count);
  NodeRef find(const Identity& identity);

  uint64_t shown_ino(const Identity& identity);
  uint64_t shown_ino(const Node& node);

  // Descriptors.
  Fd find_fd(Node* node);                      // kept or of an open handle
  void keep_fd(Node* node, const Fd& fd);      // evicts the least recently used beyond the limit
  Route route(Node* node);
  // Parent and last name; false for a node without one (the root, an unlinked one).
  bool find_name(Node* node, NodeRef* parent, std::string* name);
  std::string tree_path(Node* node);
  std::string path(Node* node);                // relative to the mount
  std::string volume_path(Node* node, int* volume);  // relative to the volume's directory

  // Changes of names.
  void removed(Node* node, Node* parent, std::string_view name, const Fd& fd);
  void moved(Node* node, Node* parent, std::string_view name, int zone, const class ZoneTable& zones);

  // Calls `visit(extra)` with the table locked; the extra part is made when missing.
  template <class F>
  auto with_extra(Node* node, F visit) {
    std::lock_guard<BriefMutex> guard(lock_);
    return visit(extra_of(node));
  }

  // trim.cc. A name the kernel holds for one that lies in no generated tree.
  struct Name {
    uint64_t parent;
    std::string name;
  };
  // Names of regular files that nothing but the kernel holds, at most `count`, longest not looked up.
  std::vector<Name> coldest(size_t count);
  // Nodes freed since this was last asked.
  uint64_t take_freed() { return freed_.exchange(0); }
  uint64_t freed() const { return freed_.load(std::memory_order_relaxed); }
  // Gives the room of freed nodes back.
  void shrink();

  size_t size() const { return backing_nodes_.load(std::memory_order_relaxed); }
  size_t kept_fds();

 private:
  struct Key {
    uint64_t dev, ino;
    bool operator==(const Key& o) const { return dev == o.dev && ino == o.ino; }
  };
  struct KeyHash {
    size_t operator()(const Key& k) const { return (k.ino * 0x9e3779b97f4a7c15ULL) ^ (k.dev * 0xc2b2ae3d27d4eb4fULL); }
  };
  struct Slot {
    Node* node = nullptr;
    uint32_t generation = 0;
  };

  static Extra& extra_of(Node* node);
  Node* new_node(bool is_root);
  void set_name(Node* node, Node* parent, std::string_view name, std::vector<Fd>* closing);
  void put_locked(Node* node, std::vector<Fd>* closing);
  void drop_fd(Node* node, std::vector<Fd>* closing);
  void list_push(Node* node);
  void list_remove(Node* node);
  std::string path_locked(const Node* node) const;

  BriefMutex lock_;                            // guards all below, and what Node and Extra say
  std::vector<Slot> slots_;                    // by the low half of an id; 0 unused, 1 the root
  std::vector<uint32_t> free_slots_;
  std::unordered_map<Key, Node*, KeyHash> by_identity_;
  std::unordered_map<std::string, Node*> by_path_;   // generated nodes, key = type digit + path
  std::unordered_map<uint64_t, uint64_t> devices_;   // foreign device -> index
  std::unordered_map<uint64_t, std::unordered_map<uint64_t, uint64_t>> odd_inos_;
  uint64_t next_generated_ = GENERATED_BASE + 1;
  uint64_t next_odd_ = GENERATED_BASE + (1ULL << 61);
  uint64_t lookups_ = 0;                       // all that were ever counted
  size_t kept_fds_ = 0;
  std::atomic<size_t> backing_nodes_{0};       // written with the lock held, read without
  std::atomic<uint64_t> freed_{0};
  Node *oldest_ = nullptr, *newest_ = nullptr;
  const uint64_t main_dev_;
};

}  // namespace cortexfs
