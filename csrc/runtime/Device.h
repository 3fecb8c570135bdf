// Devices as the process sees them: count, thread-local current device, first use, fork.
#pragma once

#include <atomic>
#include <cstdint>

#include <c10/core/Device.h>

#include "runtime/chip/chip.h"

namespace kunlun {

// Upper bound of devices in one process; tables that are indexed by device have this size.
inline constexpr int kMaxDevices = 64;

enum class RuntimeState : uint8_t {
  NotStarted, // nothing has used a device yet
  Ready,      // the chip is loaded
  BadFork,    // this process was forked from one that had used a device
  ShutDown    // the interpreter is exiting, the chip's threads are gone
};

namespace detail {
extern std::atomic<RuntimeState> runtime_state;
void startRuntime();
extern constinit thread_local c10::DeviceIndex current_device;
} // namespace detail

// Whether the device may be touched right now: started, not in a forked child, not after the shutdown. Deleters ask
// this and do nothing otherwise, because there is no device left to give anything back to.
inline bool checkUsable() noexcept {
  return detail::runtime_state.load(std::memory_order_acquire) == RuntimeState::Ready;
}

// Starts the device at first use. Raises in a child forked after that, and when the chip cannot be loaded.
inline void lazyInit() {
  if (!checkUsable()) [[unlikely]] {
    detail::startRuntime();
  }
}

inline RuntimeState runtimeState() noexcept {
  return detail::runtime_state.load(std::memory_order_acquire);
}

// Number of devices. Starts nothing; a chip that cannot be loaded counts as no device, with one warning.
c10::DeviceIndex deviceCount() noexcept;
// The same, but raises the reason when there is none.
c10::DeviceIndex deviceCountEnsureNonZero();

inline c10::DeviceIndex currentDevice() noexcept {
  return detail::current_device;
}
void setDevice(c10::DeviceIndex device);
// Returns the previous device.
c10::DeviceIndex exchangeDevice(c10::DeviceIndex device);
// Like exchangeDevice, but a negative device changes nothing and returns -1.
c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device);
// For destructors: the index has been checked before.
inline void uncheckedSetDevice(c10::DeviceIndex device) noexcept {
  detail::current_device = device;
}

// -1 becomes the current device; out of range raises.
c10::DeviceIndex resolveDevice(c10::DeviceIndex device);

const kl_device_properties& deviceProperties(c10::DeviceIndex device);
bool hasCapability(c10::DeviceIndex device, uint64_t capability);
// Whether anything has been created on the device (torch's "primary context").
bool hasPrimaryContext(c10::DeviceIndex device) noexcept;
void markPrimaryContext(c10::DeviceIndex device) noexcept;

// Waits for all streams of the device and raises what they have to report.
void synchronizeDevice(c10::DeviceIndex device);
// Clears a faulty device: pending work is dropped, memory contents are lost.
void resetDevice(c10::DeviceIndex device);

// Ends the chip's threads. After this no device can be used in this process; called once at interpreter exit.
void shutdown() noexcept;

} // namespace kunlun
