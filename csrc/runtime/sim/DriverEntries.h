// The entries of the runtime table, and what they have in common.
#pragma once

#include "runtime/sim/Device.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {

class Event;
class Stream;

inline void require(const void* pointer, const char* what) {
  if (pointer == nullptr) [[unlikely]] {
    raise(KL_ERROR_VALUE, -1, "%s is NULL", what);
  }
}

inline Stream& streamOf(kl_stream handle) {
  require(handle, "the stream");
  return *reinterpret_cast<Stream*>(handle);
}

inline Event& eventOf(kl_event handle) {
  require(handle, "the event");
  return *reinterpret_cast<Event*>(handle);
}

// A device that was never started cannot be poisoned.
inline void checkHealthy(int device) {
  if (const Device* d = startedDevice(device)) {
    d->checkHealthy();
  }
}

namespace entries {

// DriverDevice.cpp
kl_result driverInfo(kl_driver_info* out);
kl_result lastErrorEntry(kl_error* out);
kl_result deviceCountEntry(int32_t* out);
kl_result devicePropertiesEntry(int32_t device, kl_device_properties* out);
kl_result deviceSynchronize(int32_t index);
kl_result deviceReset(int32_t index);
kl_result deviceTelemetry(int32_t index, int32_t what, double* out);
kl_result setInterruptCheckEntry(kl_interrupt_check check);

// DriverMemory.cpp
kl_result memoryInfo(int32_t index, uint64_t* free_bytes, uint64_t* total_bytes);
kl_result memoryAlloc(int32_t index, uint64_t bytes, int32_t kind, void** out);
kl_result memoryFree(int32_t index, void* ptr);
kl_result addressReserve(int32_t index, uint64_t bytes, uint64_t* granularity, void** out);
kl_result addressRelease(int32_t index, void* base);
kl_result memoryMap(int32_t index, void* ptr, uint64_t bytes);
kl_result memoryUnmap(int32_t index, void* ptr, uint64_t bytes);
kl_result hostMalloc(uint64_t bytes, void** out);
kl_result hostFreeEntry(void* ptr);
kl_result pointerInfo(const void* ptr, kl_pointer_info* out);
kl_result ipcGetHandle(void* ptr, char* handle);
kl_result ipcOpenHandle(int32_t index, const char* handle, void** out);
kl_result ipcCloseHandle(void* ptr);
kl_result memcpyAsync(void* dst, const void* src, uint64_t bytes, int32_t kind, uint32_t flags, kl_stream stream);
kl_result memsetAsync(void* dst, int32_t byte, uint64_t bytes, kl_stream stream);

// DriverStream.cpp
kl_result streamCreate(int32_t index, int32_t priority, kl_stream* out);
kl_result streamDestroy(kl_stream handle);
kl_result streamQuery(kl_stream handle);
kl_result streamSynchronize(kl_stream handle);
kl_result streamSequence(kl_stream handle, uint64_t* out);
kl_result streamWaitEvent(kl_stream handle, kl_event event);
kl_result streamDevice(kl_stream handle, int32_t* out);
kl_result streamWriteValue32(kl_stream handle, void* address, uint32_t value);
kl_result streamWaitValue32(kl_stream handle, void* address, const kl_wait* wait);
kl_result launchHost(kl_stream handle, const char* name, kl_host_fn fn, void* arg);
kl_result tryHost(kl_stream handle, const char* name, kl_host_fn fn, void* arg);

// DriverEvent.cpp
kl_result eventCreate(int32_t index, uint32_t flags, kl_event* out);
kl_result eventDestroy(kl_event handle);
kl_result eventRecord(kl_event handle, kl_stream stream);
kl_result eventQuery(kl_event handle);
kl_result eventSynchronize(kl_event handle);
kl_result eventElapsed(kl_event start, kl_event end, double* milliseconds);
kl_result eventIpcGetHandle(kl_event handle, char* out);
kl_result eventIpcOpenHandle(int32_t index, const char* handle, kl_event* out);

} // namespace entries
} // namespace kunlun::sim
