// A word in shared memory that processes wait on.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace kunlun::sim {

// A counter that wraps; comparisons are by distance. Lies in shared memory, so it holds no pointer, and all zero bytes
// is its initial state.
struct SharedWord {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;

  uint32_t get() const {
    return value.load(std::memory_order_acquire);
  }

  bool hasReached(uint32_t target) const {
    return static_cast<int32_t>(get() - target) >= 0;
  }

  void set(uint32_t v) {
    value.store(v, std::memory_order_seq_cst);
    wakeSleepers();
  }

  void increment() {
    value.fetch_add(1, std::memory_order_seq_cst);
    wakeSleepers();
  }

  // Sleeps until the word is no longer `seen`, somebody wakes it, or the time is over; callers look again.
  void sleep(uint32_t seen, int64_t nanoseconds) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (value.load(std::memory_order_seq_cst) == seen) {
      const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
      syscall(SYS_futex, &value, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }

  // For who has changed something else that sleepers look at.
  void wake() {
    syscall(SYS_futex, &value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

 private:
  void wakeSleepers() {
    if (sleepers.load(std::memory_order_seq_cst) != 0) {
      wake();
    }
  }
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(SharedWord) == 8);

} // namespace kunlun::sim
