// When an operation ended on its stream, and how.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <c10/util/intrusive_ptr.h>

#include "runtime/chip/chip.h"

namespace kunlun::distributed {

// Filled in by the chip's thread, which runs a mark behind the operation. Nobody has to ask the chip, and the failure
// that the stream carries is seen without taking delivery of it.
class Completion : public c10::intrusive_ptr_target {
 public:
  using Clock = std::chrono::steady_clock;

  // Enqueue the marks.
  void markStart(kl_stream stream);
  void markEnd(kl_stream stream);

  bool hasStarted() const {
    return started_.load(std::memory_order_acquire);
  }
  bool isDone() const {
    return state_.load(std::memory_order_acquire) == kDone;
  }
  // Valid once it is done; the code is KL_SUCCESS for an operation that went well.
  const kl_error& error() const {
    return error_;
  }
  bool isSuccess() const {
    return isDone() && error_.code == KL_SUCCESS;
  }
  // False when the deadline passed first. May be interrupted, which raises.
  bool waitUntil(Clock::time_point deadline);
  float milliseconds() const;

 private:
  static kl_result onStart(void* arg, const kl_error* failure, kl_error* result);
  static kl_result onEnd(void* arg, const kl_error* failure, kl_error* result);

  enum : uint32_t { kPending, kAwaited, kDone }; // kAwaited: somebody sleeps on the word

  std::atomic<bool> started_{false};
  std::atomic<uint32_t> state_{kPending};
  Clock::time_point start_time_{};
  Clock::time_point end_time_{};
  kl_error error_{KL_SUCCESS, -1, 0, {}, {}};
};

} // namespace kunlun::distributed
