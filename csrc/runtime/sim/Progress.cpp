// Spinning and sleeping of Progress.
#include "runtime/sim/Progress.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/Futex.h"

namespace kunlun::sim {
namespace {

void pause() {
  if (Progress::sharesCores()) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// On a single core nobody else can make progress while we spin.
int64_t spinBudget() {
  static const int64_t budget = std::thread::hardware_concurrency() == 1 ? 0 : Progress::kSpinNanoseconds;
  return budget;
}

// A full barrier on every thread of this process that runs now.
void barrierOnAllThreads() {
  syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

} // namespace

int64_t steadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Progress::start() {
#if defined(__SANITIZE_THREAD__)
  // The sanitizer does not know the barrier; it checks the symmetric protocol.
#else
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0) {
    asymmetric.store(true, std::memory_order_seq_cst);
  }
#endif
}

Progress::Waited Progress::waitSlowly(uint64_t target, const std::atomic<bool>* cancelled, int64_t deadline) {
  auto isCancelled = [&] { return cancelled != nullptr && cancelled->load(std::memory_order_seq_cst); };
  // A pause takes 10 to 60 ns depending on the machine, so the spin is bounded by the clock and not by a count.
  const int64_t spin_until = std::min(deadline, steadyNanoseconds() + spinBudget());
  do {
    for (int i = 0; i < 8; ++i) {
      if (get() >= target) {
        return Waited::Reached;
      }
      pause();
    }
  } while (!isCancelled() && steadyNanoseconds() < spin_until);

  for (;;) {
    // The epoch is read before the target is registered: a wake-up that clears the registration changes the epoch.
    const uint32_t epoch = epoch_.load(std::memory_order_seq_cst);
    uint64_t lowest = wake_at_.load(std::memory_order_seq_cst);
    while (target < lowest && !wake_at_.compare_exchange_weak(lowest, target, std::memory_order_seq_cst)) {
    }
    if (asymmetric.load(std::memory_order_relaxed)) {
      barrierOnAllThreads();
    }
    if (value_.load(std::memory_order_seq_cst) >= target) {
      return Waited::Reached;
    }
    if (isCancelled()) {
      return Waited::Cancelled;
    }
    if (deadline == kNever) {
      futexWait(epoch_, epoch);
    } else if (steadyNanoseconds() >= deadline) {
      return Waited::TimedOut; // the registration stays: it costs one wake-up of nobody
    } else {
      futexWaitUntil(epoch_, epoch, deadline);
    }
  }
}

void Progress::wake() {
  wake_at_.store(UINT64_MAX, std::memory_order_seq_cst);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  futexWakeAll(&epoch_);
}

} // namespace kunlun::sim
