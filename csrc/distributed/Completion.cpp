// Marks around an operation on its stream.
#include "distributed/Completion.h"

#include <algorithm>

#include "runtime/Error.h"
#include "runtime/Futex.h"
#include "runtime/Interrupt.h"
#include "runtime/chip/Loader.h"

namespace kunlun::distributed {

namespace {

using Pointer = c10::intrusive_ptr<Completion>;

void enqueue(Completion& completion, kl_stream stream, kl_host_fn mark, const char* name) {
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
}

} // namespace

void Completion::markStart(kl_stream stream) {
  enqueue(*this, stream, onStart, "start of a collective");
}

void Completion::markEnd(kl_stream stream) {
  enqueue(*this, stream, onEnd, "end of a collective");
}

kl_result Completion::onStart(void* arg, const kl_error*, kl_error*) {
  const auto self = Pointer::reclaim(static_cast<Completion*>(arg));
  self->start_time_ = Clock::now();
  self->started_.store(true, std::memory_order_release);
  return KL_SUCCESS;
}

kl_result Completion::onEnd(void* arg, const kl_error* failure, kl_error*) {
  const auto self = Pointer::reclaim(static_cast<Completion*>(arg));
  self->end_time_ = Clock::now();
  if (failure != nullptr) {
    self->error_ = *failure;
  }
  self->started_.store(true, std::memory_order_release);
  if (self->state_.exchange(kDone, std::memory_order_acq_rel) == kAwaited) {
    futexWakeAll(&self->state_);
  }
  return KL_SUCCESS;
}

bool Completion::waitUntil(Clock::time_point deadline) {
  while (!isDone()) {
    const auto now = Clock::now();
    if (now >= deadline) {
      return false;
    }
    uint32_t pending = kPending;
    state_.compare_exchange_strong(pending, kAwaited, std::memory_order_acq_rel);
    const auto slice = std::min<Clock::time_point>(deadline, now + std::chrono::nanoseconds(kInterruptNanoseconds));
    futexWaitUntil(state_, kAwaited, std::chrono::nanoseconds(slice.time_since_epoch()).count());
    if (!isDone() && interruptPending()) {
      raiseInterrupted();
    }
  }
  return true;
}

float Completion::milliseconds() const {
  return std::chrono::duration<float, std::milli>(end_time_ - start_time_).count();
}

} // namespace kunlun::distributed
