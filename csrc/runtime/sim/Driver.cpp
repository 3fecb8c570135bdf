// The runtime table of the simulated chip.
#include <cstdio>
#include <cstring>

#include "runtime/Env.h"
#include "runtime/sim/Copy.h"
#include "runtime/sim/Device.h"
#include "runtime/sim/Event.h"
#include "runtime/sim/Faults.h"
#include "runtime/sim/HostMemory.h"
#include "runtime/sim/PeerMemory.h"
#include "runtime/sim/Protect.h"
#include "runtime/sim/SharedEvent.h"
#include "runtime/sim/Sim.h"
#include "runtime/sim/Status.h"
#include "runtime/sim/Stream.h"
#include "runtime/sim/Telemetry.h"
#include "runtime/sim/collectives/Table.h"

#ifndef KUNLUN_VERSION
#define KUNLUN_VERSION "0.0.0"
#endif

namespace kunlun::sim {
namespace {

std::atomic<OperatorsFn> operators{nullptr};

void require(const void* pointer, const char* what) {
  if (pointer == nullptr) [[unlikely]] {
    raise(KL_ERROR_VALUE, -1, "%s is NULL", what);
  }
}

Stream& streamOf(kl_stream handle) {
  require(handle, "the stream");
  return *reinterpret_cast<Stream*>(handle);
}

Event& eventOf(kl_event handle) {
  require(handle, "the event");
  return *reinterpret_cast<Event*>(handle);
}

// A device that was never started cannot be poisoned.
void checkHealthy(int device) {
  if (const Device* d = startedDevice(device)) {
    d->checkHealthy();
  }
}

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

kl_result memoryInfo(int32_t index, uint64_t* free_bytes, uint64_t* total_bytes) {
  return entry("memory_info", [&] {
    require(free_bytes, "free_bytes");
    require(total_bytes, "total_bytes");
    checkIndex(index);
    checkHealthy(index);
    Device* started = startedDevice(index);
    *total_bytes = deviceMemory();
    *free_bytes = started == nullptr ? *total_bytes : started->arena().freeBytes();
    return KL_SUCCESS;
  });
}

kl_result memoryAlloc(int32_t index, uint64_t bytes, int32_t kind, void** out) {
  return entry("memory_alloc", [&] {
    require(out, "out");
    if (kind != KL_MEMORY_MAIN) {
      raise(
          kind == KL_MEMORY_L3 ? KL_ERROR_NOT_IMPLEMENTED : KL_ERROR_VALUE,
          index,
          kind == KL_MEMORY_L3 ? "the simulated chip has no L3 memory to allocate (l3_memory is 0)"
                               : "the kind of memory is neither KL_MEMORY_MAIN nor KL_MEMORY_L3");
    }
    Device& owner = device(index);
    owner.checkHealthy();
    *out = owner.arena().allocate(bytes);
    return KL_SUCCESS;
  });
}

kl_result memoryFree(int32_t index, void* ptr) {
  return releasingEntry("memory_free", [&] {
    if (ptr == nullptr) {
      return KL_SUCCESS;
    }
    checkIndex(index);
    Device* owner = startedDevice(index);
    if (owner == nullptr) {
      raise(KL_ERROR_VALUE, index, "%p is not the start of a segment of device %d", ptr, index);
    }
    owner->arena().free(ptr);
    return KL_SUCCESS;
  });
}

Arena& startedArena(int index, const void* ptr) {
  checkIndex(index);
  Device* owner = startedDevice(index);
  if (owner == nullptr || !owner->arena().contains(ptr, 1)) {
    raise(KL_ERROR_VALUE, index, "%p is not an address of device %d", ptr, index);
  }
  return owner->arena();
}

kl_result addressReserve(int32_t index, uint64_t bytes, uint64_t* granularity, void** out) {
  return entry("address_reserve", [&] {
    require(granularity, "granularity");
    require(out, "out");
    Device& owner = device(index);
    owner.checkHealthy();
    *granularity = Arena::kGranularity;
    *out = owner.arena().reserve(bytes);
    return KL_SUCCESS;
  });
}

kl_result addressRelease(int32_t index, void* base) {
  return releasingEntry("address_release", [&] {
    startedArena(index, base).release(base);
    return KL_SUCCESS;
  });
}

kl_result memoryMap(int32_t index, void* ptr, uint64_t bytes) {
  return entry("memory_map", [&] {
    Arena& arena = startedArena(index, ptr);
    checkHealthy(index);
    arena.map(ptr, bytes);
    return KL_SUCCESS;
  });
}

kl_result memoryUnmap(int32_t index, void* ptr, uint64_t bytes) {
  return releasingEntry("memory_unmap", [&] {
    startedArena(index, ptr).unmap(ptr, bytes);
    return KL_SUCCESS;
  });
}

kl_result hostMalloc(uint64_t bytes, void** out) {
  return entry("host_malloc", [&] {
    require(out, "out");
    *out = hostAllocate(bytes);
    return KL_SUCCESS;
  });
}

kl_result hostFreeEntry(void* ptr) {
  return releasingEntry("host_free", [&] {
    if (ptr != nullptr) {
      hostFree(ptr);
    }
    return KL_SUCCESS;
  });
}

kl_result pointerInfo(const void* ptr, kl_pointer_info* out) {
  return entry("pointer_info", [&] {
    require(out, "out");
    *out = kl_pointer_info{KL_POINTER_UNKNOWN, -1, nullptr, 0};
    if (Device* holder = deviceHolding(ptr, 1)) {
      if (holder->arena().find(ptr, out) || findImported(ptr, out)) {
        out->type = KL_POINTER_DEVICE;
      }
    } else if (hostFind(ptr, out)) {
      out->type = KL_POINTER_HOST;
    }
    return KL_SUCCESS;
  });
}

// Priorities are accepted and make no difference: KL_CAP_PRIORITY is off.
kl_result streamCreate(int32_t index, int32_t, kl_stream* out) {
  return entry("stream_create", [&] {
    require(out, "out");
    *out = reinterpret_cast<kl_stream>(device(index).createStream().get());
    return KL_SUCCESS;
  });
}

kl_result streamDestroy(kl_stream handle) {
  return releasingEntry("stream_destroy", [&] {
    Stream& stream = streamOf(handle);
    return stream.device().destroyStream(stream);
  });
}

kl_result streamQuery(kl_stream handle) {
  return entry("stream_query", [&] {
    Stream& stream = streamOf(handle);
    stream.device().checkHealthy();
    return stream.isIdle() ? KL_SUCCESS : KL_NOT_READY;
  });
}

kl_result streamSynchronize(kl_stream handle) {
  return entry("stream_synchronize", [&] {
    Stream& stream = streamOf(handle);
    if (!stream.isIdle()) {
      stream.refuseOwnThread("stream_synchronize");
      stream.waitUntil(stream.enqueued());
      if (!usable()) {
        return refuseUnusable("stream_synchronize");
      }
    }
    return stream.report();
  });
}

kl_result streamSequence(kl_stream handle, uint64_t* out) {
  return entry("stream_sequence", [&] {
    require(out, "out");
    *out = streamOf(handle).enqueued();
    return KL_SUCCESS;
  });
}

kl_result streamWaitEvent(kl_stream handle, kl_event event) {
  return entry("stream_wait_event", [&] {
    Stream& stream = streamOf(handle);
    stream.device().checkHealthy();
    if (const auto record = eventOf(event).current()) {
      stream.waitFor(record);
    }
    return KL_SUCCESS;
  });
}

kl_result streamDevice(kl_stream handle, int32_t* out) {
  return entry("stream_device", [&] {
    require(out, "out");
    for (int index = 0, count = deviceCount(); index < count; ++index) {
      const Device* started = startedDevice(index);
      if (started != nullptr && started->hasStream(handle)) {
        *out = index;
        return KL_SUCCESS;
      }
    }
    raise(KL_ERROR_VALUE, -1, "%p is not a stream of the simulated chip", static_cast<void*>(handle));
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

kl_result eventCreate(int32_t index, uint32_t flags, kl_event* out) {
  return entry("event_create", [&] {
    require(out, "out");
    checkIndex(index);
    checkHealthy(index);
    const bool timing = (flags & KL_EVENT_TIMING) != 0;
    if ((flags & KL_EVENT_INTERPROCESS) == 0) {
      *out = reinterpret_cast<kl_event>(new Event(index, timing));
      return KL_SUCCESS;
    }
    if (timing) {
      raise(KL_ERROR_VALUE, index, "an event that is shared between processes cannot take the time");
    }
    device(index); // starts the chip: the event lives in memory of its own
    *out = reinterpret_cast<kl_event>(new Event(index, SharedEvent::create(index)));
    return KL_SUCCESS;
  });
}

// An event is only memory, so it is given back in a forked child and at process exit too.
kl_result eventDestroy(kl_event handle) {
  if (handle == nullptr) {
    return fail(KL_ERROR_VALUE, "event_destroy", "the event is NULL");
  }
  delete reinterpret_cast<Event*>(handle);
  return KL_SUCCESS;
}

kl_result eventRecord(kl_event handle, kl_stream stream) {
  return entry("event_record", [&] {
    Stream& on = streamOf(stream);
    on.device().checkHealthy();
    eventOf(handle).record(on);
    return KL_SUCCESS;
  });
}

kl_result eventQuery(kl_event handle) {
  return entry("event_query", [&] {
    const Event& event = eventOf(handle);
    checkHealthy(event.device());
    return event.query() ? KL_SUCCESS : KL_NOT_READY;
  });
}

kl_result eventSynchronize(kl_event handle) {
  return entry("event_synchronize", [&] {
    const Event& event = eventOf(handle);
    const kl_result result = event.synchronize();
    if (!usable()) {
      return refuseUnusable("event_synchronize");
    }
    checkHealthy(event.device());
    return result;
  });
}

kl_result eventElapsed(kl_event start, kl_event end, double* milliseconds) {
  return entry("event_elapsed", [&] {
    require(milliseconds, "milliseconds");
    checkHealthy(eventOf(start).device());
    return Event::elapsed(eventOf(start), eventOf(end), milliseconds);
  });
}

kl_result ipcGetHandle(void* ptr, char* handle) {
  return entry("ipc_get_handle", [&] {
    require(handle, "handle");
    exportMemory(ptr, handle);
    return KL_SUCCESS;
  });
}

kl_result ipcOpenHandle(int32_t index, const char* handle, void** out) {
  return entry("ipc_open_handle", [&] {
    require(handle, "handle");
    require(out, "out");
    *out = importMemory(index, handle);
    return KL_SUCCESS;
  });
}

kl_result ipcCloseHandle(void* ptr) {
  return releasingEntry("ipc_close_handle", [&] {
    closeMemory(ptr);
    return KL_SUCCESS;
  });
}

kl_result eventIpcGetHandle(kl_event handle, char* out) {
  return entry("event_ipc_get_handle", [&] {
    require(out, "handle");
    eventOf(handle).exportHandle(out);
    return KL_SUCCESS;
  });
}

kl_result eventIpcOpenHandle(int32_t index, const char* handle, kl_event* out) {
  return entry("event_ipc_open_handle", [&] {
    require(handle, "handle");
    require(out, "out");
    checkIndex(index);
    checkHealthy(index);
    *out = reinterpret_cast<kl_event>(new Event(index, SharedEvent::open(index, handle)));
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

kl_result memcpyAsync(void* dst, const void* src, uint64_t bytes, int32_t kind, uint32_t flags, kl_stream stream) {
  return entry("memcpy_async", [&] { return copy(dst, src, bytes, kind, flags, streamOf(stream)); });
}

kl_result memsetAsync(void* dst, int32_t byte, uint64_t bytes, kl_stream stream) {
  return entry("memset_async", [&] { return fill(dst, byte, bytes, streamOf(stream)); });
}

kl_result launchHost(kl_stream handle, const char* name, kl_host_fn fn, void* arg) {
  return entry("launch_host", [&] {
    require(reinterpret_cast<const void*>(fn), "the function");
    Stream& stream = streamOf(handle);
    stream.device().checkHealthy();
    stream.host(name, fn, arg);
    return KL_SUCCESS;
  });
}

kl_result setInterruptCheckEntry(kl_interrupt_check check) {
  setInterruptCheck(check);
  return KL_SUCCESS;
}

kl_result tryHost(kl_stream handle, const char* name, kl_host_fn fn, void* arg) {
  return entry("try_host", [&] {
    require(reinterpret_cast<const void*>(fn), "the function");
    return streamOf(handle).tryHost(name, fn, arg) ? KL_SUCCESS : KL_NOT_READY;
  });
}

constexpr kl_runtime_table kRuntime = {
    .header = {sizeof(kl_runtime_table), KL_RUNTIME_ABI_MAJOR, KL_RUNTIME_ABI_MINOR},
    .driver_info = driverInfo,
    .last_error = lastErrorEntry,
    .device_count = deviceCountEntry,
    .device_properties = devicePropertiesEntry,
    .memory_info = memoryInfo,
    .memory_alloc = memoryAlloc,
    .memory_free = memoryFree,
    .host_malloc = hostMalloc,
    .host_free = hostFreeEntry,
    .pointer_info = pointerInfo,
    .stream_create = streamCreate,
    .stream_destroy = streamDestroy,
    .stream_query = streamQuery,
    .stream_synchronize = streamSynchronize,
    .stream_sequence = streamSequence,
    .stream_wait_event = streamWaitEvent,
    .device_synchronize = deviceSynchronize,
    .device_reset = deviceReset,
    .event_create = eventCreate,
    .event_destroy = eventDestroy,
    .event_record = eventRecord,
    .event_query = eventQuery,
    .event_synchronize = eventSynchronize,
    .event_elapsed = eventElapsed,
    .memcpy_async = memcpyAsync,
    .memset_async = memsetAsync,
    .launch_host = launchHost,
    .ipc_get_handle = ipcGetHandle,
    .ipc_open_handle = ipcOpenHandle,
    .ipc_close_handle = ipcCloseHandle,
    .set_interrupt_check = setInterruptCheckEntry,
    .try_host = tryHost,
    .device_telemetry = deviceTelemetry,
    .event_ipc_get_handle = eventIpcGetHandle,
    .event_ipc_open_handle = eventIpcOpenHandle,
    .address_reserve = addressReserve,
    .address_release = addressRelease,
    .memory_map = memoryMap,
    .memory_unmap = memoryUnmap,
    .stream_device = streamDevice,
};

} // namespace

kl_chip chip() {
  const OperatorsFn table = operators.load(std::memory_order_acquire);
  return {
      &kRuntime, table == nullptr ? nullptr : table(), reinterpret_cast<const kl_collectives_table*>(&kCollectives)};
}

void setOperators(OperatorsFn table) {
  operators.store(table, std::memory_order_release);
}

kl_result passLink(int source, uint64_t bytes) {
  return entry("pass_link", [&] {
    Stream* const stream = Stream::current();
    if (stream == nullptr) {
      raise(KL_ERROR_RUNTIME, source, "only the thread of a stream can wait for a link");
    }
    device(source).peerLink().pass(*stream, bytes);
    return KL_SUCCESS;
  });
}

kl_result enqueue(kl_stream handle, const char* name, WorkFn run, void* context, const void* payload, size_t bytes) {
  return entry(name, [&] {
    Stream& stream = streamOf(handle);
    if (const kl_result failure = stream.report(); failure != KL_SUCCESS) [[unlikely]] {
      return failure;
    }
    if (faultsPending() && showFault(stream, name)) [[unlikely]] {
      return KL_SUCCESS;
    }
    stream.work(name, run, context, payload, bytes);
    return KL_SUCCESS;
  });
}

kl_stream currentStream() {
  return reinterpret_cast<kl_stream>(Stream::current());
}

} // namespace kunlun::sim
