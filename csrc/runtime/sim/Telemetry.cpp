// What the sensors of a card would say, as far as a simulated one can.
#include "runtime/sim/Telemetry.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/sim/Device.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {
namespace {

// Looking now and then costs the streams nothing; a clock read for each work item would.
constexpr int kSamples = 100;
constexpr auto kSamplePause = std::chrono::milliseconds(1);

double utilization(int index) {
  Device* device = startedDevice(index);
  if (device == nullptr) {
    return 0;
  }
  int busy = 0;
  for (int i = 0; i < kSamples; ++i) {
    const auto streams = device->streams();
    busy += std::any_of(streams.begin(), streams.end(), [](const auto& stream) { return !stream->isIdle(); });
    std::this_thread::sleep_for(kSamplePause);
  }
  return 100.0 * busy / kSamples;
}

const char* nameOf(int what) {
  switch (what) {
    case KL_TELEMETRY_MEMORY_UTILIZATION:
      return "the load of its memory";
    case KL_TELEMETRY_TEMPERATURE:
      return "a temperature";
    case KL_TELEMETRY_POWER:
      return "a power draw";
    case KL_TELEMETRY_CLOCK:
      return "a clock rate";
    default:
      return nullptr;
  }
}

} // namespace

double measure(int device, int what) {
  if (what == KL_TELEMETRY_UTILIZATION) {
    return utilization(device);
  }
  const char* name = nameOf(what);
  if (name == nullptr) {
    raise(KL_ERROR_VALUE, device, "%d is nothing that can be measured", what);
  }
  raise(KL_ERROR_NOT_IMPLEMENTED, device, "the simulated chip has no sensor for %s", name);
}

} // namespace kunlun::sim
