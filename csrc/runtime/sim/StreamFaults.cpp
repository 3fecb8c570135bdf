// The failures of a stream's items: where they are kept, whom they reach, when they are reported.
#include <memory>

#include "runtime/sim/Device.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {

kl_result Stream::reportSlowly(const kl_error* only) {
  if ((state_.load(std::memory_order_acquire) & kPoisoned) != 0) {
    if (const Fault poison = device_.poison()) {
      return setLastError(*poison);
    }
  }
  std::lock_guard producer(producer_);
  std::lock_guard lock(fault_lock_);
  if (fault_ == nullptr || reported_ || (only != nullptr && fault_.get() != only)) {
    return KL_SUCCESS;
  }
  reported_ = true;
  skip_through_ = enqueued_.load(std::memory_order_relaxed);
  state_.fetch_and(~uint32_t{kUnreported}, std::memory_order_release);
  return setLastError(*fault_);
}

Fault Stream::unreported() const {
  std::lock_guard lock(fault_lock_);
  return reported_ ? nullptr : fault_;
}

void Stream::setPoisoned(bool poisoned) {
  if (poisoned) {
    state_.fetch_or(kPoisoned, std::memory_order_acq_rel);
  } else {
    state_.fetch_and(~uint32_t{kPoisoned}, std::memory_order_acq_rel);
  }
}

Fault Stream::faultFor(uint64_t sequence) {
  if (stopping_.load(std::memory_order_relaxed)) [[unlikely]] {
    return std::make_shared<kl_error>(
        makeError(KL_ERROR_RUNTIME, device_.index(), "", sequence, "dropped because the process is exiting"));
  }
  const uint32_t state = state_.load(std::memory_order_acquire);
  if (state == 0) [[likely]] {
    return nullptr;
  }
  if ((state & kPoisoned) != 0) {
    if (Fault poison = device_.poison()) {
      return poison;
    }
  }
  std::lock_guard lock(fault_lock_);
  if (fault_ != nullptr && reported_ && sequence > skip_through_) {
    fault_ = nullptr;
    reported_ = false;
    state_.fetch_and(~uint32_t{kFault}, std::memory_order_acq_rel);
  }
  return fault_;
}

void Stream::fail(const kl_error& error) {
  auto fault = std::make_shared<const kl_error>(error);
  if (error.code == KL_ERROR_DEVICE) {
    device_.poison(fault);
  } else {
    taint(fault);
  }
}

void Stream::taint(const Fault& fault) {
  std::lock_guard lock(fault_lock_);
  fault_ = fault;
  reported_ = false;
  state_.fetch_or(kFault | kUnreported, std::memory_order_acq_rel);
}

} // namespace kunlun::sim
