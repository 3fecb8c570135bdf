// Entries of the runtime table about the driver and its devices.
#include <cstdio>

#include "runtime/Env.h"
#include "runtime/sim/Device.h"
#include "runtime/sim/DriverEntries.h"
#include "runtime/sim/Interrupt.h"
#include "runtime/sim/Protect.h"
#include "runtime/sim/Sim.h"
#include "runtime/sim/Status.h"
#include "runtime/sim/Telemetry.h"

#ifndef KUNLUN_VERSION
#define KUNLUN_VERSION "0.0.0"
#endif

namespace kunlun::sim::entries {

kl_result driverInfo(kl_driver_info* out) {
  return entry("driver_info", [&] {
    require(out, "out");
    *out = kl_driver_info{};
    std::snprintf(out->name, sizeof(out->name), "sim");
    std::snprintf(out->driver_version, sizeof(out->driver_version), "%s", KUNLUN_VERSION);
    std::snprintf(out->runtime_version, sizeof(out->runtime_version), "%s", KUNLUN_VERSION);
    std::snprintf(out->note, sizeof(out->note), "%s", protectionNote());
    return KL_SUCCESS;
  });
}

kl_result lastErrorEntry(kl_error* out) {
  if (out == nullptr) {
    return fail(KL_ERROR_VALUE, "last_error", "out is NULL");
  }
  *out = lastError();
  return KL_SUCCESS;
}

kl_result deviceCountEntry(int32_t* out) {
  // Answered in a forked child too: it starts nothing.
  try {
    require(out, "out");
    *out = deviceCount();
    return KL_SUCCESS;
  } catch (...) {
    return translateException("device_count");
  }
}

kl_result devicePropertiesEntry(int32_t device, kl_device_properties* out) {
  return entry("device_properties", [&] {
    require(out, "out");
    deviceProperties(device, out);
    return KL_SUCCESS;
  });
}

kl_result deviceSynchronize(int32_t index) {
  return entry("device_synchronize", [&] {
    checkIndex(index);
    Device* started = startedDevice(index);
    if (started == nullptr) {
      return KL_SUCCESS;
    }
    const kl_result result = started->synchronize();
    return usable() ? result : refuseUnusable("device_synchronize");
  });
}

kl_result deviceReset(int32_t index) {
  return entry("device_reset", [&] {
    checkIndex(index);
    if (Device* started = startedDevice(index)) {
      started->reset();
    }
    return KL_SUCCESS;
  });
}

kl_result deviceTelemetry(int32_t index, int32_t what, double* out) {
  return entry("device_telemetry", [&] {
    require(out, "out");
    checkIndex(index);
    *out = measure(index, what);
    return KL_SUCCESS;
  });
}

kl_result setInterruptCheckEntry(kl_interrupt_check check) {
  setInterruptCheck(check);
  return KL_SUCCESS;
}

} // namespace kunlun::sim::entries
