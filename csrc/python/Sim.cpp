// Python bindings: the switches of the simulated chip.
#include <cmath>
#include <optional>
#include <string>

#include <torch/csrc/Exceptions.h>

#include "python/Module.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/chip/Loader.h"
#include "runtime/sim/Faults.h"

namespace kunlun::python {

namespace {

using torch::wrap_pybind_function;

// Starts the device. The one place above the chip interface that asks for the driver's name, because these functions
// exist for tests of what is above.
void requireSimulatedChip() {
  lazyInit();
  kl_driver_info info{};
  check(chip::runtime().driver_info(&info), "driver_info");
  TORCH_CHECK(
      std::string(info.name) == "sim",
      "torch_xpu_kunlun.sim works on the simulated chip only, and this process uses the driver '",
      info.name,
      "'; start it with KUNLUN_CHIP=sim");
}

void injectFault(const std::string& kind, uint64_t after, std::optional<int> device, std::optional<double> seconds) {
  requireSimulatedChip();
  SimFault fault;
  try {
    fault.kind = parseSimFaultKind(kind);
  } catch (const EnvError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
  fault.after = after;
  fault.device = device;
  if (device.has_value()) {
    resolveDevice(narrow(*device));
  }
  if (seconds.has_value()) {
    TORCH_CHECK_VALUE(fault.kind == SimFault::Kind::Hang, "only a hang takes seconds, not the fault '", kind, "'");
    TORCH_CHECK_VALUE(
        *seconds > 0 && *seconds <= 86400, "expected seconds between 0 (excluded) and 86400, got ", *seconds);
    fault.nanoseconds = static_cast<int64_t>(std::ceil(*seconds * 1e9));
  }
  sim::injectFault(fault);
}

} // namespace

void bindSim(py::module_& module) {
  module.def("_sim_require", wrap_pybind_function(&requireSimulatedChip));
  module.def("_sim_inject_fault", wrap_pybind_function(&injectFault));
  module.def("_sim_pending_faults", wrap_pybind_function(&sim::pendingFaults));
  module.def("_sim_clear_faults", wrap_pybind_function(&sim::clearFaults));
  module.def("_sim_release_hangs", wrap_pybind_function(&sim::releaseHangs));
  module.def("_sim_hanging_streams", wrap_pybind_function(&sim::hangingStreams));
  module.def("_sim_set_copy_speed", wrap_pybind_function(&sim::setCopySpeed));
  module.def("_sim_set_link_speed", wrap_pybind_function(&sim::setLinkSpeed));
}

} // namespace kunlun::python
