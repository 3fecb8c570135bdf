// Python bindings: events that are shared between processes.
#include <cstring>

#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>

#include "python/Module.h"
#include "runtime/Error.h"
#include "runtime/Event.h"
#include "runtime/chip/Loader.h"

namespace kunlun::python {

namespace {

using torch::wrap_pybind_function;

constexpr size_t kHandleBytes = 64;

c10::Event& unwrap(const py::object& event) {
  TORCH_CHECK_TYPE(THPEvent_Check(event.ptr()), "expected event to be a torch.Event object");
  return reinterpret_cast<THPEvent*>(event.ptr())->event;
}

// Makes `made` the device event behind `event`, which must be fresh and owns it from then on.
void give(const py::object& event, kl_event made, c10::DeviceIndex device) {
  const AdoptEventScope scope(made);
  unwrap(event).record(getDefaultStream(device).unwrap());
}

void createIpc(const py::object& event, int64_t device) {
  lazyInit();
  const c10::DeviceIndex index = resolveDevice(narrow(device));
  kl_event made = nullptr;
  check(chip::runtime().event_create(index, KL_EVENT_INTERPROCESS, &made), "event_create");
  give(event, made, index);
}

void openIpc(const py::object& event, int64_t device, const py::bytes& handle) {
  lazyInit();
  const c10::DeviceIndex index = resolveDevice(narrow(device));
  const std::string_view bytes = handle;
  TORCH_CHECK_VALUE(
      bytes.size() == kHandleBytes,
      "event_ipc_handle expects ",
      kHandleBytes,
      " bytes, as ipc_handle() gives them, got ",
      bytes.size());
  kl_event opened = nullptr;
  check(chip::runtime().event_ipc_open_handle(index, bytes.data(), &opened), "event_ipc_open_handle");
  give(event, opened, index);
}

py::bytes ipcHandle(const py::object& event) {
  lazyInit();
  char handle[kHandleBytes] = {};
  check(
      chip::runtime().event_ipc_get_handle(static_cast<kl_event>(unwrap(event).eventId()), handle),
      "event_ipc_get_handle");
  return {handle, kHandleBytes};
}

} // namespace

void bindEvents(py::module_& module) {
  module.def("_event_create_ipc", wrap_pybind_function(&createIpc));
  module.def("_event_open_ipc", wrap_pybind_function(&openIpc));
  module.def("_event_ipc_handle", wrap_pybind_function(&ipcHandle));
}

} // namespace kunlun::python
