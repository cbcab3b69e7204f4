#include "fuse/handle.h"

#include <algorithm>

namespace cortexfs {

constexpr size_t DOTS = 2;  // "." and ".." come first, with the cursors 1 and 2

void Listing::add(std::string_view name, uint64_t ino, uint32_t type, const Entry* entry, uint64_t place) {
  items.push_back({ino, type, static_cast<uint32_t>(names.size()), static_cast<uint32_t>(name.size()), entry, place});
  names.append(name);
}

void Listing::settle() {
  bool rises = true, falls = true;
  for (size_t i = DOTS; i < items.size(); i++) {
    uint64_t place = items[i].place;
    if (place <= DOTS || place > INT64_MAX - 1) rises = falls = false;
    if (i > DOTS && place <= items[i - 1].place) rises = false;
    if (i > DOTS && place >= items[i - 1].place) falls = false;
  }
  order = rises ? 1 : falls ? -1 : 0;
}

size_t Listing::begin(uint64_t cursor) const {
  if (cursor <= DOTS || order == 0) return static_cast<size_t>(std::min<uint64_t>(cursor, items.size()));
  auto is_before = [this, cursor](const Item& item) { return order > 0 ? item.place < cursor : item.place >= cursor; };
  return static_cast<size_t>(std::partition_point(items.begin() + DOTS, items.end(), is_before) - items.begin());
}

uint64_t Listing::cursor_after(size_t index) const {
  if (index < DOTS || order == 0) return index + 1;
  return order > 0 ? items[index].place + 1 : items[index].place;
}

uint64_t HandleTable::add(const HandleRef& handle) {
  std::lock_guard<BriefMutex> guard(lock_);
  uint32_t at;
  if (!free_slots_.empty()) {
    at = free_slots_.back();
    free_slots_.pop_back();
  } else {
    at = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  }
  handle->id = (static_cast<uint64_t>(slots_[at].generation) << 32) | at;
  slots_[at].handle = handle;
  size_++;
  return handle->id;
}

HandleRef HandleTable::get(uint64_t id) {
  std::lock_guard<BriefMutex> guard(lock_);
  auto at = static_cast<uint32_t>(id);
  if (at >= slots_.size() || slots_[at].handle == nullptr || slots_[at].handle->id != id) return nullptr;
  return slots_[at].handle;
}

HandleRef HandleTable::take(uint64_t id) {
  std::lock_guard<BriefMutex> guard(lock_);
  auto at = static_cast<uint32_t>(id);
  if (at >= slots_.size() || slots_[at].handle == nullptr || slots_[at].handle->id != id) return nullptr;
  HandleRef handle = std::move(slots_[at].handle);
  slots_[at].handle = nullptr;
  slots_[at].generation++;
  free_slots_.push_back(at);
  size_--;
  return handle;
}

void HandleTable::clear() {
  std::vector<Slot> slots;
  std::lock_guard<BriefMutex> guard(lock_);
  slots.swap(slots_);
  slots_.resize(1);
  free_slots_.clear();
  size_ = 0;
}

size_t HandleTable::size() {
  std::lock_guard<BriefMutex> guard(lock_);
  return size_;
}

}  // namespace cortexfs
