// A process as others know it: its number and when it started, because numbers are used again.
#pragma once

#include <cstdint>

namespace kunlun {

struct ProcessId {
  int32_t pid = 0;
  uint64_t start = 0; // clock ticks since the boot

  bool operator==(const ProcessId&) const = default;
};

// The calling process. Right in a forked child too.
ProcessId currentProcess();

// False once the process has ended, even if nobody has collected it yet.
bool isAlive(const ProcessId& process);

// Opens what another process has open under the number `fd`; only for processes of the same user, which the kernel
// checks. The file must be the one with that inode. Close-on-exec. On failure -1, and `why` says what happened.
int openOf(const ProcessId& process, int fd, uint64_t inode, const char** why);

// The inode of an open file, 0 if it cannot be told.
uint64_t inodeOf(int fd);

} // namespace kunlun
