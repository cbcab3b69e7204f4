// From raw bytes to an operation, and from its result to exactly one reply.
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>

#include "fuse/server.h"

namespace cortexfs {

void Server::serve(const uint8_t* bytes, size_t size, Verdicts verdicts) {
  Call c;
  c.bytes = bytes;
  c.size = size;
  c.verdicts = verdicts;
  if (size < sizeof(fuse_in_header)) {
    journal("request shorter than its header");
    return;
  }
  c.header = reinterpret_cast<const fuse_in_header*>(bytes);
  c.in = Cursor(bytes + sizeof(fuse_in_header), size - sizeof(fuse_in_header));
  int result = c.header->len == size ? dispatch(c) : MALFORMED;
  if (result == MOVED || result == UNANSWERED || c.is_answered) return;
  if (result == MALFORMED || result == 0) {
    journal("malformed request: opcode " + std::to_string(c.header->opcode) + ", " + std::to_string(size) + " bytes");
    result = EIO;
  }
  send_error(c, result);
}

int Server::dispatch(Call& c) {
  switch (c.header->opcode) {
    case FUSE_INIT: return init(c);
    case FUSE_LOOKUP: return lookup(c);
    case FUSE_FORGET: return forget(c);
    case FUSE_BATCH_FORGET: return batch_forget(c);
    case FUSE_GETATTR: return getattr(c);
    case FUSE_SETATTR: return setattr(c);
    case FUSE_READLINK: return readlink(c);
    case FUSE_OPEN: return open(c);
    case FUSE_READ: return read(c);
    case FUSE_WRITE: return write(c);
    case FUSE_RELEASE: return release(c);
    case FUSE_RELEASEDIR: return release(c);
    case FUSE_FLUSH: return flush(c);
    case FUSE_GETLK: return get_lock(c);
    case FUSE_SETLK: return set_lock(c, false);
    case FUSE_SETLKW: return set_lock(c, true);
    case FUSE_FSYNC: return fsync(c, false);
    case FUSE_FSYNCDIR: return fsync(c, true);
    case FUSE_OPENDIR: return opendir(c);
    case FUSE_READDIR: return readdir(c, false);
    case FUSE_READDIRPLUS: return readdir(c, true);
    case FUSE_CREATE: return create(c);
    case FUSE_MKNOD: return mknod(c);
    case FUSE_MKDIR: return mkdir(c);
    case FUSE_SYMLINK: return symlink(c);
    case FUSE_LINK: return link(c);
    case FUSE_UNLINK: return remove(c, false);
    case FUSE_RMDIR: return remove(c, true);
    case FUSE_RENAME: return rename(c, false);
    case FUSE_RENAME2: return rename(c, true);
    case FUSE_STATFS: return statfs(c);
    case FUSE_GETXATTR: return getxattr(c, false);
    case FUSE_LISTXATTR: return getxattr(c, true);
    case FUSE_SETXATTR: return change_xattr(c, true);
    case FUSE_REMOVEXATTR: return change_xattr(c, false);
    // The kernel has checked the modes itself (default_permissions).
    case FUSE_ACCESS: return c.in.take<fuse_access_in>() == nullptr ? MALFORMED : send(c, nullptr, 0);
    case FUSE_INTERRUPT: return interrupt(c);
    case FUSE_DESTROY: return send(c, nullptr, 0);
    case FUSE_LSEEK: return lseek(c);
    case FUSE_FALLOCATE: return fallocate(c);
    case FUSE_COPY_FILE_RANGE: return copy_range(c);
    case FUSE_TMPFILE: return EOPNOTSUPP;
    default: return ENOSYS;
  }
}

int Server::send(Call& c, const void* a, size_t a_size, const void* b, size_t b_size) {
  c.is_answered = true;
  fuse_out_header out;
  out.len = static_cast<uint32_t>(sizeof out + a_size + b_size);
  out.error = 0;
  out.unique = c.header->unique;
  iovec parts[3] = {{&out, sizeof out}, {const_cast<void*>(a), a_size}, {const_cast<void*>(b), b_size}};
  int count = b_size != 0 ? 3 : a_size != 0 ? 2 : 1;
  return sink_->send(parts, count);
}

void Server::send_error(Call& c, int error) {
  c.is_answered = true;
  fuse_out_header out;
  out.len = sizeof out;
  out.error = -error;
  out.unique = c.header->unique;
  iovec part{&out, sizeof out};
  sink_->send(&part, 1);
}

Held Server::copy(const Call& c) {
  Held held;
  held.words.resize((c.size + 7) / 8);
  memcpy(held.words.data(), c.bytes, c.size);
  held.size = c.size;
  held.unique = c.header->unique;
  held.opcode = c.header->opcode;
  held.verdicts = c.verdicts;
  return held;
}

void Server::refuse(const Held& held, int error) {
  fuse_out_header out;
  out.len = sizeof out;
  out.error = -error;
  out.unique = held.unique;
  iovec part{&out, sizeof out};
  sink_->send(&part, 1);
}

// Asks TypeScript. A request of this very process would wait for itself: it is refused.
int Server::park(Call& c, Upcall upcall) {
  // A copy is published for who opened it, not for the last to close it.
  if (upcall.question != Question::Publish) upcall.uid = c.header->uid;
  upcall.gid = c.header->gid;
  upcall.pid = c.header->pid;
  if (upcall.pid != 0) {
    std::string own = "/proc/self/task/" + std::to_string(upcall.pid);
    struct stat st;
    if (stat(own.c_str(), &st) == 0) return EDEADLK;
  }
  Held held = copy(c);
  int error = desk_.park(std::move(held), std::move(upcall));
  return error == 0 ? MOVED : error;
}

int Server::defer(Call& c, std::function<int(Call&)> work) {
  auto held = std::make_shared<Held>(copy(c));
  bool is_taken = slow_.add([self = this, held, work = std::move(work)] {
    Call later;
    later.bytes = held->bytes();
    later.size = held->size;
    later.verdicts = held->verdicts;
    later.header = reinterpret_cast<const fuse_in_header*>(later.bytes);
    later.in = Cursor(later.bytes + sizeof(fuse_in_header), later.size - sizeof(fuse_in_header));
    int result = work(later);
    if (!later.is_answered) self->send_error(later, result > 0 ? result : EIO);
  });
  return is_taken ? MOVED : ENOTCONN;
}

int Server::init(Call& c) {
  // Kernels before 7.36 send 16 bytes; what is missing reads as zero.
  fuse_init_in in;
  memset(&in, 0, sizeof in);
  size_t have = c.in.size() < sizeof in ? c.in.size() : sizeof in;
  if (have < 16) return MALFORMED;
  memcpy(&in, c.in.take_bytes(have), have);
  fuse_init_out out;
  memset(&out, 0, sizeof out);
  out.major = FUSE_KERNEL_VERSION;
  out.minor = in.minor < PROTOCOL_MINOR_MAX ? in.minor : PROTOCOL_MINOR_MAX;
  if (in.major > FUSE_KERNEL_VERSION) {
    // The kernel asks again with our version.
    out.minor = PROTOCOL_MINOR_MAX;
    send(c, &out, sizeof out);
    return 0;
  }
  if (in.major < FUSE_KERNEL_VERSION || in.minor < PROTOCOL_MINOR_MIN) {
    std::lock_guard<std::mutex> guard(life_lock_);
    init_error_ = EPROTO;
    life_.notify_all();
    return EPROTO;
  }
  uint64_t offered = in.flags;
  if ((in.flags & FUSE_INIT_EXT) != 0) offered |= static_cast<uint64_t>(in.flags2) << 32;
  uint64_t wanted = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_AUTO_INVAL_DATA | FUSE_DO_READDIRPLUS |
                    FUSE_READDIRPLUS_AUTO | FUSE_ASYNC_DIO | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_INIT_EXT |
                    FUSE_HANDLE_KILLPRIV_V2 | FUSE_HAS_EXPIRE_ONLY | FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS;
  if (options_.wants_passthrough) wanted |= FUSE_PASSTHROUGH;
  uint64_t granted = offered & wanted;
  out.flags = static_cast<uint32_t>(granted);
  out.flags2 = static_cast<uint32_t>(granted >> 32);
  out.max_readahead = in.max_readahead;
  out.max_background = 64;
  out.congestion_threshold = 48;
  out.max_write = DATA_MAX;
  out.time_gran = 1;
  out.max_pages = DATA_MAX / 4096;
  asked_passthrough_ = (granted & FUSE_PASSTHROUGH) != 0;
  has_expire_ = (granted & FUSE_HAS_EXPIRE_ONLY) != 0;
  // max_stack_depth: 2 only where the backing side is an overlay itself, since then /ctx can be no lower layer of one.
  struct statfs backing;
  bool is_overlay = fstatfs(options_.statfs_fd, &backing) == 0 && backing.f_type == OVERLAYFS_SUPER_MAGIC;
  if (asked_passthrough_) out.unused[0] = is_overlay ? 2 : 1;
  int error = send(c, &out, sizeof out);
  std::lock_guard<std::mutex> guard(life_lock_);
  is_inited_ = error == 0;
  init_error_ = error;
  life_.notify_all();
  return 0;
}

int Server::interrupt(Call& c) {
  const auto* in = c.in.take<fuse_interrupt_in>();
  if (in == nullptr) {
    journal("malformed request: INTERRUPT");
    return UNANSWERED;
  }
  // In this order, and a wait is counted in before it asks the desk: so neither of the two misses the other.
  desk_.interrupt(in->unique);
  waits_.interrupt(in->unique);
  return UNANSWERED;
}

constexpr const char* OVER_FORGET = "the kernel forgets a node more often than it was looked up";

int Server::forget(Call& c) {
  const auto* in = c.in.take<fuse_forget_in>();
  if (in == nullptr) {
    journal("malformed request: FORGET");
    return UNANSWERED;
  }
  if (!nodes_.forget(c.header->nodeid, in->nlookup)) journal(OVER_FORGET);
  return UNANSWERED;
}

int Server::batch_forget(Call& c) {
  const auto* in = c.in.take<fuse_batch_forget_in>();
  for (uint32_t i = 0; in != nullptr && i < in->count; i++) {
    const auto* one = c.in.take<fuse_forget_one>();
    if (one == nullptr) in = nullptr;
    else if (!nodes_.forget(one->nodeid, one->nlookup)) journal(OVER_FORGET);
  }
  if (in == nullptr) journal("malformed request: BATCH_FORGET");
  return UNANSWERED;
}

}  // namespace cortexfs
