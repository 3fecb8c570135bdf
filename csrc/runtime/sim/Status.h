// How calls of the simulated driver fail: exceptions inside, kl_result and last_error at the C boundary.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "runtime/chip/chip.h"

namespace kunlun::sim {

// A failure of work on a stream. Shared by every stream and event it has spread to.
using Fault = std::shared_ptr<const kl_error>;

// A call that cannot be done; caught at the C boundary.
class Failure : public std::exception {
 public:
  explicit Failure(const kl_error& e) : error(e) {}
  const char* what() const noexcept override {
    return error.text;
  }
  kl_error error;
};

kl_error makeError(kl_result code, int device, const char* op, uint64_t sequence, const char* text);

[[noreturn, gnu::format(printf, 3, 4)]] void raise(kl_result code, int device, const char* format, ...);

// What the calling thread's last_error returns.
const kl_error& lastError();
// Stores an error of the calling thread and returns its code.
kl_result setLastError(const kl_error& error);

// Life of the chip in this process.
enum class Phase : uint8_t {
  Fresh,    // not started
  Running,  // a device has been started
  ShutDown, // the process is exiting
  Forked    // this process is a child of one that had started the chip
};
inline std::atomic<Phase> phase{Phase::Fresh};

inline bool usable() {
  return phase.load(std::memory_order_relaxed) <= Phase::Running;
}

// The error of a call that comes after shutdown or in a forked child.
kl_result refuseUnusable(const char* op);
// Translates the exception in flight into last_error.
kl_result translateException(const char* op) noexcept;

// Wraps the body of an entry of the table.
template <class Body>
kl_result entry(const char* op, Body&& body) noexcept {
  if (!usable()) [[unlikely]] {
    return refuseUnusable(op);
  }
  try {
    return std::forward<Body>(body)();
  } catch (...) {
    return translateException(op);
  }
}

// Wraps the body of an entry that gives something back. Destructors run in forked children and at process exit, where
// there is nothing left to give back: they succeed there.
template <class Body>
kl_result releasingEntry(const char* op, Body&& body) noexcept {
  if (!usable()) {
    return KL_SUCCESS;
  }
  return entry(op, std::forward<Body>(body));
}

} // namespace kunlun::sim
