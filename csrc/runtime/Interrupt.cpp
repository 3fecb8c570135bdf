// Ctrl-C during a wait for the chip.
#include "runtime/Interrupt.h"

#include <c10/util/Exception.h>

#include "runtime/Error.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

namespace {
InterruptHooks installed; // written once, by the import of the module
} // namespace

void setInterruptHooks(InterruptHooks hooks) {
  installed = hooks;
}

void installInterruptCheck() {
  if (installed.check == nullptr) {
    return;
  }
  const kl_result result = chip::runtime().set_interrupt_check(installed.check);
  if (result != KL_ERROR_NOT_IMPLEMENTED) {
    check(result, "set_interrupt_check");
  }
}

bool interruptPending() {
  return installed.check != nullptr && installed.check() != 0;
}

void raiseInterrupted() {
  if (installed.raise != nullptr) {
    installed.raise();
  }
  C10_THROW_ERROR(Error, "the wait for the device was interrupted");
}

} // namespace kunlun
