// Failures of the vendor's runtime: their codes, and how they leave the adapter.
#pragma once

#include <exception>
#include <utility>

#include "runtime/chip/chip.h"

namespace kunlun::xre {

// A call that failed; caught at the C boundary.
class Failure : public std::exception {
 public:
  explicit Failure(const kl_error& e) : error(e) {}
  const char* what() const noexcept override {
    return error.text;
  }
  kl_error error;
};

[[noreturn, gnu::format(printf, 3, 4)]] void raise(kl_result code, int device, const char* format, ...);

// The vendor's code in our terms. The vendor documents its codes as negative and returns them as positive numbers.
kl_result resultOf(int code);
// Raises what a code of the vendor's function `call` says, unless it is 0.
void check(int code, const char* call, int device = -1);

// Raises for NULL.
void require(const void* pointer, const char* what);

const kl_error& lastError();
// The exception in flight, as an error.
kl_error errorInFlight() noexcept;
// The same into last_error. `op` is the entry that failed.
kl_result translateException(const char* op) noexcept;

// Wraps the body of an entry of the table.
template <class Body>
kl_result entry(const char* op, Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return translateException(op);
  }
}

} // namespace kunlun::xre
