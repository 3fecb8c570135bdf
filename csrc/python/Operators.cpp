// Python's view of the operator tiers: statistics, fallback policy, routing.
#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/library.h>

#include "aten/Fallback.h"
#include "aten/Shortcut.h"
#include "aten/Statistics.h"
#include "aten/boxed/Boxed.h"
#include "python/Module.h"
#include "runtime/Device.h"
#include "runtime/chip/Loader.h"
#include "runtime/frame/DTypes.h"

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

// The operator that the chip launches for each call since the trace was started, with the tier that served it.
py::list stopTraceOfThread() {
  py::list result;
  for (const auto& [tier, op] : aten::stopTrace()) {
    result.append(py::make_tuple(aten::toString(tier), op));
  }
  return result;
}

// Whether the driver has a kernel of this schema ("aten::add.out") for tensors of these dtypes.
bool chipHasOperator(const std::string& schema, const std::vector<c10::ScalarType>& dtypes) {
  const auto* table = chip::operators();
  kl_operator found{nullptr, nullptr};
  if (table == nullptr || table->lookup(schema.c_str(), &found) != KL_SUCCESS) {
    return false;
  }
  std::vector<int32_t> numbers;
  for (const auto dtype : dtypes) {
    numbers.push_back(frame::toChipDtype(dtype));
  }
  return table->supports == nullptr ||
      table->supports(schema.c_str(), numbers.data(), static_cast<uint32_t>(numbers.size())) != 0;
}

// A Python number as the operators see it: a tensor of no dimensions that does not decide the result's dtype. Kernels
// written in Python are handed the number, and the kernels below them want the tensor.
at::Tensor wrappedNumber(const py::object& number) {
  at::Scalar value;
  if (py::isinstance<py::bool_>(number)) {
    value = number.cast<bool>();
  } else if (py::isinstance<py::int_>(number)) {
    value = number.cast<int64_t>();
  } else if (py::isinstance<py::float_>(number)) {
    value = number.cast<double>();
  } else {
    value = number.cast<c10::complex<double>>();
  }
  auto tensor = c10::scalar_to_tensor(value);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
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
  module.def("_start_operator_trace", &aten::startTrace);
  module.def("_stop_operator_trace", torch::wrap_pybind_function(&stopTraceOfThread));
  module.def("_chip_has_operator", torch::wrap_pybind_function(&chipHasOperator), py::arg("schema"), py::arg("dtypes"));
  module.def("_wrapped_number", torch::wrap_pybind_function(&wrappedNumber), py::arg("number"));
  // Hot operators then pass through PrivateUse1 like all others, where a Python kernel can take their place.
  module.def("_disable_autograd_shortcuts", [] { aten::autograd_shortcuts.store(false, std::memory_order_relaxed); });
  bindUnsupportedOperatorError(module);
}

} // namespace kunlun::python
