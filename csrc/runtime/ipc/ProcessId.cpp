// A process as others know it: its number and when it started, because numbers are used again.
#include "runtime/ipc/ProcessId.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kunlun {
namespace {

// The state letter and the start time in /proc/PID/stat; false when there is no such process.
bool readStat(int32_t pid, char* state, uint64_t* start) {
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  char text[1024];
  const ssize_t length = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (length <= 0) {
    return false;
  }
  text[length] = '\0';
  // The command's name in parentheses may hold anything, so fields count from the last parenthesis: state is the 3rd
  // field, the start time the 22nd.
  const char* field = std::strrchr(text, ')');
  if (field == nullptr || field[1] == '\0') {
    return false;
  }
  field += 2;
  *state = *field;
  for (int number = 3; number < 22; ++number) {
    field = std::strchr(field, ' ');
    if (field == nullptr) {
      return false;
    }
    ++field;
  }
  *start = std::strtoull(field, nullptr, 10);
  return true;
}

} // namespace

ProcessId currentProcess() {
  ProcessId self{static_cast<int32_t>(getpid()), 0};
  char state = 0;
  if (!readStat(self.pid, &state, &self.start)) {
    self.start = 0;
  }
  return self;
}

bool isAlive(const ProcessId& process) {
  char state = 0;
  uint64_t start = 0;
  return readStat(process.pid, &state, &start) && start == process.start && state != 'Z' && state != 'X';
}

uint64_t inodeOf(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 ? static_cast<uint64_t>(status.st_ino) : 0;
}

int openOf(const ProcessId& process, int fd, uint64_t inode, const char** why) {
  if (!isAlive(process)) {
    *why = "that process has ended; it must stay alive until what it shares has been received";
    return -1;
  }
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", process.pid, fd);
  const int opened = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) {
    *why = errno == EACCES || errno == EPERM
        ? "the kernel does not let this process see the files of that one: they are of different users, or kept apart"
        : std::strerror(errno);
    return -1;
  }
  struct stat status{};
  if (fstat(opened, &status) != 0 || static_cast<uint64_t>(status.st_ino) != inode) {
    *why = "that process no longer shares it";
  } else if (status.st_uid != geteuid()) {
    *why = "it belongs to another user";
  } else {
    return opened;
  }
  close(opened);
  return -1;
}

} // namespace kunlun
