// Reductions that torch's structured operators do not cover.
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <torch/library.h>

namespace kunlun::aten {

namespace {

// Over all elements, maximum and amax agree on the value, NaN included; they
// differ in the gradient, which is decided above this kernel.
at::Tensor max(const at::Tensor& self) {
  TORCH_CHECK(
      self.numel() > 0,
      "max(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' "
      "argument.");
  return at::amax(self, {});
}

at::Tensor min(const at::Tensor& self) {
  TORCH_CHECK(
      self.numel() > 0,
      "min(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' "
      "argument.");
  return at::amin(self, {});
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("max", TORCH_FN(max));
  m.impl("min", TORCH_FN(min));
}

} // namespace kunlun::aten
