// The tables of the simulated chip, and what its operators and collectives call.
#include <atomic>

#include "runtime/sim/Device.h"
#include "runtime/sim/DriverEntries.h"
#include "runtime/sim/Faults.h"
#include "runtime/sim/Sim.h"
#include "runtime/sim/Status.h"
#include "runtime/sim/Stream.h"
#include "runtime/sim/collectives/Table.h"

namespace kunlun::sim {
namespace {

std::atomic<OperatorsFn> operators{nullptr};

constexpr kl_runtime_table kRuntime = {
    .header = {sizeof(kl_runtime_table), KL_RUNTIME_ABI_MAJOR, KL_RUNTIME_ABI_MINOR},
    .driver_info = entries::driverInfo,
    .last_error = entries::lastErrorEntry,
    .device_count = entries::deviceCountEntry,
    .device_properties = entries::devicePropertiesEntry,
    .memory_info = entries::memoryInfo,
    .memory_alloc = entries::memoryAlloc,
    .memory_free = entries::memoryFree,
    .host_malloc = entries::hostMalloc,
    .host_free = entries::hostFreeEntry,
    .pointer_info = entries::pointerInfo,
    .stream_create = entries::streamCreate,
    .stream_destroy = entries::streamDestroy,
    .stream_query = entries::streamQuery,
    .stream_synchronize = entries::streamSynchronize,
    .stream_sequence = entries::streamSequence,
    .stream_wait_event = entries::streamWaitEvent,
    .device_synchronize = entries::deviceSynchronize,
    .device_reset = entries::deviceReset,
    .event_create = entries::eventCreate,
    .event_destroy = entries::eventDestroy,
    .event_record = entries::eventRecord,
    .event_query = entries::eventQuery,
    .event_synchronize = entries::eventSynchronize,
    .event_elapsed = entries::eventElapsed,
    .memcpy_async = entries::memcpyAsync,
    .memset_async = entries::memsetAsync,
    .launch_host = entries::launchHost,
    .ipc_get_handle = entries::ipcGetHandle,
    .ipc_open_handle = entries::ipcOpenHandle,
    .ipc_close_handle = entries::ipcCloseHandle,
    .set_interrupt_check = entries::setInterruptCheckEntry,
    .try_host = entries::tryHost,
    .device_telemetry = entries::deviceTelemetry,
    .event_ipc_get_handle = entries::eventIpcGetHandle,
    .event_ipc_open_handle = entries::eventIpcOpenHandle,
    .address_reserve = entries::addressReserve,
    .address_release = entries::addressRelease,
    .memory_map = entries::memoryMap,
    .memory_unmap = entries::memoryUnmap,
    .stream_device = entries::streamDevice,
    .stream_write_value32 = entries::streamWriteValue32,
    .stream_wait_value32 = entries::streamWaitValue32,
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
