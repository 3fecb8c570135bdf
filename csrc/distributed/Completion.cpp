// Marks around an operation on its stream.
#include "distributed/Completion.h"

#include "runtime/Error.h"
#include "runtime/chip/Loader.h"

namespace kunlun::distributed {

namespace {

using Pointer = c10::intrusive_ptr<Completion>;

void enqueue(Completion& completion, kl_stream stream, kl_host_fn mark, const char* name) {
  // The mark holds a reference of its own.
  Completion* raw = Pointer::reclaim_copy(&completion).release();
  const kl_result result = chip::runtime().launch_host(stream, name, mark, raw);
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
  self->done_.store(true, std::memory_order_seq_cst);
  if (self->has_waiter_.load(std::memory_order_seq_cst)) {
    std::lock_guard lock(self->lock_);
    self->changed_.notify_all();
  }
  return KL_SUCCESS;
}

bool Completion::waitUntil(Clock::time_point deadline) {
  if (isDone()) {
    return true;
  }
  has_waiter_.store(true, std::memory_order_seq_cst);
  std::unique_lock lock(lock_);
  return changed_.wait_until(lock, deadline, [&] { return done_.load(std::memory_order_seq_cst); });
}

float Completion::milliseconds() const {
  return std::chrono::duration<float, std::milli>(end_time_ - start_time_).count();
}

} // namespace kunlun::distributed
