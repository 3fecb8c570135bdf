// Python's view of the operator tiers: statistics, fallback policy, routing.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include "aten/Fallback.h"
#include "aten/Shortcut.h"
#include "aten/Statistics.h"
#include "aten/boxed/Boxed.h"
#include "python/Module.h"

namespace kunlun::python {

namespace {

py::dict statistics() {
  const auto counts = aten::statistics();
  py::dict result;
  for (const auto& [tier, number] : counts.tiers) {
    result[py::str(tier)] = number;
  }
  result["boxed_ops"] = counts.boxed_ops;
  result["host_call_ops"] = counts.host_call_ops;
  result["fallback_ops"] = counts.fallback_ops;
  return result;
}

// Swallows the one warning that the dispatcher gives for a wanted override.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// From here on, `name` ("aten::add.Tensor") runs in the boxed tier in this
// process: for comparing the tiers and for hunting a launcher's fault.
void routeToBoxedTier(const std::string& name) {
  const auto dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
  TORCH_CHECK_VALUE(op.has_value(), "torch has no operator '", name, "'; expected a name like 'aten::add.Tensor'");
  static auto* routes = new std::vector<torch::Library>(); // registrations end with their library
  NoWarnings quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  torch::Library library(
      torch::Library::IMPL, name.substr(0, name.find("::")), c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten::autograd_shortcuts.store(false, std::memory_order_relaxed);
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&aten::boxedTier>());
  routes->push_back(std::move(library));
}

PyObject* unsupported_operator_error = nullptr; // the Python class; written once, when the module is made

// torch's wrappers ask the exception for its Python type.
struct UnsupportedOperatorError final : torch::PyTorchError {
  using torch::PyTorchError::PyTorchError;
  PyObject* python_type() override {
    return unsupported_operator_error;
  }
};

void throwUnsupportedOperator(std::string text) {
  throw UnsupportedOperatorError(std::move(text));
}

void bindUnsupportedOperatorError(py::module_& module) {
  unsupported_operator_error = PyErr_NewExceptionWithDoc(
      "torch_xpu_kunlun.UnsupportedOperatorError",
      "An operator has no kernel on this chip, and the fallback policy forbids computing it on the host.",
      PyExc_NotImplementedError,
      nullptr);
  if (unsupported_operator_error == nullptr) {
    throw py::error_already_set();
  }
  module.attr("UnsupportedOperatorError") = py::reinterpret_borrow<py::object>(unsupported_operator_error);
  aten::setUnsupportedOperatorThrower(&throwUnsupportedOperator);
}

} // namespace

void bindOperators(py::module_& module) {
  module.def("_operator_statistics", &statistics);
  module.def("_reset_operator_statistics", &aten::resetStatistics);
  module.def("_set_fallback_policy", &aten::setFallbackPolicy, py::arg("policy"));
  module.def("_route_to_boxed_tier", &routeToBoxedTier, py::arg("name"));
  bindUnsupportedOperatorError(module);
}

} // namespace kunlun::python
