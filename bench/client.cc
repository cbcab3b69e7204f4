// Times plain system calls in two directories with equal content, interleaved round by round, so that a disturbance
// of the machine hits both. Usage: client MEASURE OURS BASE FILES ROUNDS; prints one JSON line of medians in us per call.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

void stat_all(const std::vector<std::string>& files) {
  struct stat attributes;
  for (const auto& file : files)
    if (stat(file.c_str(), &attributes) != 0) fail("stat");
}

void read_all(const std::vector<std::string>& files) {
  char buffer[4096];
  for (const auto& file : files) {
    int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("open");
    if (read(fd, buffer, sizeof buffer) < 0) fail("read");
    close(fd);
  }
}

size_t list(const std::string& dir) {
  DIR* stream = opendir(dir.c_str());
  if (stream == nullptr) fail("opendir");
  size_t entries = 0;
  while (readdir(stream) != nullptr) entries++;
  closedir(stream);
  return entries;
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const std::string measure = argv[1];
  const std::string dirs[2] = {argv[2], argv[3]};
  const int file_count = std::atoi(argv[4]);
  const int rounds = std::atoi(argv[5]);
  std::vector<std::string> files[2];
  for (int side = 0; side < 2; side++)
    for (int i = 0; i < file_count; i++) files[side].push_back(dirs[side] + "/f" + std::to_string(i));
  std::vector<double> samples[2];
  for (int round = -2; round < rounds; round++) {
    for (int side = 0; side < 2; side++) {
      const auto begin = Clock::now();
      double calls = file_count;
      if (measure == "stat") {
        stat_all(files[side]);
      } else if (measure == "open+read+close") {
        read_all(files[side]);
      } else if (measure == "readdir") {
        calls = 1;
        if (list(dirs[side]) != static_cast<size_t>(file_count) + 2) fail("readdir count");
      } else {
        return 2;
      }
      const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
      if (round >= 0) samples[side].push_back(took.count() / calls);
    }
  }
  std::printf("{\"ours\":%.3f,\"base\":%.3f}\n", median(samples[0]), median(samples[1]));
}
