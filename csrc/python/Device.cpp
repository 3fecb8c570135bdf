// Python bindings: first use, devices, streams, generators, and what the chip and the environment say.
#include <string>
#include <tuple>

#include <ATen/Context.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include "python/Module.h"
#include "runtime/Device.h"
#include "runtime/Env.h"
#include "runtime/Error.h"
#include "runtime/Generator.h"
#include "runtime/Stream.h"
#include "runtime/SyncDebug.h"
#include "runtime/chip/Loader.h"

namespace kunlun::python {

namespace {

using torch::wrap_pybind_function;
using torch::wrap_pybind_function_no_gil;
using StreamTuple = std::tuple<int64_t, int64_t, int64_t>;

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

void init() {
  lazyInit();
  torch::utils::register_fork_handler_for_device_init(kType);
  at::globalContext().lazyInitDevice(kType);
}

// What would go unnoticed until something is computed: a child forked after first use is told at once.
void refuseInForkedChild() {
  if (runtimeState() == RuntimeState::BadFork) {
    lazyInit(); // raises
  }
}

StreamTuple pack(const Stream& stream) {
  const auto data = stream.unwrap().pack3();
  return {data.stream_id, data.device_index, static_cast<int64_t>(data.device_type)};
}

void setStream(int64_t stream_id, int64_t device_index, int64_t device_type) {
  const Stream stream(c10::Stream::unpack3(stream_id, narrow(device_index), static_cast<c10::DeviceType>(device_type)));
  if (currentDevice() != stream.device_index()) {
    setDevice(stream.device_index());
  }
  setCurrentStream(stream);
}

py::object defaultGenerator(int64_t device) {
  HANDLE_TH_ERRORS
  return py::reinterpret_steal<py::object>(THPGenerator_Wrap(getDefaultGenerator(narrow(device))));
  END_HANDLE_TH_ERRORS_PYBIND
}

py::list environment() {
  py::list table;
  for (const EnvVariable& variable : envVariables()) {
    py::dict row;
    row["name"] = variable.name;
    row["values"] = variable.values;
    row["default"] = variable.fallback_value;
    row["meaning"] = variable.meaning;
    table.append(row);
  }
  return table;
}

// The folder for cases and whether a difference raises; None where nothing is to be compared.
py::object autocompareSettings() {
  const auto settings = parseAutocompare();
  if (settings.mode == Autocompare::Mode::Off) {
    return py::none();
  }
  return py::make_tuple(settings.directory, settings.mode == Autocompare::Mode::Raise);
}

py::dict chipInfo() {
  HANDLE_TH_ERRORS
  kl_driver_info info{};
  std::string source;
  try {
    check(chip::runtime().driver_info(&info), "driver_info");
    source = chip::chipSource();
  } catch (const c10::Error&) {
    throw;
  } catch (...) {
    rethrowLoadFailure();
  }
  py::dict result;
  result["source"] = source;
  result["driver"] = info.name;
  result["driver_version"] = info.driver_version;
  result["runtime_version"] = info.runtime_version;
  result["note"] = info.note;
  result["operators"] = chip::operators() != nullptr;
  result["collectives"] = chip::collectives() != nullptr;
  const auto version = [](const kl_table_header& header) { return c10::str(header.abi_major, ".", header.abi_minor); };
  py::dict interface;
  interface["runtime"] = version(chip::runtime().header);
  interface["operators"] = chip::operators() == nullptr ? "none" : version(chip::operators()->header);
  interface["collectives"] = chip::collectives() == nullptr ? "none" : version(chip::collectives()->header);
  result["interface"] = interface;
  return result;
  END_HANDLE_TH_ERRORS_PYBIND
}

std::string describe(const kl_device_properties& p) {
  constexpr uint64_t kMiB = 1 << 20;
  return c10::str(
      "_KunlunDeviceProperties(name='",
      p.name,
      "', major=",
      p.major,
      ", minor=",
      p.minor,
      ", total_memory=",
      p.total_memory / kMiB,
      "MB, l3_memory=",
      p.l3_memory / kMiB,
      "MB, multi_processor_count=",
      p.multi_processor_count,
      ", uuid='",
      p.uuid,
      "')");
}

void bindProperties(py::module_& module) {
  py::class_<kl_device_properties>(module, "_KunlunDeviceProperties")
      .def_property_readonly("name", [](const kl_device_properties& p) { return std::string(p.name); })
      .def_property_readonly("uuid", [](const kl_device_properties& p) { return std::string(p.uuid); })
      .def_readonly("total_memory", &kl_device_properties::total_memory)
      .def_readonly("l3_memory", &kl_device_properties::l3_memory)
      .def_readonly("major", &kl_device_properties::major)
      .def_readonly("minor", &kl_device_properties::minor)
      .def_readonly("multi_processor_count", &kl_device_properties::multi_processor_count)
      .def_readonly("physical_id", &kl_device_properties::physical_id)
      .def_property_readonly(
          "has_event_timing", [](const kl_device_properties& p) { return (p.capabilities & KL_CAP_EVENT_TIMING) != 0; })
      .def_property_readonly(
          "has_peer_access", [](const kl_device_properties& p) { return (p.capabilities & KL_CAP_PEER_ACCESS) != 0; })
      .def_property_readonly(
          "is_host_addressable",
          [](const kl_device_properties& p) { return (p.capabilities & KL_CAP_HOST_ADDRESSABLE) != 0; })
      .def_property_readonly(
          "has_ipc", [](const kl_device_properties& p) { return (p.capabilities & KL_CAP_IPC) != 0; })
      .def_property_readonly(
          "has_stream_priorities",
          [](const kl_device_properties& p) { return (p.capabilities & KL_CAP_PRIORITY) != 0; })
      .def_property_readonly(
          "has_fp64", [](const kl_device_properties& p) { return (p.capabilities & KL_CAP_FP64) != 0; })
      .def("__repr__", &describe);
}

} // namespace

void bindDevice(py::module_& module) {
  module.def("_init", wrap_pybind_function(&init));
  module.def("_is_initialized", [] { return runtimeState() == RuntimeState::Ready; });
  module.def("_is_in_bad_fork", [] { return runtimeState() == RuntimeState::BadFork; });
  module.def("_shutdown", wrap_pybind_function_no_gil([] { shutdown(); }));

  module.def("_get_device_count", wrap_pybind_function([]() -> int64_t { return deviceCount(); }));
  module.def("_get_device", [] { return static_cast<int64_t>(currentDevice()); });
  module.def("_set_device", wrap_pybind_function([](int64_t device) {
               refuseInForkedChild();
               setDevice(narrow(device));
             }));
  module.def("_exchange_device", wrap_pybind_function([](int64_t device) -> int64_t {
               refuseInForkedChild();
               return exchangeDevice(narrow(device));
             }));
  module.def("_maybe_exchange_device", wrap_pybind_function([](int64_t device) -> int64_t {
               return maybeExchangeDevice(device < 0 ? c10::DeviceIndex(-1) : narrow(device));
             }));
  module.def("_synchronize", wrap_pybind_function_no_gil([](int64_t device) { synchronizeDevice(narrow(device)); }));
  module.def("_reset_device", wrap_pybind_function_no_gil([](int64_t device) { resetDevice(narrow(device)); }));
  bindProperties(module);
  module.def(
      "_get_device_properties", wrap_pybind_function([](int64_t device) { return deviceProperties(narrow(device)); }));

  module.def("_get_device_telemetry", wrap_pybind_function_no_gil([](int64_t device, int32_t what) {
               lazyInit();
               double value = 0;
               check(chip::runtime().device_telemetry(resolveDevice(narrow(device)), what, &value), "device_telemetry");
               return value;
             }));

  // Streams travel as (stream_id, device_index, device_type), from which Python makes its own objects.
  module.def("_get_current_stream", wrap_pybind_function([](int64_t device) {
               refuseInForkedChild();
               return pack(getCurrentStream(narrow(device)));
             }));
  module.def("_get_default_stream", wrap_pybind_function([](int64_t device) {
               refuseInForkedChild();
               return pack(getDefaultStream(narrow(device)));
             }));
  module.def("_set_stream", wrap_pybind_function(&setStream));
  module.def("_get_stream_priority", wrap_pybind_function([](int64_t stream_id, int64_t device) {
               const c10::Device where(kType, narrow(device));
               return Stream(c10::Stream(c10::Stream::UNSAFE, where, stream_id)).priority();
             }));
  module.def("_get_stream_priority_range", &streamPriorityRange);
  module.def("_get_stream_from_external", wrap_pybind_function([](uintptr_t handle, int64_t device) {
               return pack(getStreamFromExternal(reinterpret_cast<kl_stream>(handle), narrow(device)));
             }));
  module.def("_set_sync_debug_mode", [](int mode) { setSyncDebugMode(static_cast<SyncDebugMode>(mode)); });
  module.def("_get_sync_debug_mode", [] { return static_cast<int>(syncDebugMode()); });
  module.def("_get_current_raw_stream", wrap_pybind_function([](int64_t device) {
               return reinterpret_cast<uintptr_t>(getCurrentStream(narrow(device)).handle());
             }));

  module.def("_refuse_in_forked_child", wrap_pybind_function(&refuseInForkedChild));
  module.def("_get_default_generator", &defaultGenerator);
  module.def("_get_environment", &environment);
  module.def("_get_chip_info", &chipInfo);
  module.def("_custom_ops_enabled", wrap_pybind_function([] { return env().custom_ops; }));
  module.def("_get_autocompare_settings", wrap_pybind_function(&autocompareSettings));
}

} // namespace kunlun::python
