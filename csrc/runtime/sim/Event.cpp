// Recording, waiting for and timing of events.
#include "runtime/sim/Event.h"

#include "runtime/sim/Device.h"
#include "runtime/sim/Interrupt.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {

void Event::record(Stream& stream) {
  if (stream.device().index() != device_) {
    raise(
        KL_ERROR_VALUE,
        device_,
        "an event of device %d cannot be recorded on a stream of device %d",
        device_,
        stream.device().index());
  }
  auto record = std::make_shared<EventRecord>();
  record->stream = stream.shared_from_this();
  record->timing = timing_;
  if (shared_ != nullptr) {
    record->shared = shared_;
    record->generation = shared_->begin();
  }
  try {
    stream.record(record);
  } catch (...) {
    if (shared_ != nullptr) {
      shared_->finish(record->generation, true);
    }
    throw;
  }
  std::lock_guard lock(lock_);
  record_ = std::move(record);
}

void Event::exportHandle(char handle[64]) const {
  if (shared_ == nullptr) {
    raise(
        KL_ERROR_VALUE,
        device_,
        "an event can be handed to other processes only if it was made for that (KL_EVENT_INTERPROCESS)");
  }
  shared_->exportHandle(device_, handle);
}

std::shared_ptr<EventRecord> Event::current() const {
  std::shared_ptr<EventRecord> own;
  {
    std::lock_guard lock(lock_);
    own = record_;
  }
  if (shared_ == nullptr) {
    return own;
  }
  const uint64_t newest = shared_->newest();
  if (newest == 0 || (own != nullptr && own->generation == newest)) {
    return own;
  }
  auto foreign = std::make_shared<EventRecord>();
  foreign->shared = shared_;
  foreign->generation = newest;
  return foreign;
}

bool Event::query() const {
  const auto record = current();
  return record == nullptr || record->isDone();
}

kl_result Event::synchronize() const {
  const auto record = current();
  if (record == nullptr) {
    return KL_SUCCESS;
  }
  if (record->isForeign()) {
    Fault fault;
    if (!record->shared->waitFor(record->generation, isInterrupted, device_, &fault)) {
      raise(KL_ERROR_INTERRUPTED, device_, "the wait was interrupted; the work it waited for goes on");
    }
    return fault == nullptr ? KL_SUCCESS : setLastError(*fault);
  }
  if (!record->isDone()) {
    record->stream->refuseOwnThread("event_synchronize");
    waitInterruptibly(record->done, 1);
  }
  return record->fault == nullptr ? KL_SUCCESS : record->stream->report(record->fault.get());
}

kl_result Event::elapsed(const Event& start, const Event& end, double* milliseconds) {
  if (!start.timing_ || !end.timing_) {
    raise(KL_ERROR_VALUE, start.device_, "both events must be created with timing enabled to measure elapsed time");
  }
  if (start.device_ != end.device_) {
    raise(
        KL_ERROR_VALUE,
        start.device_,
        "elapsed time needs two events of one device, not of devices %d and %d",
        start.device_,
        end.device_);
  }
  const auto first = start.current();
  const auto second = end.current();
  if (first == nullptr || second == nullptr) {
    raise(KL_ERROR_VALUE, start.device_, "both events must be recorded before calculating elapsed time");
  }
  if (!first->isDone() || !second->isDone()) {
    return setLastError(makeError(
        KL_NOT_READY,
        start.device_,
        "event_elapsed",
        0,
        "both events must be completed before calculating elapsed time"));
  }
  *milliseconds = static_cast<double>(second->nanoseconds - first->nanoseconds) * 1e-6;
  return KL_SUCCESS;
}

} // namespace kunlun::sim
