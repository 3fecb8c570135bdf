// Reductions that torch's structured operators do not cover.
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <torch/library.h>

namespace kunlun::aten {

namespace {

void checkNotEmpty(const at::Tensor& self, const char* name) {
  TORCH_CHECK(
      self.numel() > 0,
      name,
      "(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' "
      "argument.");
}

// Over all elements, maximum and amax agree on the value, NaN included; they
// differ in the gradient, which is decided above this kernel.
at::Tensor max(const at::Tensor& self) {
  checkNotEmpty(self, "max");
  return at::amax(self, {});
}

at::Tensor min(const at::Tensor& self) {
  checkNotEmpty(self, "min");
  return at::amin(self, {});
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("max", TORCH_FN(max));
  m.impl("min", TORCH_FN(min));
}

} // namespace kunlun::aten
