// The check that the host installs.
#include "runtime/xre/Interrupt.h"

#include <atomic>

#include "runtime/xre/Status.h"

namespace kunlun::xre {
namespace {

std::atomic<kl_interrupt_check> installed{nullptr};

} // namespace

void setInterruptCheck(kl_interrupt_check check) {
  installed.store(check, std::memory_order_release);
}

void checkInterrupt(int device) {
  const kl_interrupt_check check = installed.load(std::memory_order_acquire);
  if (check != nullptr && check() != 0) {
    raise(KL_ERROR_INTERRUPTED, device, "the wait was interrupted");
  }
}

} // namespace kunlun::xre
