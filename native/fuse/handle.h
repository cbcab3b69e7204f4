// Open handles: each with its own backing descriptor, its fixed bytes, or its listing.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fuse/table.h"

namespace cortexfs {

// One entry of a listing.
struct Item {
  uint64_t ino;
  uint32_t type;          // DT_*
  uint32_t name_at;       // in Listing::names
  uint32_t name_size;
  const Entry* entry;     // generated, or shown by the tree; null for a plain backing child
  uint64_t place;         // in the listing's order; for a plain backing child the backing directory's own cursor
};

// A snapshot of a directory. `tree` keeps the entries alive.
struct Listing {
  std::vector<Item> items;
  std::string names;
  TreeRef tree;
  bool is_filled = false;
  int order = 0;          // places of the items behind the two dots: 1 rising, -1 falling, 0 just counted

  // Cursors: where the page begins that `cursor` asks for, and the one that follows an item. The kernel goes on in one
  // listing with a cursor of another (its cache mixes them), so a cursor depends on its item alone where it can.
  size_t begin(uint64_t cursor) const;
  uint64_t cursor_after(size_t index) const;
  // Settles the order once all items are there.
  void settle();

  std::string_view name(const Item& item) const { return std::string_view(names).substr(item.name_at, item.name_size); }
  void add(std::string_view name, uint64_t ino, uint32_t type, const Entry* entry, uint64_t place = 0);
};

struct Handle {
  uint64_t id = 0;
  NodeRef node;
  uint32_t flags = 0;
  bool is_dir = false;
  bool is_live = false;
  bool is_data = false;   // counted in the node's opens
  Fd fd;                  // backing file or directory
  Body body;              // bytes of a generated file
  uint32_t size_max = 0;  // the most bytes writes may bring the file to; 0 = no limit
  Fd copy;                // the private copy that reads and writes go to; `fd` is what it was made from
  std::string path;       // of a copy: where it is published
  uint32_t uid = 0;       // of a copy: who opened it
  bool is_dirty = false;  // under `lock`: written and not yet published
  bool is_cut = false;    // under `lock`: opened with O_TRUNC and not written
  std::mutex lock;        // guards the listing and the copy
  Listing listing;

  int data_fd() const { return copy != nullptr ? copy->fd : fd->fd; }
};
using HandleRef = std::shared_ptr<Handle>;

class HandleTable {
 public:
  HandleTable() { slots_.resize(1); }
  // Gives the handle its id, which is never used again.
  uint64_t add(const HandleRef& handle);
  HandleRef get(uint64_t id);
  HandleRef take(uint64_t id);
  void clear();
  size_t size();

 private:
  struct Slot {
    HandleRef handle;
    uint32_t generation = 0;
  };
  BriefMutex lock_;       // guards all below
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  size_t size_ = 0;
};

}  // namespace cortexfs
