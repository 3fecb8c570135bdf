// The times that DistributedDataParallel keeps of its steps, for models on kunlun.
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "runtime/Device.h"
#include "runtime/Event.h"

namespace kunlun::distributed {

namespace {

// Device times, by events on the current stream. A difference waits for both of its events, as torch's for CUDA does.
// Nothing is measured on a chip whose events have no times.
class ReducerTimer : public c10d::Timer {
 public:
  explicit ReducerTimer(c10::Device device)
      : device_(device), has_times_(hasCapability(device.index(), KL_CAP_EVENT_TIMING)) {}

  void record(Event event) override {
    Timer::record(event); // the host's time
    if (!has_times_) {
      return;
    }
    const c10::DeviceGuard guard(device_);
    markOf(event).record();
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const c10::DeviceGuard guard(device_);
    const kunlun::Event& first = markOf(start);
    const kunlun::Event& last = markOf(end);
    // A step that did not happen in this iteration has not been recorded, or was recorded in an earlier one.
    if (!first.isCreated() || !last.isCreated()) {
      return std::nullopt;
    }
    first.synchronize();
    last.synchronize();
    const double milliseconds = first.elapsed_time(last);
    if (milliseconds < 0) {
      return std::nullopt;
    }
    return static_cast<int64_t>(milliseconds * 1e6);
  }

 private:
  kunlun::Event& markOf(Event event) {
    switch (event) {
      case Event::kForwardStart:
        return forward_start_;
      case Event::kBackwardComputeStart:
        return backward_compute_start_;
      case Event::kBackwardComputeEnd:
        return backward_compute_end_;
      case Event::kBackwardCommStart:
        return backward_comm_start_;
      case Event::kBackwardCommEnd:
        return backward_comm_end_;
    }
    TORCH_INTERNAL_ASSERT(false);
  }

  const c10::Device device_;
  const bool has_times_;
  kunlun::Event forward_start_{true};
  kunlun::Event backward_compute_start_{true};
  kunlun::Event backward_compute_end_{true};
  kunlun::Event backward_comm_start_{true};
  kunlun::Event backward_comm_end_{true};
};

// torch's registration macro belongs to its own namespace.
const bool registered = [] {
  c10d::TimerRegistry()->Register(c10::DeviceType::PrivateUse1, [](c10::Device device) -> std::unique_ptr<c10d::Timer> {
    return std::make_unique<ReducerTimer>(device);
  });
  return true;
}();

} // namespace

} // namespace kunlun::distributed
