// A counter that only grows, and whom to wake when it has grown enough.
#pragma once

#include <atomic>
#include <cstdint>

namespace kunlun::sim {

// The one way threads wait for each other in this driver: ring positions, completed items and events are all such
// counters. A waiter spins for at most kSpinNanoseconds (longer spins take whole scheduler slices from whoever needs
// the core), then sleeps on a futex. The advancing thread pays one load unless a sleeper's target has been reached.
class Progress {
 public:
  static constexpr int64_t kSpinNanoseconds = 20'000;

  uint64_t get() const {
    return value_.load(std::memory_order_acquire);
  }

  // Values must grow. One thread at a time.
  void advance(uint64_t value) {
    // Either this thread sees a sleeper's registration in wake_at_, or the sleeper sees the new value. Where the
    // sleeper brings the barrier for both (membarrier), none is needed here: on the way of every launch it would wait
    // until all earlier stores have got their cache lines from the other core.
    if (asymmetric.load(std::memory_order_relaxed)) {
      value_.store(value, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      value_.store(value, std::memory_order_seq_cst);
    }
    if (value >= wake_at_.load(std::memory_order_seq_cst)) [[unlikely]] {
      wake();
    }
  }

  // While some ask for it, waiters let other threads run instead of holding their core: for processes that work
  // together and have more threads than there are cores. Calls are counted.
  static void shareCores(bool share) {
    crowds.fetch_add(share ? 1 : -1, std::memory_order_relaxed);
  }
  static bool sharesCores() {
    return crowds.load(std::memory_order_relaxed) > 0;
  }

  // Asks the kernel for membarrier. Called once, before there is anybody to wait.
  static void start();

  enum class Waited : uint8_t { Reached, Cancelled, TimedOut };
  static constexpr int64_t kNever = INT64_MAX;

  void waitFor(uint64_t target) {
    if (get() < target) {
      waitSlowly(target, nullptr, kNever);
    }
  }

  // Gives up once `cancelled` is set and poke() was called, or when the steady clock reaches `deadline` nanoseconds.
  Waited waitFor(uint64_t target, const std::atomic<bool>* cancelled, int64_t deadline = kNever) {
    return get() >= target ? Waited::Reached : waitSlowly(target, cancelled, deadline);
  }

  // Makes every waiter look at its `cancelled` again.
  void poke() {
    wake();
  }

 private:
  // Whether sleepers bring the barrier. Written before the first thread starts.
  static inline std::atomic<bool> asymmetric{false};
  static inline std::atomic<int> crowds{0};

  Waited waitSlowly(uint64_t target, const std::atomic<bool>* cancelled, int64_t deadline);
  void wake();

  std::atomic<uint64_t> value_{0};
  std::atomic<uint64_t> wake_at_{UINT64_MAX}; // lowest target of a sleeper
  std::atomic<uint32_t> epoch_{0};            // the futex word: grows with each wake-up
};

// Of the clock that deadlines are given in.
int64_t steadyNanoseconds();

} // namespace kunlun::sim
