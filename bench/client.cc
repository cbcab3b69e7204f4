// Times plain system calls in several directories, interleaved round by round, so that a disturbance of the machine hits all.
// Usage: client MEASURE CLIENTS CALLS ROUNDS DIR...; CLIENTS processes at once, each in DIR/0, DIR/1 and so on, which are there.
// Prints one JSON array: for each DIR the median of wall time ÷ (CLIENTS × CALLS) in microseconds.
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int FILES = 32;               // working set of one client
constexpr size_t FILE_BYTES = 4096;
constexpr size_t BLOCK = 1 << 20;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

int must(int result, const char* what) {
  if (result < 0) fail(what);
  return result;
}

std::vector<char> bytes(size_t size) { return std::vector<char>(size, 'a'); }

void put(int fd, size_t size) {
  static const std::vector<char> block = bytes(BLOCK);
  for (size_t done = 0; done < size;) {
    ssize_t got = write(fd, block.data(), std::min(size - done, BLOCK));
    if (got <= 0) fail("write");
    done += static_cast<size_t>(got);
  }
}

// One client's place on one side. Calls go by the directory's descriptor: the depth of a mount point costs no side anything.
struct Place {
  std::string path;
  int dir = -1;
  std::vector<std::string> names;

  const char* name(int i) const { return names[static_cast<size_t>(i) % names.size()].c_str(); }
};

void make_files(Place& place, int count, size_t size) {
  for (int i = 0; i < count; i++) {
    place.names.push_back("f" + std::to_string(i));
    int fd = must(openat(place.dir, place.names.back().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644), "create");
    put(fd, size);
    close(fd);
  }
}

int open_file(const Place& place, const char* name, int flags) {
  return must(openat(place.dir, name, flags | O_CLOEXEC, 0644), "open");
}

// All entries of the directory; a change before it would make the listing a fresh one.
size_t list(const Place& place, bool wants_stat) {
  int fd = open_file(place, ".", O_RDONLY | O_DIRECTORY);
  DIR* stream = fdopendir(fd);
  if (stream == nullptr) fail("opendir");
  size_t entries = 0;
  while (dirent* entry = readdir(stream)) {
    struct stat attributes;
    if (wants_stat) must(fstatat(place.dir, entry->d_name, &attributes, AT_SYMLINK_NOFOLLOW), "stat");
    entries++;
  }
  closedir(stream);
  return entries;
}

void touch_directory(const Place& place) {
  close(must(openat(place.dir, "new", O_CREAT | O_WRONLY | O_CLOEXEC, 0644), "create"));
  must(unlinkat(place.dir, "new", 0), "unlink");
}

// How a measure prepares a place (once), prepares a round (not timed), and what it times.
struct Measure {
  std::function<void(Place&, int calls)> prepare;
  std::function<void(Place&, int calls)> before;
  std::function<void(Place&, int calls)> run;
};

void prepare_small(Place& place, int) { make_files(place, FILES, FILE_BYTES); }

void prepare_many(Place& place, int count) {
  make_files(place, count, 0);
}

std::map<std::string, Measure> measures() {
  std::map<std::string, Measure> all;
  all["stat"] = {prepare_small, nullptr, [](Place& p, int n) {
                   struct stat attributes;
                   for (int i = 0; i < n; i++) must(fstatat(p.dir, p.name(i), &attributes, 0), "stat");
                 }};
  all["open+close"] = {prepare_small, nullptr, [](Place& p, int n) {
                         for (int i = 0; i < n; i++) close(open_file(p, p.name(i), O_RDONLY));
                       }};
  all["open+read+close"] = {prepare_small, nullptr, [](Place& p, int n) {
                              char buffer[FILE_BYTES];
                              for (int i = 0; i < n; i++) {
                                int fd = open_file(p, p.name(i), O_RDONLY);
                                if (read(fd, buffer, sizeof buffer) != static_cast<ssize_t>(sizeof buffer)) fail("read");
                                close(fd);
                              }
                            }};
  all["create+unlink"] = {prepare_small, nullptr, [](Place& p, int n) {
                            for (int i = 0; i < n; i++) touch_directory(p);
                          }};
  all["rename"] = {prepare_small, nullptr, [](Place& p, int n) {
                     for (int i = 0; i < n; i++) {
                       const char* from = i % 2 == 0 ? p.name(0) : "moved";
                       must(renameat(p.dir, from, p.dir, i % 2 == 0 ? "moved" : p.name(0)), "rename");
                     }
                   }};
  all["absent"] = {prepare_small, nullptr, [](Place& p, int n) {
                     struct stat attributes;
                     for (int i = 0; i < n; i++)
                       if (fstatat(p.dir, "absent", &attributes, 0) == 0 || errno != ENOENT) fail("absent");
                   }};
  all["fill"] = {prepare_many, nullptr, [](Place&, int) {}};
  all["readdir"] = {nullptr, nullptr, [](Place& p, int n) {
                      if (list(p, false) != static_cast<size_t>(n) + 2) fail("entries");
                    }};
  all["readdir+stat"] = {nullptr, nullptr, [](Place& p, int n) {
                           if (list(p, true) != static_cast<size_t>(n) + 2) fail("entries");
                         }};
  // The directory has changed since the last listing, so that nobody has it cached.
  all["fresh readdir"] = {nullptr, [](Place& p, int) { touch_directory(p); }, all["readdir"].run};
  all["write"] = {nullptr, [](Place& p, int) { unlinkat(p.dir, "big", 0); }, [](Place& p, int n) {
                    int fd = open_file(p, "big", O_CREAT | O_WRONLY);
                    put(fd, static_cast<size_t>(n) * BLOCK);
                    close(fd);
                  }};
  all["read"] = {[](Place& p, int n) {
                   int fd = open_file(p, "big", O_CREAT | O_WRONLY);
                   put(fd, static_cast<size_t>(n) * BLOCK);
                   must(fsync(fd), "fsync");
                   close(fd);
                 },
                 nullptr,
                 [](Place& p, int n) {
                   static std::vector<char> block = bytes(BLOCK);
                   int fd = open_file(p, "big", O_RDONLY);
                   for (int i = 0; i < n; i++)
                     if (read(fd, block.data(), BLOCK) != static_cast<ssize_t>(BLOCK)) fail("read");
                   close(fd);
                 }};
  all["append"] = {nullptr, [](Place& p, int) { unlinkat(p.dir, "log", 0); }, [](Place& p, int n) {
                     int fd = open_file(p, "log", O_CREAT | O_WRONLY | O_APPEND);
                     for (int i = 0; i < n; i++) put(fd, 300);
                     close(fd);
                   }};
  all["append+fdatasync"] = {nullptr, [](Place& p, int) { unlinkat(p.dir, "log", 0); }, [](Place& p, int n) {
                               int fd = open_file(p, "log", O_CREAT | O_WRONLY | O_APPEND);
                               for (int i = 0; i < n; i++) {
                                 put(fd, 4096);
                                 must(fdatasync(fd), "fdatasync");
                               }
                               close(fd);
                             }};
  return all;
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

// A client that failed never comes to the barrier: all end.
void on_child(int) {
  int status = 0;
  while (waitpid(-1, &status, WNOHANG) > 0)
    if (status != 0) _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  const auto all = measures();
  const auto found = all.find(argv[1]);
  const int clients = std::atoi(argv[2]), calls = std::atoi(argv[3]), rounds = std::atoi(argv[4]);
  const int sides = argc - 5;
  if (found == all.end() || clients < 1 || calls < 1 || rounds < 1) return 2;
  const Measure& measure = found->second;
  void* shared = mmap(nullptr, sizeof(pthread_barrier_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail("mmap");
  auto* barrier = static_cast<pthread_barrier_t*>(shared);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(barrier, &attributes, static_cast<unsigned>(clients));
  struct sigaction ended {};
  ended.sa_handler = on_child;
  sigaction(SIGCHLD, &ended, nullptr);
  int me = 0;
  for (int i = 1; i < clients && me == 0; i++) {
    if (must(fork(), "fork") != 0) continue;
    me = i;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  std::vector<Place> places;
  for (int side = 0; side < sides; side++) {
    Place place;
    place.path = std::string(argv[5 + side]) + "/" + std::to_string(me);
    place.dir = must(open(place.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), "open");
    if (measure.prepare) measure.prepare(place, calls);
    places.push_back(std::move(place));
  }
  std::vector<std::vector<double>> samples(static_cast<size_t>(sides));
  for (int round = -2; round < rounds; round++) {
    for (size_t side = 0; side < places.size(); side++) {
      if (measure.before) measure.before(places[side], calls);
      pthread_barrier_wait(barrier);
      const auto begin = Clock::now();
      measure.run(places[side], calls);
      pthread_barrier_wait(barrier);
      const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
      if (round >= 0) samples[side].push_back(took.count() / clients / calls);
    }
  }
  if (me != 0) _exit(0);
  std::printf("[");
  for (size_t side = 0; side < samples.size(); side++) std::printf("%s%.4f", side == 0 ? "" : ",", median(samples[side]));
  std::printf("]\n");
}
