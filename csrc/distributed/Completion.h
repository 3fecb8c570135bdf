// When an operation ended on its stream, and how.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "distributed/Communicator.h"
#include "runtime/Event.h"
#include "runtime/chip/chip.h"

namespace kunlun::distributed {

// Filled in by the chip's thread, which runs a mark behind the operation. Nobody has to ask the chip, and the failure
// that the stream carries is seen without taking delivery of it.
//
// On a chip without host calls in stream order the mark is an event, which whoever asks looks at. The failure is then
// that of the operation's communicators.
class Completion : public c10::intrusive_ptr_target {
 public:
  using Clock = std::chrono::steady_clock;
  using Communicators = std::vector<std::shared_ptr<Communicator>>;

  // Enqueue the marks.
  void markStart(const Stream& stream);
  void markEnd(const Stream& stream, const Communicators& communicators);

  bool hasStarted();
  bool isDone() {
    return state_.load(std::memory_order_acquire) == kDone ||
        (has_end_event_.load(std::memory_order_acquire) && lookAtEnd());
  }
  // Valid once it is done; the code is KL_SUCCESS for an operation that went well.
  const kl_error& error() const {
    return error_;
  }
  bool isSuccess() {
    return isDone() && error_.code == KL_SUCCESS;
  }
  // Whether the stream knows nothing of the failure, so that nobody else will report it.
  bool isOnlyOneToTell() const {
    return has_end_event_.load(std::memory_order_acquire);
  }
  // False when the deadline passed first. May be interrupted, which raises.
  bool waitUntil(Clock::time_point deadline);
  float milliseconds() const;

 private:
  static kl_result onStart(void* arg, const kl_error* failure, kl_error* result);
  static kl_result onEnd(void* arg, const kl_error* failure, kl_error* result);
  void end(const kl_error& error);
  bool lookAtEnd();

  enum : uint32_t { kPending, kAwaited, kDone }; // kAwaited: somebody sleeps on the word

  std::atomic<bool> started_{false};
  std::atomic<uint32_t> state_{kPending};
  Clock::time_point start_time_{};
  Clock::time_point end_time_{};
  kl_error error_{KL_SUCCESS, -1, 0, {}, {}};

  std::atomic<bool> has_start_event_{false}; // set once, after the event
  std::atomic<bool> has_end_event_{false};
  std::mutex event_lock_; // guards what follows
  Event start_;
  Event end_;
  Communicators communicators_; // until it is done
};

} // namespace kunlun::distributed
