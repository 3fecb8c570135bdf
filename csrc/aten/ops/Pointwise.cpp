// Hand-written launchers of pointwise operators: those that pass by autograd, and those without a meta function.
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/conj_physical_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/relu_native.h>
#include <ATen/ops/sub_ops.h>
#include <torch/library.h>

#include "aten/Alike.h"
#include "aten/Launch.h"
#include "aten/Shortcut.h"

namespace kunlun::aten {

namespace {

using at::Scalar;
using at::Tensor;

OpHandle k_add{"aten::add.out"};
OpHandle k_sub{"aten::sub.out"};
OpHandle k_mul{"aten::mul.out"};
OpHandle k_div{"aten::div.out"};

// ---- above autograd ----
//
// Where no gradient can be asked for, torch's autograd kernel would only hand
// on to the launcher; these take the plain case directly. Everything else goes
// to torch's own kernel, which AutogradOther has as well as every other
// autograd key.

bool recordsNothing(const Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->autograd_meta() == nullptr) {
    return true;
  }
  return !(tensor.requires_grad() && at::GradMode::is_enabled()) && !tensor._fw_grad(/*level=*/0).defined();
}

c10::DispatchKeySet torchsAutograd(c10::DispatchKeySet keys) {
  // Nothing from above autograd: Python's dispatcher passes all keys on, and those would come here again.
  return (keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther);
}

template <class... Alpha>
bool direct(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other, const Alpha&... alpha) {
  return autograd_shortcuts.load(std::memory_order_relaxed) && onlyChipBelowAutograd(keys) &&
      alike(self, other, alpha...) && recordsNothing(self) && recordsNothing(other);
}

Tensor addAutograd(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (direct(keys, self, other, alpha)) {
    return launchLike(k_add, self.scalar_type(), self, other, alpha);
  }
  return at::_ops::add_Tensor::redispatch(torchsAutograd(keys), self, other, alpha);
}

Tensor subAutograd(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (direct(keys, self, other, alpha)) {
    return launchLike(k_sub, self.scalar_type(), self, other, alpha);
  }
  return at::_ops::sub_Tensor::redispatch(torchsAutograd(keys), self, other, alpha);
}

Tensor mulAutograd(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other) {
  if (direct(keys, self, other)) {
    return launchLike(k_mul, self.scalar_type(), self, other);
  }
  return at::_ops::mul_Tensor::redispatch(torchsAutograd(keys), self, other);
}

Tensor divAutograd(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other) {
  if (direct(keys, self, other)) {
    return launchLike(k_div, self.scalar_type(), self, other);
  }
  return at::_ops::div_Tensor::redispatch(torchsAutograd(keys), self, other);
}

Tensor rsub(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (alike(other, self, alpha)) {
    return launchLike(k_sub, other.scalar_type(), other, self, alpha);
  }
  return at::_ops::sub_Tensor::redispatch(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), other, self, alpha);
}

// Not structured: the iterator decides the shape and the dtype of the result.

OpHandle k_floor_divide{"aten::floor_divide.out"};

Tensor floorDivide(const Tensor& self, const Tensor& other) {
  if (alike(self, other)) {
    return launchLike(k_floor_divide, self.scalar_type(), self, other);
  }
  Tensor out;
  out = at::TensorIterator::binary_op(out, self, other).output();
  launchInto(k_floor_divide, out, self, other);
  return out;
}

Tensor& floorDivideOut(const Tensor& self, const Tensor& other, Tensor& out) {
  const auto iterator = at::TensorIterator::binary_op(out, self, other);
  launchInto(k_floor_divide, out, self, other);
  return out;
}

Tensor& floorDivide_(Tensor& self, const Tensor& other) {
  return floorDivideOut(self, other, self);
}

// Logical operators are not structured: the iterator decides the shape here.

template <class Build>
Tensor& logical(OpHandle& op, Tensor& out, const Build& build, const Tensor& self, const Tensor& other) {
  build();
  const std::array<const Tensor*, 1> outs{&out};
  launch(op, out.device(), outs, self, other);
  return out;
}

OpHandle k_logical_not{"aten::logical_not.out"};

Tensor& logicalNotOut(const Tensor& self, Tensor& out) {
  at::TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(self).build();
  const std::array<const Tensor*, 1> outs{&out};
  launch(k_logical_not, out.device(), outs, self);
  return out;
}

// torch's own composite calls the dispatch stub of the device, which only in-tree devices fill.
Tensor& conjPhysical_(Tensor& self) {
  return self.is_complex() ? at::_ops::conj_physical_out::call(self, self) : self;
}

#define KUNLUN_LOGICAL(name, function)                                                                        \
  OpHandle k_##name{"aten::" #name ".out"};                                                                   \
  Tensor& function(const Tensor& self, const Tensor& other, Tensor& out) {                                    \
    return logical(k_##name, out, [&] { at::TensorIterator::comparison_op(out, self, other); }, self, other); \
  }

KUNLUN_LOGICAL(logical_and, logicalAndOut)
KUNLUN_LOGICAL(logical_or, logicalOrOut)
KUNLUN_LOGICAL(logical_xor, logicalXorOut)

#undef KUNLUN_LOGICAL

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("floor_divide", TORCH_FN(floorDivide));
  m.impl("floor_divide.out", TORCH_FN(floorDivideOut));
  m.impl("floor_divide_.Tensor", TORCH_FN(floorDivide_));
  m.impl("conj_physical_", TORCH_FN(conjPhysical_));
  m.impl("logical_not.out", TORCH_FN(logicalNotOut));
  m.impl("logical_and.out", TORCH_FN(logicalAndOut));
  m.impl("logical_or.out", TORCH_FN(logicalOrOut));
  m.impl("logical_xor.out", TORCH_FN(logicalXorOut));
  // Composites of torch that are made of launchers above.
  m.impl("relu", TORCH_FN(at::native::relu));
  m.impl("relu_", TORCH_FN(at::native::relu_));
  m.impl("rsub.Tensor", TORCH_FN(rsub));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("add.Tensor", TORCH_FN(addAutograd));
  m.impl("sub.Tensor", TORCH_FN(subAutograd));
  m.impl("mul.Tensor", TORCH_FN(mulAutograd));
  m.impl("div.Tensor", TORCH_FN(divAutograd));
}

} // namespace kunlun::aten
