// Entries of the runtime table about streams and the calls of the host on them.
#include "runtime/sim/Device.h"
#include "runtime/sim/DriverEntries.h"
#include "runtime/sim/Event.h"
#include "runtime/sim/Status.h"
#include "runtime/sim/Stream.h"
#include "runtime/sim/Word.h"

namespace kunlun::sim::entries {

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

kl_result streamWriteValue32(kl_stream handle, void* address, uint32_t value) {
  return entry("stream_write_value32", [&] { return writeWord(address, value, streamOf(handle)); });
}

kl_result streamWaitValue32(kl_stream handle, void* address, const kl_wait* wait) {
  return entry("stream_wait_value32", [&] {
    require(wait, "the wait");
    return waitForWord(address, *wait, streamOf(handle));
  });
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

kl_result tryHost(kl_stream handle, const char* name, kl_host_fn fn, void* arg) {
  return entry("try_host", [&] {
    require(reinterpret_cast<const void*>(fn), "the function");
    return streamOf(handle).tryHost(name, fn, arg) ? KL_SUCCESS : KL_NOT_READY;
  });
}

} // namespace kunlun::sim::entries
