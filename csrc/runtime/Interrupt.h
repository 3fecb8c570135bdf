// Ctrl-C during a wait for the chip.
#pragma once

#include <exception>
#include <functional>

#include "runtime/chip/chip.h"

namespace kunlun {

// What the host language brings: whether the calling thread is to stop waiting, and how that is raised.
struct InterruptHooks {
  kl_interrupt_check check = nullptr;
  void (*raise)() = nullptr;
};
// To be called before the device starts.
void setInterruptHooks(InterruptHooks hooks);

// Hands the check to the driver. Waits of a driver that takes none cannot be interrupted.
void installInterruptCheck();

// For waits of our own, in slices of kInterruptNanoseconds.
inline constexpr int64_t kInterruptNanoseconds = 100'000'000;
bool interruptPending();
[[noreturn]] void raiseInterrupted();

// While it lives, waits of this thread also end when `look` throws, which they ask several times a second; what it
// threw is then raised in place of the interruption. Not nested.
class InterruptScope {
 public:
  explicit InterruptScope(std::function<void()> look);
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();

 private:
  friend bool interruptPending();
  friend void raiseInterrupted();
  bool looks() noexcept;

  const std::function<void()> look_;
  std::exception_ptr thrown_;
};

} // namespace kunlun
