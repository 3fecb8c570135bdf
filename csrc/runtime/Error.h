// Turns results of the chip interface into torch's own exceptions.
#pragma once

#include <c10/util/Exception.h>

#include "runtime/chip/chip.h"

namespace kunlun {

// Throws the exception that torch uses for this class of failure (IndexError, ValueError, TypeError,
// NotImplementedError, OutOfMemoryError, LinAlgError, AcceleratorError for a faulty device, else Error), with the
// driver's text, the operator, the device and the sequence number of the failed work item.
[[noreturn]] void raise(const kl_error& error);

// The same for the calling thread's last error. `what` names the call when the driver does not.
[[noreturn]] void raiseLastError(kl_result result, const char* what);

// Inside a catch block: rethrows a failure to load the chip as ValueError (an environment variable) or Error.
[[noreturn]] void rethrowLoadFailure();

// For every call that can fail: check(runtime().event_record(e, s), "event_record").
inline void check(kl_result result, const char* what = nullptr) {
  if (result != KL_SUCCESS) [[unlikely]] {
    raiseLastError(result, what);
  }
}

// For calls that answer KL_SUCCESS or KL_NOT_READY: true when ready.
inline bool checkReady(kl_result result, const char* what = nullptr) {
  if (result == KL_NOT_READY) {
    return false;
  }
  check(result, what);
  return true;
}

} // namespace kunlun
