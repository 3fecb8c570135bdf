// Devices as the process sees them: count, thread-local current device, first use, fork.
#include "runtime/Device.h"

#include <array>
#include <mutex>

#include <pthread.h>

#include <c10/util/Exception.h>

#include "runtime/Env.h"
#include "runtime/Error.h"
#include "runtime/Interrupt.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"
#include "runtime/sim/Sim.h"

namespace kunlun {

namespace detail {

std::atomic<RuntimeState> runtime_state{RuntimeState::NotStarted};
constinit thread_local c10::DeviceIndex current_device = 0;

} // namespace detail

namespace {

// Guards the step from NotStarted to Ready and the list of properties.
std::mutex start_mutex;
std::array<kl_device_properties, kMaxDevices> properties;
std::array<std::atomic<bool>, kMaxDevices> properties_known;
std::array<std::atomic<bool>, kMaxDevices> has_context;

// The number of devices once the chip has told; a failure is not remembered, so that it can be corrected.
std::atomic<int> known_count{-1};

void enterChild() {
  detail::runtime_state.store(RuntimeState::BadFork, std::memory_order_release);
}

int queryDeviceCount() {
  int count = known_count.load(std::memory_order_acquire);
  if (count >= 0) {
    return count;
  }
  try {
    int32_t found = 0;
    check(chip::runtime().device_count(&found), "device_count");
    TORCH_CHECK(
        found >= 0 && found <= kMaxDevices,
        "the chip's driver reports ",
        found,
        " devices; between 0 and ",
        kMaxDevices,
        " are supported. KUNLUN_VISIBLE_DEVICES selects some of them.");
    known_count.store(found, std::memory_order_release);
    return found;
  } catch (const c10::Error&) {
    throw;
  } catch (...) {
    rethrowLoadFailure();
  }
}

void checkDevice(c10::DeviceIndex device) {
  const int count = queryDeviceCount();
  TORCH_CHECK(
      device >= 0 && device < count,
      "invalid kunlun device ordinal ",
      static_cast<int>(device),
      ": this process sees ",
      count,
      count == 1 ? " device" : " devices",
      " (numbered from 0)");
}

} // namespace

namespace detail {

void startRuntime() {
  std::lock_guard<std::mutex> lock(start_mutex);
  switch (runtime_state.load(std::memory_order_acquire)) {
    case RuntimeState::Ready:
      return;
    case RuntimeState::BadFork:
      TORCH_CHECK(
          false,
          "Cannot re-initialize kunlun in forked subprocess. To use kunlun with multiprocessing, you must use the "
          "'spawn' start method");
    case RuntimeState::ShutDown:
      TORCH_CHECK(false, "the kunlun runtime has been shut down because the interpreter is exiting");
    case RuntimeState::NotStarted:
      break;
  }
  try {
    chip::chip();
    launch_blocking.store(env().launch_blocking, std::memory_order_relaxed);
  } catch (...) {
    rethrowLoadFailure();
  }
  TORCH_CHECK(
      queryDeviceCount() > 0,
      "no kunlun device is visible to this process; look at KUNLUN_VISIBLE_DEVICES and KUNLUN_CHIP");
  installInterruptCheck();
  static const int registered = pthread_atfork(nullptr, nullptr, &enterChild);
  TORCH_CHECK(registered == 0, "pthread_atfork failed with error ", registered);
  runtime_state.store(RuntimeState::Ready, std::memory_order_release);
}

} // namespace detail

c10::DeviceIndex deviceCount() noexcept {
  try {
    return static_cast<c10::DeviceIndex>(queryDeviceCount());
  } catch (const std::exception& e) {
    // torch demands a number here; the reason is raised again, in full, by whatever uses a device.
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
      const auto* error = dynamic_cast<const c10::Error*>(&e);
      TORCH_WARN("no kunlun device can be used: ", error != nullptr ? error->what_without_backtrace() : e.what());
    }
    return 0;
  }
}

c10::DeviceIndex deviceCountEnsureNonZero() {
  const int count = queryDeviceCount();
  TORCH_CHECK(count > 0, "no kunlun device is visible to this process; look at KUNLUN_VISIBLE_DEVICES and KUNLUN_CHIP");
  return static_cast<c10::DeviceIndex>(count);
}

void setDevice(c10::DeviceIndex device) {
  checkDevice(device);
  detail::current_device = device;
}

c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) {
  const c10::DeviceIndex previous = detail::current_device;
  if (device != previous) {
    setDevice(device);
  }
  return previous;
}

c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) {
  return device < 0 ? c10::DeviceIndex(-1) : exchangeDevice(device);
}

c10::DeviceIndex resolveDevice(c10::DeviceIndex device) {
  if (device == -1) {
    return detail::current_device;
  }
  checkDevice(device);
  return device;
}

const kl_device_properties& deviceProperties(c10::DeviceIndex device) {
  device = resolveDevice(device);
  checkDevice(device);
  if (!properties_known[device].load(std::memory_order_acquire)) {
    std::lock_guard<std::mutex> lock(start_mutex);
    if (!properties_known[device].load(std::memory_order_relaxed)) {
      check(chip::runtime().device_properties(device, &properties[device]), "device_properties");
      properties_known[device].store(true, std::memory_order_release);
    }
  }
  return properties[device];
}

bool hasCapability(c10::DeviceIndex device, uint64_t capability) {
  return (deviceProperties(device).capabilities & capability) == capability;
}

bool hasPrimaryContext(c10::DeviceIndex device) noexcept {
  return checkUsable() && device >= 0 && device < kMaxDevices && has_context[device].load(std::memory_order_acquire);
}

void markPrimaryContext(c10::DeviceIndex device) noexcept {
  has_context[device].store(true, std::memory_order_release);
}

void synchronizeDevice(c10::DeviceIndex device) {
  lazyInit();
  device = resolveDevice(device);
  check(chip::runtime().device_synchronize(device), "device_synchronize");
}

void resetDevice(c10::DeviceIndex device) {
  lazyInit();
  device = resolveDevice(device);
  check(chip::runtime().device_reset(device), "device_reset");
}

void shutdown() noexcept {
  std::lock_guard<std::mutex> lock(start_mutex);
  const RuntimeState state = detail::runtime_state.load(std::memory_order_acquire);
  if (state == RuntimeState::BadFork) {
    return; // the parent's threads do not exist here
  }
  detail::runtime_state.store(RuntimeState::ShutDown, std::memory_order_release);
  if (state == RuntimeState::Ready) {
    sim::shutdown();
  }
}

} // namespace kunlun
