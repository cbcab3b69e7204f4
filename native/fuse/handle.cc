#include "fuse/handle.h"

namespace cortexfs {

void Listing::add(std::string_view name, uint64_t ino, uint32_t type, const Entry* entry) {
  items.push_back({ino, type, static_cast<uint32_t>(names.size()), static_cast<uint32_t>(name.size()), entry});
  names.append(name);
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
