// Marks around an operation on its stream.
#include "distributed/Completion.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "runtime/Error.h"
#include "runtime/Futex.h"
#include "runtime/Interrupt.h"
#include "runtime/chip/Loader.h"

namespace kunlun::distributed {

namespace {

using Pointer = c10::intrusive_ptr<Completion>;

// Between two looks at an event that somebody waits for.
constexpr std::chrono::microseconds kFirstPause{20};
constexpr std::chrono::microseconds kLongestPause{1000};

// False where the chip cannot call the host.
bool enqueue(Completion& completion, kl_stream stream, kl_host_fn mark, const char* name) {
  if (!chip::hasHostCalls()) {
    return false;
  }
  // The mark holds a reference of its own.
  Completion* raw = Pointer::reclaim_copy(&completion).release();
  kl_result result = chip::runtime().try_host(stream, name, mark, raw); // where the stream is idle
  if (result == KL_NOT_READY) {
    result = chip::runtime().launch_host(stream, name, mark, raw);
  }
  if (result != KL_SUCCESS) {
    Pointer::reclaim(raw);
    check(result, "launch_host");
  }
  return true;
}

} // namespace

void Completion::markStart(const Stream& stream) {
  if (!enqueue(*this, stream.handle(), onStart, "start of a collective")) {
    std::lock_guard lock(event_lock_);
    start_.record(stream);
    has_start_event_.store(true, std::memory_order_release);
  }
}

void Completion::markEnd(const Stream& stream, const Communicators& communicators) {
  if (!enqueue(*this, stream.handle(), onEnd, "end of a collective")) {
    std::lock_guard lock(event_lock_);
    communicators_ = communicators;
    end_.record(stream);
    has_end_event_.store(true, std::memory_order_release);
  }
}

kl_result Completion::onStart(void* arg, const kl_error*, kl_error*) {
  const auto self = Pointer::reclaim(static_cast<Completion*>(arg));
  self->start_time_ = Clock::now();
  self->started_.store(true, std::memory_order_release);
  return KL_SUCCESS;
}

kl_result Completion::onEnd(void* arg, const kl_error* failure, kl_error*) {
  const auto self = Pointer::reclaim(static_cast<Completion*>(arg));
  self->end(failure != nullptr ? *failure : self->error_);
  return KL_SUCCESS;
}

void Completion::end(const kl_error& error) {
  end_time_ = Clock::now();
  error_ = error;
  started_.store(true, std::memory_order_release);
  if (state_.exchange(kDone, std::memory_order_acq_rel) == kAwaited) {
    futexWakeAll(&state_);
  }
}

bool Completion::hasStarted() {
  if (!started_.load(std::memory_order_acquire) && has_start_event_.load(std::memory_order_acquire)) {
    std::lock_guard lock(event_lock_);
    // What cannot be looked at any more is past, too.
    if (chip::runtime().event_query(start_.handle()) != KL_NOT_READY) {
      started_.store(true, std::memory_order_release);
    }
  }
  return started_.load(std::memory_order_acquire);
}

bool Completion::lookAtEnd() {
  Communicators released; // without the lock
  std::lock_guard lock(event_lock_);
  if (state_.load(std::memory_order_relaxed) == kDone) {
    return true;
  }
  const kl_result result = chip::runtime().event_query(end_.handle());
  if (result == KL_NOT_READY) {
    return false;
  }
  kl_error error{KL_SUCCESS, -1, 0, {}, {}};
  if (result != KL_SUCCESS) {
    chip::runtime().last_error(&error);
  }
  for (const auto& communicator : communicators_) {
    if (const auto failure = communicator->error(); failure && error.code == KL_SUCCESS) {
      error.code = KL_ERROR_RUNTIME;
      error.device = communicator->device();
      std::snprintf(error.text, sizeof(error.text), "%s", failure->c_str());
    }
  }
  released.swap(communicators_);
  end(error);
  return true;
}

bool Completion::waitUntil(Clock::time_point deadline) {
  for (auto pause = kFirstPause; !isDone(); pause = std::min(pause * 2, kLongestPause)) {
    const auto now = Clock::now();
    if (now >= deadline) {
      return false;
    }
    if (has_end_event_.load(std::memory_order_acquire)) {
      std::this_thread::sleep_for(pause);
    } else {
      uint32_t pending = kPending;
      state_.compare_exchange_strong(pending, kAwaited, std::memory_order_acq_rel);
      const auto slice = std::min<Clock::time_point>(deadline, now + std::chrono::nanoseconds(kInterruptNanoseconds));
      futexWaitUntil(state_, kAwaited, std::chrono::nanoseconds(slice.time_since_epoch()).count());
    }
    if (!isDone() && interruptPending()) {
      raiseInterrupted();
    }
  }
  return true;
}

float Completion::milliseconds() const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !isOnlyOneToTell(),
      "the duration of an operation is not known: the chip driver ",
      chip::chipSource(),
      " has no host calls in stream order");
  return std::chrono::duration<float, std::milli>(end_time_ - start_time_).count();
}

} // namespace kunlun::distributed
