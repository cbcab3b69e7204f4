// libFuzzer target: a run of requests, as the kernel could send them and as it never would, to an engine that serves no
// mount. Stops the process when a request has not got exactly the replies it is due.
//
// An input is a row of records: opcode, node, handle, flags, length of the body (2 bytes, little endian), body.
// `node` and `handle` choose among those that earlier replies have told, so that a mutated row still reaches deep.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "fuse/server.h"

namespace cortexfs {
namespace {

constexpr size_t RECORDS_MAX = 64;
constexpr std::chrono::seconds REPLY_TIME_MAX{20};
constexpr uint64_t FIRST_UNIQUE = 2;

// Bits of the flag byte of a record.
constexpr uint8_t KEEP_HANDLE = 1;   // the body's own handle, not a told one
constexpr uint8_t WRONG_LENGTH = 2;  // the header's length does not agree
constexpr uint8_t IS_USER = 4;       // by an ordinary user
constexpr uint8_t REFUSES = 8;       // questions asked from now on are refused
constexpr uint8_t SETTLES = 16;      // answers all questions before it goes on
constexpr uint8_t CUTS_HEADER = 32;  // fewer bytes than a header

// What the replies were and what they told. Shared with the sink, which goes with its server.
struct Told {
  std::mutex lock;                   // guards all below
  std::condition_variable news;      // a reply or a question has come
  bool is_asked = false;
  std::map<uint64_t, int> replies;   // by the request's number
  std::map<uint64_t, uint32_t> opcodes;
  std::vector<uint64_t> nodes{ROOT_NODE, 0xdead}, handles{0, 0xbeef};
  size_t answered = 0;

  void take(const std::string& reply) {
    fuse_out_header out;
    if (reply.size() < sizeof out) abort();
    memcpy(&out, reply.data(), sizeof out);
    if (out.len != reply.size() || out.error > 0 || out.error < -4095) abort();
    if (out.error != 0 && out.len != sizeof out) abort();
    replies[out.unique]++;
    answered++;
    if (out.error != 0) return;
    const char* body = reply.data() + sizeof out;
    size_t size = reply.size() - sizeof out;
    uint32_t opcode = opcodes[out.unique];
    bool has_entry = opcode == FUSE_LOOKUP || opcode == FUSE_MKDIR || opcode == FUSE_MKNOD || opcode == FUSE_SYMLINK ||
                     opcode == FUSE_LINK || opcode == FUSE_CREATE;
    if (has_entry) {
      fuse_entry_out entry;
      if (size < sizeof entry) abort();
      memcpy(&entry, body, sizeof entry);
      nodes.push_back(entry.nodeid);
      body += sizeof entry;
      size -= sizeof entry;
    }
    if (opcode == FUSE_OPEN || opcode == FUSE_OPENDIR || opcode == FUSE_CREATE) {
      fuse_open_out open;
      if (size < sizeof open) abort();
      memcpy(&open, body, sizeof open);
      handles.push_back(open.fh);
    }
  }
};

class CountingSink : public Sink {
 public:
  explicit CountingSink(std::shared_ptr<Told> told) : told_(std::move(told)) {}
  int send(const iovec* parts, int count) override {
    std::string reply;
    for (int i = 0; i < count; i++) reply.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
    std::lock_guard<std::mutex> guard(told_->lock);
    told_->take(reply);
    told_->news.notify_all();
    return 0;
  }

 private:
  std::shared_ptr<Told> told_;
};

std::string work;      // a directory of this process, made anew for each input that changed it
uint64_t requests = 0;  // sent by all inputs

void remove_tree(const std::string& path) {
  DIR* dir = opendir(path.c_str());
  while (dirent* entry = dir == nullptr ? nullptr : readdir(dir)) {
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    std::string below = path + "/" + name;
    struct stat st;
    if (lstat(below.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) remove_tree(below);
    else unlink(below.c_str());
  }
  if (dir != nullptr) closedir(dir);
  rmdir(path.c_str());
}

void put(const std::string& path, const char* text) {
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) abort();
  close(fd);
}

void make_tree() {
  remove_tree(work);
  if (mkdir(work.c_str(), 0755) != 0 || mkdir((work + "/dir").c_str(), 0755) != 0 || mkdir((work + "/asking").c_str(), 0755) != 0) abort();
  put(work + "/a", "one\ntwo\n");
  put(work + "/dir/b", "three\n");
  put(work + "/asking/c", "four\n");
  if (symlink("a", (work + "/link").c_str()) != 0 || mkfifo((work + "/fifo").c_str(), 0644) != 0) abort();
}

Zone make_zone(int verdict, int child) {
  Zone zone;
  for (int Zone::*field : {&Zone::create, &Zone::mkdir, &Zone::mknod_special, &Zone::symlink, &Zone::link_from, &Zone::link_to,
                           &Zone::unlink, &Zone::rmdir, &Zone::rename_from, &Zone::rename_to, &Zone::write, &Zone::setattr})
    zone.*field = verdict;
  zone.kind_file = zone.kind_dir = "ctx.ordinary";
  zone.entry_ttl_ms = zone.attr_ttl_ms = 1000;
  zone.child_default = child;
  return zone;
}

ZoneTable make_zones() {
  std::vector<Zone> zones{make_zone(0, 0), make_zone(ASK, 1), make_zone(EROFS, 2)};
  ZoneChild asking, hidden, fixed;
  asking.match.has_exact = true;
  asking.match.exact = "asking";
  asking.zone = 1;
  hidden.match.prefix = ".h";
  hidden.zone = HIDDEN;
  fixed.match.grammar = Grammar::Uid;
  fixed.zone = 2;
  zones[0].children = {asking, hidden, fixed};
  zones[1].caching = Caching::Direct;
  zones[1].ask_miss = true;
  zones[2].only_plain = true;
  return ZoneTable(std::move(zones));
}

std::shared_ptr<Tree> make_tree_of(int volume) {
  auto tree = std::make_shared<Tree>();
  auto add = [&](const char* path, EntryType type, const char* text) {
    Entry entry;
    entry.path = path;
    entry.type = type;
    entry.kind = "ctx.ordinary";
    if (type != EntryType::Backing) {
      entry.mode = 0755;
      entry.uid = entry.gid = 0;
    }
    if (type == EntryType::File) {
      entry.body = std::make_shared<const std::string>(text);
      entry.size = entry.body->size();
    }
    if (type == EntryType::Link) entry.target = text;
    if (type == EntryType::Backing) {
      entry.volume = volume;
      entry.zone = 0;
    }
    if (!tree->add(std::move(entry))) abort();
  };
  add("", EntryType::Dir, "");
  add("body", EntryType::File, "generated\n");
  add("live", EntryType::Live, "");
  add("link", EntryType::Link, "body");
  add("data", EntryType::Backing, "");
  add("data/over", EntryType::File, "over\n");
  return tree;
}

// Where the handle of a request stands in its body; -1 when it has none.
int handle_at(uint32_t opcode) {
  switch (opcode) {
    case FUSE_READ: case FUSE_WRITE: case FUSE_RELEASE: case FUSE_RELEASEDIR: case FUSE_FLUSH: case FUSE_FSYNC: case FUSE_FSYNCDIR:
    case FUSE_READDIR: case FUSE_READDIRPLUS: case FUSE_LSEEK: case FUSE_FALLOCATE: case FUSE_COPY_FILE_RANGE: return 0;
    case FUSE_GETATTR: case FUSE_SETATTR: return 8;
    default: return -1;
  }
}

bool wants_reply(uint32_t opcode) { return opcode != FUSE_FORGET && opcode != FUSE_BATCH_FORGET && opcode != FUSE_INTERRUPT; }

bool changes(uint32_t opcode) {
  switch (opcode) {
    case FUSE_WRITE: case FUSE_CREATE: case FUSE_MKNOD: case FUSE_MKDIR: case FUSE_SYMLINK: case FUSE_LINK: case FUSE_UNLINK: case FUSE_RMDIR:
    case FUSE_RENAME: case FUSE_RENAME2: case FUSE_SETATTR: case FUSE_FALLOCATE: case FUSE_COPY_FILE_RANGE: case FUSE_OPEN: return true;
    default: return false;
  }
}

void answer(Server* server, bool refuses) {
  for (const Upcall& question : server->take_questions()) {
    bool is_refusal = refuses && question.question != Question::Refresh;
    server->reply(question.id, is_refusal ? EACCES : 0, question.question == Question::Render ? "rendered\n" : "");
  }
}

[[noreturn]] void lose(const Told& told, uint64_t unique, int due) {
  auto opcode = told.opcodes.find(unique);
  auto got = told.replies.find(unique);
  fprintf(stderr, "request %llu, opcode %u: %d replies, %d due\n", static_cast<unsigned long long>(unique),
          opcode == told.opcodes.end() ? 0 : opcode->second, got == told.replies.end() ? 0 : got->second, due);
  abort();
}

void run(const uint8_t* data, size_t size) {
  auto told = std::make_shared<Told>();
  std::map<uint64_t, int> due;
  size_t due_count = 0;
  bool is_changed = false, refuses = false;
  {
    Options options;
    options.mount_point = "/nonexistent";
    options.shows_backing_path = true;
    options.timeout_ms = 600000;  // no deadline answers for an answer that got lost
    options.statfs_fd = open(work.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    Stat stat;
    if (options.statfs_fd < 0 || stat_fd(options.statfs_fd, &stat) != 0) abort();
    Voice voice;
    voice.questions = [told] {
      std::lock_guard<std::mutex> guard(told->lock);
      told->is_asked = true;
      told->news.notify_all();
    };
    voice.started = [](int, const char*) {};
    voice.ended = voice.journal = [](const std::string&) {};
    auto server = std::make_shared<Server>(std::move(options), make_zones(), stat.dev(), std::move(voice));
    int volume = -1;
    if (server->add_volume(open(work.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), work, &volume) != 0) abort();
    server->set_tree(make_tree_of(volume));
    server->set_sink(std::make_unique<CountingSink>(told));
    if (server->seed() != 0) abort();

    uint64_t unique = FIRST_UNIQUE;
    for (size_t record = 0; size >= 6 && record < RECORDS_MAX; record++, unique += 2) {
      uint32_t opcode = data[0];
      uint8_t node = data[1], handle = data[2], flags = data[3];
      size_t body = data[4] | (static_cast<size_t>(data[5]) << 8);
      data += 6;
      size -= 6;
      if (body > size) body = size;
      std::vector<uint64_t> words((sizeof(fuse_in_header) + body + 7) / 8);
      auto* bytes = reinterpret_cast<uint8_t*>(words.data());
      memcpy(bytes + sizeof(fuse_in_header), data, body);
      data += body;
      size -= body;
      fuse_in_header header;
      memset(&header, 0, sizeof header);
      header.len = static_cast<uint32_t>(sizeof header + body + ((flags & WRONG_LENGTH) != 0 ? 1 : 0));
      header.opcode = opcode;
      header.unique = unique;
      header.uid = header.gid = (flags & IS_USER) != 0 ? 1000 : 0;
      {
        std::lock_guard<std::mutex> guard(told->lock);
        header.nodeid = told->nodes[node % told->nodes.size()];
        int at = handle_at(opcode);
        if (at >= 0 && (flags & KEEP_HANDLE) == 0 && body >= static_cast<size_t>(at) + 8)
          memcpy(bytes + sizeof header + at, &told->handles[handle % told->handles.size()], 8);
        told->opcodes[unique] = opcode;
      }
      if (opcode == FUSE_INTERRUPT && body >= 8) {
        uint64_t target = FIRST_UNIQUE + 2 * (node % (record + 1));
        memcpy(bytes + sizeof header, &target, 8);
      }
      memcpy(bytes, &header, sizeof header);
      size_t whole = (flags & CUTS_HEADER) != 0 ? sizeof header - 1 : sizeof header + body;
      due[unique] = whole >= sizeof header && (wants_reply(opcode) || header.len != whole) ? 1 : 0;
      due_count += static_cast<size_t>(due[unique]);
      is_changed = is_changed || changes(opcode);
      refuses = refuses || (flags & REFUSES) != 0;
      requests++;
      server->serve(bytes, whole, Verdicts());
      if ((flags & SETTLES) != 0) answer(server.get(), refuses);
    }
    auto end = std::chrono::steady_clock::now() + REPLY_TIME_MAX;
    for (bool is_late = false; !is_late;) {
      answer(server.get(), refuses);
      std::unique_lock<std::mutex> guard(told->lock);
      if (told->answered >= due_count) break;
      is_late = !told->news.wait_until(guard, end, [&] { return told->is_asked || told->answered >= due_count; });
      told->is_asked = false;
    }
  }
  for (const auto& [unique, count] : due)
    if (told->replies[unique] != count) lose(*told, unique, count);
  for (const auto& [unique, count] : told->replies)
    if (count != 0 && !due.contains(unique)) lose(*told, unique, 0);
  if (is_changed) make_tree();
}

}  // namespace
}  // namespace cortexfs

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  // The inputs ask for any size of file, and for fifos nobody reads.
  rlimit small{1 << 20, 1 << 20};
  setrlimit(RLIMIT_FSIZE, &small);
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  const char* dir = getenv("CORTEXFS_FUZZ_DIR");
  if (dir == nullptr) {
    fprintf(stderr, "CORTEXFS_FUZZ_DIR names no directory to work in\n");
    return 1;
  }
  cortexfs::work = std::string(dir) + "/" + std::to_string(getpid());
  cortexfs::make_tree();
  atexit([] {
    cortexfs::remove_tree(cortexfs::work);
    printf("requests %llu\n", static_cast<unsigned long long>(cortexfs::requests));
  });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cortexfs::run(data, size);
  return 0;
}
