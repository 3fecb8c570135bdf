// The kernel's wait on a word of memory.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace kunlun {

// Sleeps while the word has the expected value; returns early now and then, so callers look again.
inline void futexWait(const std::atomic<uint32_t>& word, uint32_t expected) {
  static_assert(sizeof(word) == 4);
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

// The same until `deadline`, in nanoseconds of the steady clock.
inline void futexWaitUntil(const std::atomic<uint32_t>& word, uint32_t expected, int64_t deadline) {
  timespec until{};
  until.tv_sec = static_cast<time_t>(deadline / 1'000'000'000);
  until.tv_nsec = static_cast<long>(deadline % 1'000'000'000);
  // Unlike FUTEX_WAIT this takes a point in time.
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

// Wakes who sleeps at this address. The word itself is not touched, so it may be gone already.
inline void futexWakeAll(const std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

} // namespace kunlun
