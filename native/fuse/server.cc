// The life of a mount: start, serving threads, end. One keeper thread orders it all, so that no step waits for TypeScript.
#include "fuse/server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fuse/mount.h"

namespace cortexfs {

int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

namespace {
struct Buffer {
  uint8_t* bytes = nullptr;
  ~Buffer() {
    if (bytes != nullptr) munmap(bytes, BUFFER_SIZE);
  }
  uint8_t* get() {
    if (bytes == nullptr) {
      void* got = mmap(nullptr, BUFFER_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (got == MAP_FAILED) abort();  // no memory for a thread's only buffer
      bytes = static_cast<uint8_t*>(got);
    }
    return bytes;
  }
};
}  // namespace

uint8_t* scratch() {
  static thread_local Buffer buffer;
  return buffer.get();
}

Server::Server(Options options, ZoneTable zones, uint64_t main_dev, Voice voice)
    : options_(std::move(options)),
      zones_(std::move(zones)),
      voice_(std::move(voice)),
      is_root_(geteuid() == 0),
      tree_(std::make_shared<const Tree>()),
      nodes_(main_dev),
      desk_(
          options_.timeout_ms, [this] { if (!is_mute_) voice_.questions(); }, [this](const Held& held, int error) { refuse(held, error); }) {}

Server::~Server() {
  // Handles hold nodes: they go before the table does.
  waits_.stop();
  waiting_.stop();
  slow_.stop();
  resume_.stop();
  handles_.clear();
  if (options_.statfs_fd >= 0) close(options_.statfs_fd);
}

int Server::add_volume(int dir_fd, std::string host_path, int* id) {
  Fd root = std::make_shared<FdBox>(dir_fd);
  Stat stat;
  int error = stat_fd(dir_fd, &stat);
  if (error != 0) return error;
  if (!S_ISDIR(stat.raw.stx_mode)) return ENOTDIR;
  std::lock_guard<std::mutex> guard(volume_lock_);
  if (volumes_.size() >= INT16_MAX) return ENOSPC;
  *id = static_cast<int>(volumes_.size());
  volumes_.push_back(Volume{root, stat.dev(), stat.raw.stx_mnt_id, std::move(host_path)});
  return 0;
}

bool Server::has_volume(int id) {
  const Volume* found = volume(id);
  return found != nullptr && found->root != nullptr;
}

void Server::set_tree(std::shared_ptr<Tree> tree) {
  TreeRef old = this->tree();
  tree->share_bodies(*old);
  std::lock_guard<std::mutex> guard(tree_lock_);
  tree_ = std::move(tree);
}

// Makes node 1. The root is a generated directory, or a backing one.
int Server::seed() {
  TreeRef tree = this->tree();
  const Entry* root = tree->find("");
  if (root == nullptr) return EINVAL;
  refreshed_at_ms_ = now_ms();
  if (nodes_.get(ROOT_NODE)) return 0;
  if (root->type == EntryType::Dir) {
    nodes_.ensure_generated(*root);
    return 0;
  }
  if (root->type != EntryType::Backing) return ENOTDIR;
  Child child;
  int error = find_backing_entry(nullptr, *root, &child);
  if (error != 0) return error;
  if (child.found.type != S_IFDIR) return ENOTDIR;
  nodes_.seed_root(child.found);
  return 0;
}

void Server::start() {
  std::lock_guard<std::mutex> guard(life_lock_);
  keeper_ = std::thread([self = shared_from_this()] { self->keep(); });
}

void Server::say_started(int error, const char* syscall) {
  if (!is_mute_) voice_.started(error, syscall);
}

void Server::keep() {
  enter_thread();
  int error = seed();
  if (error != 0) return say_started(error, "open");
  MountFault fault = options_.is_rootless ? mount_helper(options_.mount_point, options_.allow_other, &device_fd_)
                                          : mount_root(options_.mount_point, options_.allow_other, &device_fd_);
  if (fault.error != 0) return say_started(fault.error, fault.syscall);
  sink_ = std::make_unique<DeviceSink>(device_fd_);
  mounted_device_ = find_mount(options_.mount_point);
  uint32_t count = options_.threads;
  if (count == 0) count = std::thread::hardware_concurrency() == 1 ? 1 : 2;
  {
    std::lock_guard<std::mutex> guard(life_lock_);
    serving_ = count;
  }
  for (uint32_t i = 0; i < count; i++) threads_.emplace_back([this] { read_loop(); });
  notifier_ = std::thread([this] { notify_loop(); });
  bool is_up = false;
  {
    std::unique_lock<std::mutex> hold(life_lock_);
    life_.wait_for(hold, std::chrono::seconds(10), [this] { return is_inited_ || init_error_ != 0 || serving_ == 0 || is_stopping_; });
    is_up = is_inited_;
    error = init_error_ != 0 ? init_error_ : ETIMEDOUT;
  }
  if (is_up && asked_passthrough_) {
    // The flag says nothing about the right to register a file: try one.
    int fd = memfd_create("cortexfs", MFD_CLOEXEC);
    fuse_backing_map map;
    memset(&map, 0, sizeof map);
    map.fd = fd;
    int id = fd < 0 ? -1 : ioctl(device_fd_, FUSE_DEV_IOC_BACKING_OPEN, &map);
    if (id > 0) {
      auto backing_id = static_cast<uint32_t>(id);
      ioctl(device_fd_, FUSE_DEV_IOC_BACKING_CLOSE, &backing_id);
      has_passthrough_ = true;
    }
    if (fd >= 0) close(fd);
  }
  if (is_up) {
    say_started(0, "");
    std::unique_lock<std::mutex> hold(life_lock_);
    was_started_ = true;
    life_.wait(hold, [this] { return is_stopping_ || serving_ == 0; });
  }

  // The notifier may wait for a directory that a client holds until it is answered: it ends while requests are still served.
  desk_.stop(ENOTCONN);
  waits_.stop();
  {
    std::lock_guard<std::mutex> guard(notify_lock_);
    is_notify_stopping_ = true;
    notify_wake_.notify_all();
  }
  notifier_.join();
  unmount();
  for (std::thread& thread : threads_) thread.join();
  waiting_.stop();
  slow_.stop();
  resume_.stop();
  close(device_fd_);  // the last holder: what the kernel still waits for ends now
  handles_.clear();
  locks_.clear();
  std::string reason;
  {
    std::lock_guard<std::mutex> guard(life_lock_);
    reason = end_reason_;
  }
  if (!is_up) say_started(error, "read");
  else if (!is_mute_) voice_.ended(reason);
}

void Server::read_loop() {
  enter_thread();
  void* got = mmap(nullptr, BUFFER_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int error = got == MAP_FAILED ? ENOMEM : 0;
  auto* bytes = static_cast<uint8_t*>(got);
  while (error == 0) {
    ssize_t size = ::read(device_fd_, bytes, BUFFER_SIZE);
    if (size >= 0) {
      requests_.fetch_add(1, std::memory_order_relaxed);
      serve(bytes, static_cast<size_t>(size), Verdicts());
      want_trim();
      continue;
    }
    // ENOENT: the request was taken back before it was read.
    if (errno == ENOENT || errno == EAGAIN) continue;
    if (errno == EINTR) {
      std::lock_guard<std::mutex> guard(life_lock_);
      if (is_stopping_) break;
      continue;
    }
    error = errno;
  }
  if (got != MAP_FAILED) munmap(got, BUFFER_SIZE);
  std::lock_guard<std::mutex> guard(life_lock_);
  // ENODEV: unmounted. ECONNABORTED: aborted, by us or from outside.
  if (error != 0 && error != ENODEV && error != ECONNABORTED) end_reason_ = std::string("error: read of /dev/fuse: ") + strerror(error);
  serving_--;
  life_.notify_all();
}

bool Server::wait_threads(int ms) {
  std::unique_lock<std::mutex> hold(life_lock_);
  return life_.wait_for(hold, std::chrono::milliseconds(ms), [this] { return serving_ == 0; });
}

static void wake_only(int) {}

// Takes the mount away and makes every serving thread come back from its read.
void Server::unmount() {
  const char* at = options_.mount_point.c_str();
  if (wait_threads(0)) {
    // Unmounted by somebody else, or aborted: then the dead mount is still there, and nobody else's is touched.
    if (mounted_device_.empty() || find_mount(options_.mount_point) != mounted_device_) return;
    if (options_.is_rootless) unmount_helper(options_.mount_point);
    else umount2(at, MNT_DETACH | UMOUNT_NOFOLLOW);
    std::lock_guard<std::mutex> guard(life_lock_);
    if (!is_stopping_) end_reason_ = "error: the connection was aborted";
    return;
  }
  if (options_.is_rootless) {
    unmount_helper(options_.mount_point);
    if (wait_threads(300)) return;
  } else {
    if (umount2(at, UMOUNT_NOFOLLOW) == 0 && wait_threads(300)) return;
    // Busy: the connection is aborted and the mount detached in one call.
    umount2(at, MNT_FORCE | MNT_DETACH | UMOUNT_NOFOLLOW);
    if (wait_threads(300)) return;
  }
  // Copies of the mount live in other namespaces: only closing the device ends them, and for that the reads must return.
  struct sigaction wake, before;
  memset(&wake, 0, sizeof wake);
  wake.sa_handler = wake_only;
  {
    std::lock_guard<std::mutex> guard(life_lock_);
    is_stopping_ = true;
  }
  sigaction(SIGURG, &wake, &before);
  while (!wait_threads(5)) {
    for (std::thread& thread : threads_) pthread_kill(thread.native_handle(), SIGURG);
  }
  sigaction(SIGURG, &before, nullptr);
}

void Server::request_stop() {
  std::lock_guard<std::mutex> guard(life_lock_);
  is_stopping_ = true;
  life_.notify_all();
}

void Server::join() {
  std::thread keeper;
  {
    std::lock_guard<std::mutex> guard(life_lock_);
    keeper.swap(keeper_);
  }
  if (keeper.joinable()) keeper.join();
}

void Server::reply(uint64_t id, int error, std::string body) {
  Question question = Question::Refresh;
  Desk::Clock::time_point asked_at;
  std::vector<Held> answered = desk_.take_answered(id, &question, &asked_at);
  if (question == Question::Refresh && error == 0 && asked_at != Desk::Clock::time_point()) {
    // What the answer says was true when it was asked for, not later.
    auto age = std::chrono::duration_cast<std::chrono::milliseconds>(Desk::Clock::now() - asked_at).count();
    refreshed_at_ms_ = now_ms() - age;
  }
  for (Held& held : answered) {
    if (error > 0) {
      refuse(held, error);
      continue;
    }
    if (question == Question::Render) {
      finish_render(held, std::move(body));
      continue;
    }
    if (question == Question::Refresh) held.verdicts.is_refreshed = true;
    else if (question == Question::Miss) held.verdicts.is_missed = true;
    else if (question == Question::Object) held.verdicts.object = std::make_shared<const std::string>(std::move(body));
    else held.verdicts.is_asked = true;
    if (error == DONE) held.verdicts.is_done = true;
    auto again = std::make_shared<Held>(std::move(held));
    if (!resume_.add([this, again] { serve(again->bytes(), again->size, again->verdicts); })) refuse(*again, ENOTCONN);
  }
}

void Server::journal(const std::string& line) {
  int64_t now = now_ms(), before = journal_at_ms_.load();
  if (now - before < 1000 || !journal_at_ms_.compare_exchange_strong(before, now)) return;
  if (!is_mute_) voice_.journal(line);
}

Server::Counts Server::counts() {
  return {requests_.load(), nodes_.size(), nodes_.kept_fds(), handles_.size(), desk_.waiting(), has_passthrough_.load()};
}

}  // namespace cortexfs
