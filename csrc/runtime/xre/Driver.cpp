// The runtime table over the vendor's runtime.
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/Env.h"
#include "runtime/xre/Interrupt.h"
#include "runtime/xre/Library.h"
#include "runtime/xre/Memory.h"
#include "runtime/xre/Status.h"
#include "runtime/xre/Stream.h"
#include "runtime/xre/Xre.h"
#include "runtime/xre/collectives/Table.h"

#ifndef KUNLUN_VERSION
#define KUNLUN_VERSION "0.0.0"
#endif

namespace kunlun::xre {
namespace {

Event& eventOf(kl_event event) {
  require(event, "the event");
  return *reinterpret_cast<Event*>(event);
}

int countDevices() {
  const auto& visible = env().visible_devices;
  if (visible && visible->empty()) {
    return 0; // the vendor's runtime takes an empty list for all devices
  }
  int count = 0;
  check(library().device_count(&count), "xpu_device_count");
  if (visible && static_cast<size_t>(count) != visible->size()) {
    raise(
        KL_ERROR_VALUE,
        -1,
        "KUNLUN_VISIBLE_DEVICES names %zu devices, of which the vendor's runtime finds %d",
        visible->size(),
        count);
  }
  return count;
}

void checkIndex(int device) {
  const int count = countDevices();
  if (device < 0 || device >= count) {
    raise(KL_ERROR_INDEX, -1, "kunlun device %d does not exist: this process sees %d", device, count);
  }
}

uint64_t attribute(int device, NativeAttribute which) {
  uint64_t value = 0;
  check(library().device_get_attr(&value, which, device), "xpu_device_get_attr", device);
  return value;
}

// The unit of a capacity is not documented. Cards have from 8 GiB to far less than 1 TiB, so the three possible units
// cannot be mistaken for each other.
uint64_t unitOfCapacity(uint64_t main) {
  return main < (uint64_t{1} << 20) ? uint64_t{1} << 20 : main < (uint64_t{1} << 32) ? uint64_t{1} << 10 : 1;
}

// Generation of the chip: the models of the second are numbered from 2, those of the third from 300.
int generation(uint64_t model) {
  return model < 2 ? 1 : model < 300 ? 2 : 3;
}

kl_result driverInfo(kl_driver_info* out) {
  return entry("driver_info", [&] {
    require(out, "out");
    *out = kl_driver_info{};
    uint32_t major = 0;
    uint32_t minor = 0;
    std::snprintf(out->name, sizeof(out->name), "xre");
    check(library().get_driver_version(&major, &minor), "xpu_get_driver_version");
    std::snprintf(out->driver_version, sizeof(out->driver_version), "%u.%u", major, minor);
    check(library().get_runtime_version(&major, &minor), "xpu_get_runtime_version");
    std::snprintf(out->runtime_version, sizeof(out->runtime_version), "%u.%u", major, minor);
    std::snprintf(out->note, sizeof(out->note), "%s, adapter %s", libraryFile().c_str(), KUNLUN_VERSION);
    return KL_SUCCESS;
  });
}

kl_result lastErrorEntry(kl_error* out) {
  return entry("last_error", [&] {
    require(out, "out");
    *out = lastError();
    return KL_SUCCESS;
  });
}

kl_result deviceCount(int32_t* out) {
  return entry("device_count", [&] {
    require(out, "out");
    *out = countDevices();
    return KL_SUCCESS;
  });
}

kl_result deviceProperties(int32_t device, kl_device_properties* out) {
  return entry("device_properties", [&] {
    require(out, "out");
    checkIndex(device);
    // Some versions answer for the current device, whichever is asked about.
    useDevice(device);
    *out = kl_device_properties{};
    const uint64_t main = attribute(device, kMainCapacity);
    const uint64_t unit = unitOfCapacity(main);
    const uint64_t physical = attribute(device, kPhysicalId);
    out->major = generation(attribute(device, kModel));
    std::snprintf(out->name, sizeof(out->name), "Kunlun XPU KL%d", out->major);
    std::snprintf(out->uuid, sizeof(out->uuid), "xpu-%llu", static_cast<unsigned long long>(physical));
    out->total_memory = main * unit;
    out->l3_memory = attribute(device, kL3Capacity) * unit;
    out->multi_processor_count = static_cast<int32_t>(attribute(device, kClusters));
    out->physical_id = static_cast<int32_t>(physical);
    out->capabilities = KL_CAP_PEER_ACCESS;
    return KL_SUCCESS;
  });
}

kl_result memoryAlloc(int32_t device, uint64_t bytes, int32_t kind, void** out) {
  return entry("memory_alloc", [&] {
    require(out, "out");
    checkIndex(device);
    *out = allocate(device, bytes, kind);
    return KL_SUCCESS;
  });
}

kl_result memoryFree(int32_t device, void* ptr) {
  return entry("memory_free", [&] {
    if (ptr != nullptr) {
      checkIndex(device);
      release(device, ptr);
    }
    return KL_SUCCESS;
  });
}

kl_result hostMalloc(uint64_t bytes, void** out) {
  return entry("host_malloc", [&] {
    require(out, "out");
    *out = allocateHost(bytes);
    return KL_SUCCESS;
  });
}

kl_result hostFree(void* ptr) {
  return entry("host_free", [&] {
    if (ptr != nullptr) {
      releaseHost(ptr);
    }
    return KL_SUCCESS;
  });
}

kl_result pointerInfoEntry(const void* ptr, kl_pointer_info* out) {
  return entry("pointer_info", [&] {
    require(out, "out");
    pointerInfo(ptr, out);
    return KL_SUCCESS;
  });
}

// The vendor's streams have no priorities: KL_CAP_PRIORITY is off.
kl_result streamCreate(int32_t device, int32_t, kl_stream* out) {
  return entry("stream_create", [&] {
    require(out, "out");
    checkIndex(device);
    *out = static_cast<kl_stream>(createStream(device));
    return KL_SUCCESS;
  });
}

kl_result streamDestroy(kl_stream stream) {
  return entry("stream_destroy", [&] {
    destroyStream(stream);
    return KL_SUCCESS;
  });
}

kl_result streamQuery(kl_stream stream) {
  return entry("stream_query", [&] { return isIdle(stream) ? KL_SUCCESS : KL_NOT_READY; });
}

kl_result streamSynchronize(kl_stream stream) {
  return entry("stream_synchronize", [&] {
    waitForStream(stream);
    return KL_SUCCESS;
  });
}

kl_result streamSequence(kl_stream stream, uint64_t* out) {
  return entry("stream_sequence", [&] {
    require(out, "out");
    *out = nextSequence(stream);
    return KL_SUCCESS;
  });
}

kl_result streamWaitEvent(kl_stream stream, kl_event event) {
  return entry("stream_wait_event", [&] {
    eventOf(event).makeWait(stream);
    return KL_SUCCESS;
  });
}

kl_result streamDevice(kl_stream stream, int32_t* out) {
  return entry("stream_device", [&] {
    require(out, "out");
    *out = deviceOfStream(stream);
    return KL_SUCCESS;
  });
}

kl_result deviceSynchronize(int32_t device) {
  return entry("device_synchronize", [&] {
    checkIndex(device);
    waitForDevice(device);
    return KL_SUCCESS;
  });
}

kl_result eventCreate(int32_t device, uint32_t flags, kl_event* out) {
  return entry("event_create", [&] {
    require(out, "out");
    checkIndex(device);
    if ((flags & KL_EVENT_TIMING) != 0) {
      raise(
          KL_ERROR_NOT_IMPLEMENTED,
          device,
          "the vendor's runtime has no event timing; create the event without enable_timing");
    }
    *out = reinterpret_cast<kl_event>(new Event(device));
    return KL_SUCCESS;
  });
}

kl_result eventDestroy(kl_event event) {
  return entry("event_destroy", [&] {
    delete &eventOf(event);
    return KL_SUCCESS;
  });
}

kl_result eventRecord(kl_event event, kl_stream stream) {
  return entry("event_record", [&] {
    eventOf(event).record(stream);
    return KL_SUCCESS;
  });
}

kl_result eventQuery(kl_event event) {
  return entry("event_query", [&] { return eventOf(event).query() ? KL_SUCCESS : KL_NOT_READY; });
}

kl_result eventSynchronize(kl_event event) {
  return entry("event_synchronize", [&] {
    eventOf(event).synchronize();
    return KL_SUCCESS;
  });
}

kl_result memcpyAsync(void* dst, const void* src, uint64_t bytes, int32_t kind, uint32_t flags, kl_stream stream) {
  return entry("memcpy_async", [&] {
    copy(dst, src, bytes, kind, flags, stream);
    return KL_SUCCESS;
  });
}

kl_result memsetAsync(void* dst, int32_t byte, uint64_t bytes, kl_stream stream) {
  return entry("memset_async", [&] {
    fill(dst, byte, bytes, stream);
    return KL_SUCCESS;
  });
}

// For communicators that are being made: the vendor's own waits cannot be given up.
kl_result setInterruptCheckEntry(kl_interrupt_check check) {
  setInterruptCheck(check);
  return KL_SUCCESS;
}

constexpr kl_runtime_table kRuntime = {
    .header = {sizeof(kl_runtime_table), KL_RUNTIME_ABI_MAJOR, KL_RUNTIME_ABI_MINOR},
    .driver_info = driverInfo,
    .last_error = lastErrorEntry,
    .device_count = deviceCount,
    .device_properties = deviceProperties,
    .memory_info = nullptr, // the vendor's runtime does not know what other processes use
    .memory_alloc = memoryAlloc,
    .memory_free = memoryFree,
    .host_malloc = hostMalloc,
    .host_free = hostFree,
    .pointer_info = pointerInfoEntry,
    .stream_create = streamCreate,
    .stream_destroy = streamDestroy,
    .stream_query = streamQuery,
    .stream_synchronize = streamSynchronize,
    .stream_sequence = streamSequence,
    .stream_wait_event = streamWaitEvent,
    .device_synchronize = deviceSynchronize,
    .device_reset = nullptr,
    .event_create = eventCreate,
    .event_destroy = eventDestroy,
    .event_record = eventRecord,
    .event_query = eventQuery,
    .event_synchronize = eventSynchronize,
    .event_elapsed = nullptr,
    .memcpy_async = memcpyAsync,
    .memset_async = memsetAsync,
    .launch_host = nullptr, // the vendor's streams cannot call the host
    .ipc_get_handle = nullptr,
    .ipc_open_handle = nullptr,
    .ipc_close_handle = nullptr,
    .set_interrupt_check = setInterruptCheckEntry,
    .try_host = nullptr,
    .device_telemetry = nullptr,
    .event_ipc_get_handle = nullptr,
    .event_ipc_open_handle = nullptr,
    .address_reserve = nullptr,
    .address_release = nullptr,
    .memory_map = nullptr,
    .memory_unmap = nullptr,
    .stream_device = streamDevice,
    .stream_write_value32 = nullptr,
    .stream_wait_value32 = nullptr,
};

} // namespace

bool isPresent() {
  return access("/dev/xpuctrl", F_OK) == 0 || access("/dev/xpu0", F_OK) == 0;
}

kl_result open(kl_chip* out, kl_error* error) {
  static std::mutex lock; // guards opened
  static bool opened = false;
  try {
    std::lock_guard guard(lock);
    if (!opened) {
      exportVisibleDevices();
      openLibrary();
      int count = 0;
      check(library().device_count(&count), "xpu_device_count");
      if (count == 0) {
        raise(KL_ERROR_RUNTIME, -1, "the vendor's runtime finds no device");
      }
      opened = true;
    }
    *out = {&kRuntime, nullptr, reinterpret_cast<const kl_collectives_table*>(&kCollectives)};
    return KL_SUCCESS;
  } catch (...) {
    const kl_result result = translateException("open");
    *error = lastError();
    return result;
  }
}

} // namespace kunlun::xre
