#include "fuse/wire.h"

#include <cerrno>
#include <cstring>

namespace cortexfs {

bool Cursor::take_text(std::string_view* text) {
  const void* nul = size() == 0 ? nullptr : memchr(at_, 0, size());
  if (nul == nullptr) return false;
  const auto* end = static_cast<const uint8_t*>(nul);
  *text = std::string_view(reinterpret_cast<const char*>(at_), static_cast<size_t>(end - at_));
  at_ = end + 1;
  return true;
}

const uint8_t* Cursor::take_bytes(size_t size) {
  if (this->size() < size) return nullptr;
  const uint8_t* bytes = at_;
  at_ += size;
  return bytes;
}

int check_name(std::string_view name) {
  if (name.size() > NAME_MAX_BYTES) return ENAMETOOLONG;
  if (name.empty() || name == "." || name == "..") return EIO;
  if (name.find('/') != std::string_view::npos) return EIO;
  return 0;
}

int DeviceSink::send(const iovec* parts, int count) {
  for (;;) {
    if (writev(fd_, parts, count) >= 0) return 0;
    if (errno != EINTR) return errno;
  }
}

void put_ttl(uint32_t ms, uint64_t* s, uint32_t* ns) {
  *s = ms / 1000;
  *ns = (ms % 1000) * 1000000u;
}

}  // namespace cortexfs
