// One mount: reads requests, answers them in place, sends the few questions to the desk.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "fuse/backing.h"
#include "fuse/crew.h"
#include "fuse/desk.h"
#include "fuse/handle.h"
#include "fuse/lock.h"
#include "fuse/table.h"
#include "fuse/tree.h"
#include "fuse/wire.h"
#include "fuse/zone.h"

namespace cortexfs {

struct Options {
  std::string mount_point, xattr_prefix = "user.cortexfs.";
  bool allow_other = false, is_rootless = false, wants_passthrough = false, shows_backing_path = false, has_own_uid = false;
  uint32_t threads = 0, fresh_ms = 1000, timeout_ms = 10000;
  size_t nodes_max = 0;  // 0 = as many as the kernel likes
  int statfs_fd = -1;  // own copy
};

// What the engine says to its owner. Called from any thread of the engine; must not block.
struct Voice {
  std::function<void()> questions;
  std::function<void(int error, const char* syscall)> started;  // error 0 = INIT was answered
  std::function<void(const std::string& reason)> ended;          // last call of all
  std::function<void(const std::string& line)> journal;
};

// The border of RESOLVE_NO_XDEV, rename and link.
struct Volume {
  Fd root;              // null for one found below another
  uint64_t dev = 0, mount = 0;
  std::string host_path;
};

// One request on its way through the engine.
struct Call {
  const fuse_in_header* header = nullptr;
  Cursor in{nullptr, 0};
  const uint8_t* bytes = nullptr;
  size_t size = 0;
  Verdicts verdicts;
  bool is_answered = false;
};

// Results of an operation besides 0 (answered) and a positive errno.
constexpr int MOVED = -1;       // parked or given to another thread, which answers
constexpr int UNANSWERED = -2;  // the protocol wants no reply
constexpr int MALFORMED = -3;   // answered EIO with a journal line

constexpr int DONE = -1;        // an answer of TypeScript: it has done the operation itself

// A child as it was resolved: a generated entry, or a backing node just found.
struct Child {
  const Entry* entry = nullptr;
  bool is_backing = false;
  Found found;
  Stat stat;
  Fd fd;                // an O_PATH descriptor that resolution needed anyway
  bool is_object = false;  // a program with its control directory: shown as rendered text
};

// A name that a mutation is about: its zone, and where it lies on the backing side.
struct Target {
  int zone = HIDDEN;
  int volume = -1;
  Fd dir;
  std::string base;
};

class Server : public std::enable_shared_from_this<Server> {
 public:
  Server(Options options, ZoneTable zones, uint64_t main_dev, Voice voice);
  ~Server();

  // Setup, from the owner's thread. 0 or an errno.
  int add_volume(int dir_fd, std::string host_path, int* id);
  bool has_volume(int id);
  void set_tree(std::shared_ptr<Tree> tree);
  const ZoneTable& zones() const { return zones_; }

  void start();                      // the outcome comes by voice
  void request_stop();               // the end comes by voice
  void mute() { is_mute_ = true; }   // nobody is there any more to be told anything
  void join();                       // after `ended`, or in an emergency after request_stop
  void reply(uint64_t id, int error, std::string body);
  bool invalidate(std::string path);
  std::vector<Upcall> take_questions() { return desk_.take_questions(); }

  // Test transport.
  int seed();                        // resolves the root as start does
  void set_sink(std::unique_ptr<Sink> sink) { sink_ = std::move(sink); }
  void serve(const uint8_t* bytes, size_t size, Verdicts verdicts);

  struct Counts {
    uint64_t requests, nodes, descriptors, handles, parked;
    bool has_passthrough;
  };
  Counts counts();

 private:
  // server.cc: threads and life
  void keep();
  void say_started(int error, const char* syscall);
  void read_loop();
  void unmount();
  bool wait_threads(int ms);
  void journal(const std::string& line);

  // dispatch.cc
  int dispatch(Call& c);
  int init(Call& c);
  int send(Call& c, const void* a, size_t a_size, const void* b = nullptr, size_t b_size = 0);
  void send_error(Call& c, int error);
  int park(Call& c, Upcall upcall);
  int defer(Call& c, std::function<int(Call&)> work);   // to the slow crew; `work` answers like an operation
  static Held copy(const Call& c);
  void refuse(const Held& held, int error);
  int interrupt(Call& c);
  int forget(Call& c);
  int batch_forget(Call& c);

  // node.cc: attributes, resolution
  TreeRef tree();
  bool is_stale(const Call& c) const;
  int ask_refresh(Call& c);
  uint32_t fresh_ms() const;
  const Volume* volume(int id);
  int volume_below(const Stat& stat, const std::string& host_path);
  int node_fd(Node* node, Fd* out);
  int open_node(Node* node, Fd* out);
  int stat_node(Node* node, Stat* out);
  int find_child(Call& c, Node* parent, std::string_view name, const Entry* entry, const Entry* at, Child* out);
  int find_backing_entry(Node* parent, const Entry& entry, Child* out);
  int find_plain(Node* parent, std::string_view name, Child* out);
  NodeRef node_of(Child& child, Node* parent, std::string_view name);
  void fill_generated(Node* node, const Entry& entry, fuse_attr* attr);
  void fill_backing(Node* node, const Stat& stat, const Entry* entry, fuse_attr* attr);
  void fill_entry(Node* node, const Child& child, fuse_entry_out* out);
  uint32_t tree_ttl(const Entry& entry, uint32_t ttl_ms) const;
  int attributes(Node* node, fuse_attr_out* out);
  int reply_entry(Call& c, Node* node, const Child& child);

  // lookup.cc: lookup, getattr, readlink, statfs, access
  int lookup(Call& c);
  int lookup_name(Call& c, std::string_view name);
  int getattr(Call& c);
  int readlink(Call& c);
  int statfs(Call& c);

  // data.cc: open, read, write and what goes with a handle
  int open(Call& c);
  int open_generated(Call& c, NodeRef node, uint32_t flags);
  int open_file(Node* node, uint32_t flags, Fd* fd, Stat* stat);
  void finish_open(Handle* handle, int zone, const Stat& stat, fuse_open_out* out);
  void finish_render(const Held& held, std::string body);
  int read(Call& c);
  int write(Call& c);
  int write_now(Call& c, const HandleRef& handle, const fuse_write_in* in, const uint8_t* bytes);
  int release(Call& c);
  void close_handle(uint64_t id);
  int fsync(Call& c, bool is_dir);
  int lseek(Call& c);
  int fallocate(Call& c);
  int copy_range(Call& c);

  // lock.cc
  int lock_handle(const fuse_lk_in* in, HandleRef* out);
  int get_lock(Call& c);
  int set_lock(Call& c, bool can_wait);
  int flush(Call& c);

  // copy.cc: private copies of what is published whole, objects' programs
  int open_copy(Call& c, const HandleRef& handle, const Zone& zone);
  int write_copy(Call& c, const HandleRef& handle, const fuse_write_in* in, const uint8_t* bytes);
  int truncate_copy(Call& c, const NodeRef& node, const HandleRef& handle, uint64_t size);
  int truncate_path(Call& c, const NodeRef& node, uint64_t size);
  int publish(Call& c, const HandleRef& handle, bool is_last);
  bool is_object(int zone, int dir_fd, std::string_view name, const Stat& stat);
  int ask_object(Call& c, std::string path);
  int find_object(Call& c, Node* node, Body* body);

  // directory.cc
  int opendir(Call& c);
  int readdir(Call& c, bool is_plus);
  int fill_listing(Handle* handle);

  // mutate.cc, setattr.cc, rename.cc
  int find_target(Node* parent, std::string_view name, Target* out);
  int aim(const Call& c, std::string_view name, NodeRef* parent, Target* target);
  int judge(Call& c, int verdict, Question question, const std::function<void(Upcall&)>& describe);
  int finish_create(Call& c, Node* parent, std::string_view name, const Target& target);
  int create(Call& c);
  int mknod(Call& c);
  int mkdir(Call& c);
  int symlink(Call& c);
  int link(Call& c);
  int remove(Call& c, bool is_dir);
  int rename(Call& c, bool has_flags);
  int setattr(Call& c);
  int setattr_now(Call& c, const NodeRef& node, const fuse_setattr_in* in);
  std::string child_path(Node* parent, std::string_view name);

  // xattr.cc
  int getxattr(Call& c, bool is_list);
  int change_xattr(Call& c, bool is_set);

  // notify.cc
  void notify_loop();
  void notify(const std::string& path);
  void send_notice(int code, const void* a, size_t a_size, const void* b, size_t b_size);
  void notify_inode(uint64_t id, int64_t offset);

  // trim.cc
  bool is_crowded() const;
  void want_trim();
  void trim();

  const Options options_;
  const ZoneTable zones_;
  const Voice voice_;
  const bool is_root_;

  std::mutex tree_lock_;             // guards tree_
  TreeRef tree_;
  std::mutex volume_lock_;           // guards volumes_ (append only, stable addresses) and below_
  std::deque<Volume> volumes_;
  std::map<std::tuple<uint64_t, uint64_t, uint64_t>, int> below_;

  NodeTable nodes_;
  HandleTable handles_;
  // Mode of a node and its registration, from first open to last close. By node, since a registration is a system call.
  std::mutex open_locks_[64];
  std::mutex& open_lock(uint64_t node) { return open_locks_[node % 64]; }
  Desk desk_;
  LockTable locks_;
  LockWaits waits_;
  Crew resume_{1}, slow_{4}, waiting_{LockWaits::WAITS_MAX};
  std::unique_ptr<Sink> sink_;       // set before serving starts
  int device_fd_ = -1;               // set before serving starts, closed by keep() after the last thread

  std::atomic<uint64_t> requests_{0};
  std::atomic<int64_t> refreshed_at_ms_{0};
  std::atomic<bool> has_passthrough_{false}, has_expire_{false}, is_mute_{false};
  std::atomic<int64_t> journal_at_ms_{-1000};
  bool asked_passthrough_ = false;   // written by INIT before any other request

  std::mutex life_lock_;             // guards the fields below
  std::condition_variable life_;
  bool is_stopping_ = false, is_inited_ = false, was_started_ = false;
  int init_error_ = 0;
  size_t serving_ = 0;
  std::string end_reason_ = "unmounted";
  std::vector<std::thread> threads_; // of keep() alone
  std::string mounted_device_;       // of keep() alone: major:minor of the mount
  std::thread keeper_;

  std::mutex notify_lock_;           // guards the queue
  std::condition_variable notify_wake_;
  std::deque<std::string> notices_;
  bool is_notify_stopping_ = false, is_trim_wanted_ = false;
  std::thread notifier_;
};

int64_t now_ms();                    // monotonic
uint8_t* scratch();                  // BUFFER_SIZE bytes of this thread, made at first use

}  // namespace cortexfs
