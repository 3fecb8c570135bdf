// An event: a mark in a stream that others can wait for or take the time of.
#include "runtime/Event.h"

#include "runtime/Error.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

Event::~Event() {
  // In a forked child and after the shutdown there is no driver left that knows the event.
  if (event_ != nullptr && checkUsable()) {
    chip::runtime().event_destroy(event_);
  }
}

void Event::record() {
  record(getCurrentStream());
}

void Event::record(const Stream& stream) {
  const kl_stream handle = stream.handle();
  if (event_ == nullptr) {
    check(
        chip::runtime().event_create(stream.device_index(), timing_ ? uint32_t(KL_EVENT_TIMING) : 0u, &event_),
        "event_create");
    device_ = stream.device_index();
  }
  TORCH_CHECK_VALUE(
      device_ == stream.device_index(),
      "the event was first recorded on kunlun:",
      static_cast<int>(device_),
      " and cannot be recorded on a stream of kunlun:",
      static_cast<int>(stream.device_index()));
  check(chip::runtime().event_record(event_, handle), "event_record");
}

void Event::block(const Stream& stream) const {
  if (event_ != nullptr) {
    check(chip::runtime().stream_wait_event(stream.handle(), event_), "stream_wait_event");
  }
}

bool Event::query() const {
  return event_ == nullptr || (lazyInit(), checkReady(chip::runtime().event_query(event_), "event_query"));
}

void Event::synchronize() const {
  if (event_ != nullptr) {
    lazyInit();
    check(chip::runtime().event_synchronize(event_), "event_synchronize");
  }
}

double Event::elapsed_time(const Event& end) const {
  TORCH_CHECK_VALUE(
      timing_ && end.timing_, "both events need enable_timing=True before the time between them can be taken");
  TORCH_CHECK_VALUE(
      event_ != nullptr && end.event_ != nullptr,
      "both events must be recorded before the time between them can be taken");
  lazyInit();
  double milliseconds = 0;
  check(chip::runtime().event_elapsed(event_, end.event_, &milliseconds), "event_elapsed");
  return milliseconds;
}

namespace {
thread_local kl_event adopted = nullptr;
} // namespace

AdoptEventScope::AdoptEventScope(kl_event event) noexcept : outer_(std::exchange(adopted, event)) {}

AdoptEventScope::~AdoptEventScope() {
  adopted = outer_;
}

kl_event AdoptEventScope::take() noexcept {
  return std::exchange(adopted, nullptr);
}

} // namespace kunlun
