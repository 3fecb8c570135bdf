// The outer product in place.
#include <ATen/core/Tensor.h>
#include <ATen/ops/addr_ops.h>
#include <torch/library.h>

namespace kunlun::aten {

namespace {

// The kernel tells a call in place from one with an `out` by the address of its arguments, which it does not get to
// see on the chip: it would take a tensor of another shape for one to broadcast, and resize it.
at::Tensor& addr_(
    at::Tensor& self,
    const at::Tensor& vec1,
    const at::Tensor& vec2,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  if (vec1.dim() == 1 && vec2.dim() == 1) { // others are refused by the kernel
    TORCH_CHECK(self.dim() == 2, "2D tensor expected, got ", self.dim(), "D tensor for input");
    TORCH_CHECK(
        self.size(0) == vec1.size(0) && self.size(1) == vec2.size(0),
        "size mismatch, input: ",
        self.sizes(),
        ", v1: ",
        vec1.sizes(),
        ", v2: ",
        vec2.sizes());
  }
  return at::_ops::addr_out::call(self, vec1, vec2, beta, alpha, self);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("addr_", TORCH_FN(addr_));
}

} // namespace kunlun::aten
