// Waits of callers that may be given up.
#include "runtime/sim/Interrupt.h"

#include <atomic>

#include "runtime/sim/Status.h"

namespace kunlun::sim {
namespace {

// A person presses Ctrl-C once and expects an answer; a wake-up ten times a second costs nothing.
constexpr int64_t kSliceNanoseconds = 100'000'000;

std::atomic<InterruptCheck> installed{nullptr};

} // namespace

void setInterruptCheck(InterruptCheck check) {
  installed.store(check, std::memory_order_release);
}

bool waitUnlessInterrupted(Progress& progress, uint64_t target) {
  if (progress.get() >= target) {
    return true;
  }
  const InterruptCheck check = installed.load(std::memory_order_acquire);
  if (check == nullptr) {
    progress.waitFor(target);
    return true;
  }
  while (progress.waitFor(target, nullptr, steadyNanoseconds() + kSliceNanoseconds) != Progress::Waited::Reached) {
    if (check() != 0) {
      return false;
    }
  }
  return true;
}

bool isInterrupted() {
  const InterruptCheck check = installed.load(std::memory_order_acquire);
  return check != nullptr && check() != 0;
}

void waitInterruptibly(Progress& progress, uint64_t target) {
  if (!waitUnlessInterrupted(progress, target)) {
    raise(KL_ERROR_INTERRUPTED, -1, "the wait was interrupted; the work it waited for goes on");
  }
}

} // namespace kunlun::sim
