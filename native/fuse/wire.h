// The /dev/fuse protocol: constants newer than the system's header, a bounds-checked view of one request, reply records.
#pragma once

#include <linux/fuse.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#ifndef FUSE_DIRECT_IO_ALLOW_MMAP
#define FUSE_DIRECT_IO_ALLOW_MMAP (1ULL << 36)
#endif
#ifndef FUSE_PASSTHROUGH
#define FUSE_PASSTHROUGH (1ULL << 37)
#define FUSE_NO_EXPORT_SUPPORT (1ULL << 38)
#define FUSE_HAS_RESEND (1ULL << 39)
struct fuse_backing_map {
  int32_t fd;
  uint32_t flags;
  uint64_t padding;
};
#endif
#ifndef FOPEN_PASSTHROUGH
#define FOPEN_PASSTHROUGH (1 << 7)
#endif
#ifndef FUSE_DEV_IOC_BACKING_OPEN
#define FUSE_DEV_IOC_BACKING_OPEN _IOW(FUSE_DEV_IOC_MAGIC, 1, struct fuse_backing_map)
#define FUSE_DEV_IOC_BACKING_CLOSE _IOW(FUSE_DEV_IOC_MAGIC, 2, uint32_t)
#endif

namespace cortexfs {

// The newest protocol minor whose semantics this engine knows, and the oldest it serves.
constexpr uint32_t PROTOCOL_MINOR_MAX = 41;
constexpr uint32_t PROTOCOL_MINOR_MIN = 31;

constexpr size_t DATA_MAX = 1u << 20;               // one READ, WRITE or READDIR
constexpr size_t BUFFER_SIZE = DATA_MAX + (64u << 10);  // a request with its headers and names
constexpr size_t NAME_MAX_BYTES = 255;

static_assert(sizeof(fuse_in_header) == 40, "the request header is part of the kernel ABI");
static_assert(sizeof(fuse_out_header) == 16, "the reply header is part of the kernel ABI");
static_assert(sizeof(fuse_attr) == 88, "attributes are part of the kernel ABI");
static_assert(sizeof(fuse_entry_out) == 128, "entries are part of the kernel ABI");
static_assert(sizeof(fuse_open_out) == 16 && offsetof(fuse_open_out, padding) == 12, "backing_id lies in the padding");
static_assert(sizeof(fuse_init_out) == 64 && offsetof(fuse_init_out, unused) == 36, "max_stack_depth lies in unused[0]");

// A bounds-checked walk over the body of a request. Nothing is copied; the buffer must be 8-byte aligned.
class Cursor {
 public:
  Cursor(const uint8_t* at, size_t size) : at_(at), end_(at + size) {}

  // The next record, or null when fewer bytes are left.
  template <class T>
  const T* take() {
    if (size() < sizeof(T)) return nullptr;
    const T* record = reinterpret_cast<const T*>(at_);
    at_ += sizeof(T);
    return record;
  }

  // The next NUL-terminated text without its NUL; false when no NUL is left.
  bool take_text(std::string_view* text);

  // The next `size` bytes, or null.
  const uint8_t* take_bytes(size_t size);

  size_t size() const { return static_cast<size_t>(end_ - at_); }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

// Checks a directory entry name: 0, EIO for one the kernel never sends (empty, "." and "..", with a slash), ENAMETOOLONG.
int check_name(std::string_view name);

// Where replies and notifications go: /dev/fuse, or memory in the test transport. Safe from any thread.
class Sink {
 public:
  virtual ~Sink() = default;
  // 0, or the errno of the write: ENOENT when the request was interrupted meanwhile.
  virtual int send(const iovec* parts, int count) = 0;
};

// The serving descriptor of a mount.
class DeviceSink : public Sink {
 public:
  explicit DeviceSink(int fd) : fd_(fd) {}
  int send(const iovec* parts, int count) override;

 private:
  int fd_;  // owned by the server, closed after the last thread has ended
};

// Time to live as the protocol has it.
void put_ttl(uint32_t ms, uint64_t* s, uint32_t* ns);

}  // namespace cortexfs
