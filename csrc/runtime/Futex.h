// The kernel's wait on a word of memory.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace kunlun {

// Sleeps while the word has the expected value; returns early now and then, so callers look again.
inline void futexWait(const std::atomic<uint32_t>& word, uint32_t expected) {
  static_assert(sizeof(word) == 4);
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

// Wakes who sleeps at this address. The word itself is not touched, so it may be gone already.
inline void futexWakeAll(const std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

} // namespace kunlun
