// What is to happen once a device has done the work that it has now.
#include "runtime/AfterWork.h"

#include <atomic>
#include <cstddef>
#include <utility>

#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

namespace {

struct Pending {
  std::function<void()> function;
  std::atomic<size_t> streams; // that have not got there, and the caller
};

kl_result streamHasPassed(void* arg, const kl_error*, kl_error*) {
  auto* pending = static_cast<Pending*>(arg);
  if (pending->streams.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    pending->function();
    delete pending;
  }
  return KL_SUCCESS;
}

} // namespace

void callAfterWork(c10::DeviceIndex device, const char* name, std::function<void()> function) {
  const auto streams = busyStreams(device);
  auto* pending = new Pending{std::move(function), streams.size() + 1};
  for (const kl_stream stream : streams) {
    // A host call happens even behind a failure.
    if (!chip::hasHostCalls() || chip::runtime().launch_host(stream, name, &streamHasPassed, pending) != KL_SUCCESS) {
      chip::runtime().stream_synchronize(stream); // whatever it reports, it is not at work any more
      streamHasPassed(pending, nullptr, nullptr);
    }
  }
  streamHasPassed(pending, nullptr, nullptr);
}

} // namespace kunlun
