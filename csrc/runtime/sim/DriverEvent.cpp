// Entries of the runtime table about events.
#include "runtime/sim/Device.h"
#include "runtime/sim/DriverEntries.h"
#include "runtime/sim/Event.h"
#include "runtime/sim/SharedEvent.h"
#include "runtime/sim/Sim.h"
#include "runtime/sim/Status.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim::entries {

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

} // namespace kunlun::sim::entries
