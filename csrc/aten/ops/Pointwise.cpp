// Hand-written launchers of the hottest pointwise operators.
//
// Where both operands are contiguous floating-point tensors of one shape and
// dtype, or one of them is a number, shape and dtype of the result are known
// without an iterator: allocate, pack, enqueue. Everything else, wrong
// arguments included, goes through the structured launcher.
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add_meta.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/conj_physical_ops.h>
#include <ATen/ops/cos_meta.h>
#include <ATen/ops/div_meta.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/exp_meta.h>
#include <ATen/ops/gelu_meta.h>
#include <ATen/ops/mul_meta.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_meta.h>
#include <ATen/ops/pow_meta.h>
#include <ATen/ops/relu_native.h>
#include <ATen/ops/rsqrt_meta.h>
#include <ATen/ops/sigmoid_meta.h>
#include <ATen/ops/silu_meta.h>
#include <ATen/ops/sin_meta.h>
#include <ATen/ops/sub_meta.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_meta.h>
#include <torch/library.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/Shortcut.h"
#include "aten/Structured.h"

namespace kunlun::aten {

namespace {

using at::Scalar;
using at::Tensor;

// Contiguous, floating point, on the chip, and nothing but numbers.
bool plain(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return impl->device_type() == c10::DeviceType::PrivateUse1 && c10::isFloatingType(tensor.scalar_type()) &&
      tensor.layout() == c10::kStrided && impl->is_contiguous() && !tensor.is_neg() && !tensor._is_zerotensor();
}

// A Python number that does not change the dtype of a floating-point tensor.
bool plainNumber(const Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return impl->device_type() == c10::DeviceType::CPU && impl->is_wrapped_number() && !tensor.is_complex();
}

bool plainPair(const Tensor& a, const Tensor& b) {
  return plain(a) &&
      (plainNumber(b) ||
       (plain(b) && a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.sizes() == b.sizes()));
}

template <class... Args>
Tensor launchLike(OpHandle& op, const Tensor& like, const Args&... args) {
  const auto device = like.device();
  const auto stream = currentStreamHandle(device.index());
  auto out = emptyOnStream(like.sizes(), like.scalar_type(), device, stream);
  const std::array<const Tensor*, 1> outs{&out};
  launchOn(stream, op, device, outs, args...);
  return out;
}

template <class Meta, class... Args>
Tensor structured(OpHandle& op, c10::Device device, const Args&... args) {
  FunctionalOp<Meta, 1> meta(device);
  meta.meta(args...);
  launch(op, device, meta.outputs(), args...);
  return meta.take();
}

OpHandle k_add{"aten::add.out"};
OpHandle k_sub{"aten::sub.out"};
OpHandle k_mul{"aten::mul.out"};
OpHandle k_div{"aten::div.out"};
OpHandle k_pow{"aten::pow.Tensor_Scalar_out"};
OpHandle k_gelu{"aten::gelu.out"};

Tensor add(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (plainPair(self, other) && !alpha.isComplex()) {
    return launchLike(k_add, self, self, other, alpha);
  }
  return structured<at::meta::structured_add_Tensor>(k_add, deviceOf(self, other), self, other, alpha);
}

Tensor sub(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (plainPair(self, other) && !alpha.isComplex()) {
    return launchLike(k_sub, self, self, other, alpha);
  }
  return structured<at::meta::structured_sub_Tensor>(k_sub, deviceOf(self, other), self, other, alpha);
}

Tensor mul(const Tensor& self, const Tensor& other) {
  if (plainPair(self, other)) {
    return launchLike(k_mul, self, self, other);
  }
  return structured<at::meta::structured_mul_Tensor>(k_mul, deviceOf(self, other), self, other);
}

Tensor div(const Tensor& self, const Tensor& other) {
  if (plainPair(self, other)) {
    return launchLike(k_div, self, self, other);
  }
  return structured<at::meta::structured_div_Tensor>(k_div, deviceOf(self, other), self, other);
}

Tensor powScalar(const Tensor& self, const Scalar& exponent) {
  if (plain(self) && !exponent.isComplex()) {
    return launchLike(k_pow, self, self, exponent);
  }
  return structured<at::meta::structured_pow_Tensor_Scalar>(k_pow, deviceOf(self), self, exponent);
}

Tensor gelu(const Tensor& self, std::string_view approximate) {
  if (plain(self)) {
    return launchLike(k_gelu, self, self, approximate);
  }
  return structured<at::meta::structured_gelu>(k_gelu, deviceOf(self), self, approximate);
}

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

bool direct(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other) {
  return autograd_shortcuts.load(std::memory_order_relaxed) && onlyChipBelowAutograd(keys) && plainPair(self, other) &&
      recordsNothing(self) && recordsNothing(other);
}

Tensor addAutograd(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (direct(keys, self, other) && !alpha.isComplex()) {
    return launchLike(k_add, self, self, other, alpha);
  }
  return at::_ops::add_Tensor::redispatch(torchsAutograd(keys), self, other, alpha);
}

Tensor subAutograd(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other, const Scalar& alpha) {
  if (direct(keys, self, other) && !alpha.isComplex()) {
    return launchLike(k_sub, self, self, other, alpha);
  }
  return at::_ops::sub_Tensor::redispatch(torchsAutograd(keys), self, other, alpha);
}

Tensor mulAutograd(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other) {
  if (direct(keys, self, other)) {
    return launchLike(k_mul, self, self, other);
  }
  return at::_ops::mul_Tensor::redispatch(torchsAutograd(keys), self, other);
}

Tensor divAutograd(c10::DispatchKeySet keys, const Tensor& self, const Tensor& other) {
  if (direct(keys, self, other)) {
    return launchLike(k_div, self, self, other);
  }
  return at::_ops::div_Tensor::redispatch(torchsAutograd(keys), self, other);
}

#define KUNLUN_UNARY(name)                                                          \
  OpHandle k_##name{"aten::" #name ".out"};                                         \
  Tensor name(const Tensor& self) {                                                 \
    if (plain(self)) {                                                              \
      return launchLike(k_##name, self, self);                                      \
    }                                                                               \
    return structured<at::meta::structured_##name>(k_##name, deviceOf(self), self); \
  }

KUNLUN_UNARY(cos)
KUNLUN_UNARY(exp)
KUNLUN_UNARY(neg)
KUNLUN_UNARY(rsqrt)
KUNLUN_UNARY(sigmoid)
KUNLUN_UNARY(silu)
KUNLUN_UNARY(sin)
KUNLUN_UNARY(tanh)

#undef KUNLUN_UNARY

Tensor rsub(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  return sub(other, self, alpha);
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
  m.impl("add.Tensor", TORCH_FN(add));
  m.impl("sub.Tensor", TORCH_FN(sub));
  m.impl("mul.Tensor", TORCH_FN(mul));
  m.impl("div.Tensor", TORCH_FN(div));
  m.impl("pow.Tensor_Scalar", TORCH_FN(powScalar));
  m.impl("gelu", TORCH_FN(gelu));
  m.impl("cos", TORCH_FN(cos));
  m.impl("exp", TORCH_FN(exp));
  m.impl("neg", TORCH_FN(neg));
  m.impl("rsqrt", TORCH_FN(rsqrt));
  m.impl("sigmoid", TORCH_FN(sigmoid));
  m.impl("silu", TORCH_FN(silu));
  m.impl("sin", TORCH_FN(sin));
  m.impl("tanh", TORCH_FN(tanh));
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
