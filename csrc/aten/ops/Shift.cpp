// Python's shift operators. They compute what bitwise_left_shift and bitwise_right_shift do, whose launchers torch's
// generator knows.
#include <ATen/core/Tensor.h>
#include <ATen/ops/bitwise_left_shift_ops.h>
#include <ATen/ops/bitwise_right_shift_ops.h>
#include <torch/library.h>

namespace kunlun::aten {

namespace {

using at::Scalar;
using at::Tensor;

#define KUNLUN_SHIFT(direction)                                                     \
  Tensor direction##Tensor(const Tensor& self, const Tensor& other) {               \
    return at::_ops::bitwise_##direction##_shift_Tensor::call(self, other);         \
  }                                                                                 \
  Tensor direction##Scalar(const Tensor& self, const Scalar& other) {               \
    return at::_ops::bitwise_##direction##_shift_Tensor_Scalar::call(self, other);  \
  }                                                                                 \
  Tensor& direction##Tensor_(Tensor& self, const Tensor& other) {                   \
    return at::_ops::bitwise_##direction##_shift__Tensor::call(self, other);        \
  }                                                                                 \
  Tensor& direction##Scalar_(Tensor& self, const Scalar& other) {                   \
    return at::_ops::bitwise_##direction##_shift__Tensor_Scalar::call(self, other); \
  }

KUNLUN_SHIFT(left)
KUNLUN_SHIFT(right)

#undef KUNLUN_SHIFT

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("__lshift__.Tensor", TORCH_FN(leftTensor));
  m.impl("__lshift__.Scalar", TORCH_FN(leftScalar));
  m.impl("__ilshift__.Tensor", TORCH_FN(leftTensor_));
  m.impl("__ilshift__.Scalar", TORCH_FN(leftScalar_));
  m.impl("__rshift__.Tensor", TORCH_FN(rightTensor));
  m.impl("__rshift__.Scalar", TORCH_FN(rightScalar));
  m.impl("__irshift__.Tensor", TORCH_FN(rightTensor_));
  m.impl("__irshift__.Scalar", TORCH_FN(rightScalar_));
}

} // namespace kunlun::aten
