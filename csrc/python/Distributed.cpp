// Python bindings of ProcessGroupXCCL.
#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "distributed/ProcessGroupXCCL.h"
#include "distributed/hosts/Gloo.h"
#include "python/Module.h"
#include "runtime/EnvXccl.h"

namespace kunlun::python {

void bindFlightRecorder(py::module_& module);

namespace {

using kunlun::distributed::ProcessGroupXCCL;
using Options = ProcessGroupXCCL::Options;

c10::intrusive_ptr<c10d::Backend>
makeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout) {
  const py::gil_scoped_acquire gil;
  const auto c10d = py::module_::import("torch._C._distributed_c10d");
  return c10d.attr("ProcessGroupGloo")(store, rank, size, timeout).cast<c10::intrusive_ptr<c10d::Backend>>();
}

} // namespace

void bindDistributed(py::module_& module) {
  bindFlightRecorder(module);
  // The base classes must be known before the derived ones.
  const auto c10d = py::module_::import("torch._C._distributed_c10d");
  if (py::hasattr(c10d, "ProcessGroupGloo")) {
    distributed::hosts::setGlooMaker(makeGloo);
  }
  auto group = py::class_<ProcessGroupXCCL, c10d::Backend, c10::intrusive_ptr<ProcessGroupXCCL>>(
      module, "ProcessGroupXCCL", "Collectives between kunlun devices; made by torch.distributed.init_process_group.");
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(group, "Options")
      .def(py::init<bool>(), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &Options::is_high_priority_stream)
      .def("__copy__", [](const Options& self) { return Options(self); })
      .def("__deepcopy__", [](const Options& self, const py::dict&) { return Options(self); }, py::arg("memo"));
  group
      .def(
          py::init<const c10::intrusive_ptr<c10d::Store>&, int, int, c10::intrusive_ptr<Options>>(),
          py::call_guard<py::gil_scoped_release>(),
          py::arg("store"),
          py::arg("rank"),
          py::arg("size"),
          py::arg("options"))
      .def_property_readonly("options", &ProcessGroupXCCL::options)
      .def_property_readonly("uid", &ProcessGroupXCCL::getGroupUid)
      .def(
          "monitored_barrier",
          [](ProcessGroupXCCL& self, std::chrono::milliseconds timeout, bool wait_all_ranks) {
            c10d::BarrierOptions options;
            options.timeout = timeout;
            self.monitoredBarrier(options, wait_all_ranks);
          },
          py::call_guard<py::gil_scoped_release>(),
          py::arg("timeout") = c10d::kUnsetTimeout,
          py::arg("wait_all_ranks") = false)
      .def("get_error", &ProcessGroupXCCL::getError, py::call_guard<py::gil_scoped_release>())
      // Groups are made without the help of ranks outside of them, so those have nothing to do.
      .def("perform_nocolor_split", [](ProcessGroupXCCL&, const py::object&) {})
      .def("_is_initialized", [](ProcessGroupXCCL& self) { return self.isConnected(); });
  module.def("_xccl_timeout_seconds", torch::wrap_pybind_function([] { return xcclEnv().timeout_seconds; }));
}

} // namespace kunlun::python
