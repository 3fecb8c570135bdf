// Refusing functions, one for each entry of the runtime table.
#include "runtime/chip/Refuse.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace kunlun::chip {
namespace {

// The driver's own functions, wrapped by ours.
kl_result (*driver_last_error)(kl_error*) = nullptr;
kl_result (*driver_device_properties)(int32_t, kl_device_properties*) = nullptr;
uint64_t missing_capabilities = 0;
std::string& driverName() {
  static std::string& name = *new std::string;
  return name;
}

// A refusal that last_error has not handed out yet, and what the driver's own last_error said at that time: once it
// says something else, a call of the driver has failed later.
thread_local bool refused = false;
thread_local kl_error refusal;
thread_local kl_error driver_error_before;

bool readDriverError(kl_error& out) {
  out = kl_error{KL_SUCCESS, -1, 0, {}, {}};
  return driver_last_error != nullptr && driver_last_error(&out) == KL_SUCCESS;
}

bool isSame(const kl_error& a, const kl_error& b) {
  return a.code == b.code && a.device == b.device && a.sequence == b.sequence && std::strcmp(a.op, b.op) == 0 &&
      std::strcmp(a.text, b.text) == 0;
}

kl_result refuse(const char* entry, const char* what) {
  refusal = kl_error{KL_ERROR_NOT_IMPLEMENTED, -1, 0, {}, {}};
  std::snprintf(refusal.op, sizeof(refusal.op), "%s", entry);
  std::snprintf(
      refusal.text,
      sizeof(refusal.text),
      "the chip driver %s has no %s (the entry %s of its runtime table is NULL)",
      driverName().c_str(),
      what,
      entry);
  readDriverError(driver_error_before);
  refused = true;
  return KL_ERROR_NOT_IMPLEMENTED;
}

kl_result lastError(kl_error* out) {
  const bool known = readDriverError(*out);
  if (std::exchange(refused, false) && (!known || isSame(*out, driver_error_before))) {
    *out = refusal;
  } else if (!known) {
    *out = kl_error{KL_ERROR_RUNTIME, -1, 0, {}, {}};
    std::snprintf(out->text, sizeof(out->text), "the chip driver %s does not say what failed", driverName().c_str());
  }
  return KL_SUCCESS;
}

kl_result deviceProperties(int32_t device, kl_device_properties* out) {
  const kl_result result = driver_device_properties(device, out);
  if (result == KL_SUCCESS) {
    out->capabilities &= ~missing_capabilities;
  }
  return result;
}

kl_result driverInfo(kl_driver_info* out) {
  *out = kl_driver_info{};
  std::snprintf(out->name, sizeof(out->name), "%s", driverName().c_str());
  return KL_SUCCESS;
}

// Puts a refusing function of the entry's own type in its place. `Tag` makes each of them a function of its own.
template <class Tag, class... Arguments>
bool fill(kl_result (*&entry)(Arguments...), Tag) {
  if (entry != nullptr) {
    return false;
  }
  entry = [](Arguments...) { return refuse(Tag::name(), Tag::what()); };
  return true;
}

constexpr const char* kAddresses = "addresses apart from memory, as expandable segments and pools that sleep need them";

} // namespace

#define KUNLUN_FILL(member, description) \
  [&table] {                             \
    struct Tag {                         \
      static const char* name() {        \
        return #member;                  \
      }                                  \
      static const char* what() {        \
        return description;              \
      }                                  \
    };                                   \
    return fill(table.member, Tag{});    \
  }()

void completeTable(kl_runtime_table& table, const char* driver) {
  driverName() = driver;
  bool any = false;
  any |= KUNLUN_FILL(device_count, "count of devices");
  any |= KUNLUN_FILL(device_properties, "device properties");
  any |= KUNLUN_FILL(memory_info, "memory information");
  any |= KUNLUN_FILL(memory_alloc, "memory allocation");
  any |= KUNLUN_FILL(memory_free, "way to free memory");
  any |= KUNLUN_FILL(host_malloc, "pinned host memory");
  any |= KUNLUN_FILL(host_free, "pinned host memory");
  any |= KUNLUN_FILL(pointer_info, "pointer classification");
  any |= KUNLUN_FILL(stream_create, "streams");
  any |= KUNLUN_FILL(stream_destroy, "way to destroy streams");
  any |= KUNLUN_FILL(stream_query, "stream query");
  any |= KUNLUN_FILL(stream_synchronize, "stream synchronisation");
  any |= KUNLUN_FILL(stream_sequence, "sequence numbers");
  any |= KUNLUN_FILL(stream_wait_event, "waiting for events on a stream");
  any |= KUNLUN_FILL(device_synchronize, "device synchronisation");
  any |= KUNLUN_FILL(device_reset, "device reset");
  any |= KUNLUN_FILL(event_create, "events");
  any |= KUNLUN_FILL(event_destroy, "events");
  any |= KUNLUN_FILL(event_record, "recording of events");
  any |= KUNLUN_FILL(event_query, "event query");
  any |= KUNLUN_FILL(event_synchronize, "event synchronisation");
  if (KUNLUN_FILL(event_elapsed, "event timing")) {
    missing_capabilities |= KL_CAP_EVENT_TIMING;
    any = true;
  }
  any |= KUNLUN_FILL(memcpy_async, "copies");
  any |= KUNLUN_FILL(memset_async, "memory fill");
  if (KUNLUN_FILL(launch_host, "host calls in stream order")) {
    missing_capabilities |= KL_CAP_HOST_ADDRESSABLE; // nothing could run on the chip's thread
    any = true;
  }
  for (const bool ipc :
       {KUNLUN_FILL(ipc_get_handle, "memory shared between processes"),
        KUNLUN_FILL(ipc_open_handle, "memory shared between processes"),
        KUNLUN_FILL(ipc_close_handle, "memory shared between processes")}) {
    if (ipc) {
      missing_capabilities |= KL_CAP_IPC;
      any = true;
    }
  }
  any |= KUNLUN_FILL(set_interrupt_check, "way to interrupt a wait");
  if (table.try_host == nullptr) { // no capability: launch_host does the same, later
    table.try_host = [](kl_stream, const char*, kl_host_fn, void*) -> kl_result { return KL_NOT_READY; };
  }
  any |= KUNLUN_FILL(device_telemetry, "sensors");
  any |= KUNLUN_FILL(event_ipc_get_handle, "events shared between processes");
  any |= KUNLUN_FILL(event_ipc_open_handle, "events shared between processes");
  any |= KUNLUN_FILL(address_reserve, kAddresses);
  any |= KUNLUN_FILL(address_release, kAddresses);
  any |= KUNLUN_FILL(memory_map, kAddresses);
  any |= KUNLUN_FILL(memory_unmap, kAddresses);
  any |= KUNLUN_FILL(stream_device, "way to tell streams from other addresses");
  any |= KUNLUN_FILL(stream_write_value32, "words of memory that streams write for each other");
  any |= KUNLUN_FILL(stream_wait_value32, "words of memory that streams wait for");
  if (any || table.last_error == nullptr) {
    driver_last_error = table.last_error;
    table.last_error = lastError;
  }
  if (missing_capabilities != 0) {
    driver_device_properties = table.device_properties;
    table.device_properties = deviceProperties;
  }
  if (table.driver_info == nullptr) {
    table.driver_info = driverInfo;
  }
}

#undef KUNLUN_FILL

} // namespace kunlun::chip
