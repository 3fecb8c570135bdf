// Ctrl-C during a wait for the chip.
#include "runtime/Interrupt.h"

#include <utility>

#include <c10/util/Exception.h>

#include "runtime/Error.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

namespace {
InterruptHooks installed; // written once, by the import of the module
thread_local InterruptScope* scope = nullptr;

int32_t pendingForDriver() {
  return interruptPending() ? 1 : 0;
}
} // namespace

InterruptScope::InterruptScope(std::function<void()> look) : look_(std::move(look)) {
  TORCH_INTERNAL_ASSERT(scope == nullptr);
  scope = this;
}

InterruptScope::~InterruptScope() {
  scope = nullptr;
}

bool InterruptScope::looks() noexcept {
  try {
    look_();
  } catch (...) {
    thrown_ = std::current_exception();
  }
  return thrown_ != nullptr;
}

void setInterruptHooks(InterruptHooks hooks) {
  installed = hooks;
}

void installInterruptCheck() {
  const kl_result result = chip::runtime().set_interrupt_check(pendingForDriver);
  if (result != KL_ERROR_NOT_IMPLEMENTED) {
    check(result, "set_interrupt_check");
  }
}

bool interruptPending() {
  return (scope != nullptr && scope->looks()) || (installed.check != nullptr && installed.check() != 0);
}

void raiseInterrupted() {
  if (scope != nullptr && scope->thrown_ != nullptr) {
    std::rethrow_exception(scope->thrown_);
  }
  if (installed.raise != nullptr) {
    installed.raise();
  }
  C10_THROW_ERROR(Error, "the wait for the device was interrupted");
}

} // namespace kunlun
