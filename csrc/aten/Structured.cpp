// Launchers of structured operators: how outputs are made, checked and resized.
#include "aten/Structured.h"

#include <ATen/native/Resize.h>

#include "aten/Empty.h"

namespace kunlun::aten::detail {

at::Tensor
createOutput(at::IntArrayRef sizes, at::IntArrayRef strides, const c10::TensorOptions& options, c10::Device device) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (strides.empty()) {
    return empty(sizes, dtype, device, options.memory_format_opt());
  }
  return emptyStrided(sizes, strides, dtype, device);
}

namespace {

void checkLikeOptions(const at::Tensor& out, const c10::TensorOptions& options, const char* what) {
  TORCH_CHECK(
      options.dtype() == out.dtype(),
      "Expected ",
      what,
      " tensor to have dtype ",
      options.dtype(),
      ", but got ",
      out.dtype(),
      " instead");
  TORCH_CHECK(
      options.device() == out.device(),
      "Expected ",
      what,
      " tensor to have device ",
      options.device(),
      ", but got ",
      out.device(),
      " instead");
}

} // namespace

void checkInplace(const at::Tensor& self, at::IntArrayRef sizes, const c10::TensorOptions& options) {
  TORCH_CHECK(
      options.dtype() == self.dtype(),
      "Bad in-place call: input tensor dtype ",
      self.dtype(),
      " and output tensor dtype ",
      options.dtype(),
      " should match");
  TORCH_CHECK(
      options.device() == self.device(),
      "Bad in-place call: input tensor device ",
      self.device(),
      " and output tensor device ",
      options.device(),
      " should match");
  TORCH_CHECK(
      sizes == self.sizes(),
      "Bad in-place call: input tensor size ",
      self.sizes(),
      " and output tensor size ",
      sizes,
      " should match");
}

void resizeOutput(
    const at::Tensor& out,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    const c10::TensorOptions& options) {
  checkLikeOptions(out, options, "out");
  if (at::native::resize_output(out, sizes)) {
    if (!strides.empty()) {
      TORCH_INTERNAL_ASSERT(!options.memory_format_opt().has_value());
      out.as_strided_(sizes, strides);
    } else if (options.memory_format_opt().has_value()) {
      out.unsafeGetTensorImpl()->empty_tensor_restride(*options.memory_format_opt());
    }
  }
}

void checkSameDtype(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(
      a.scalar_type() == b.scalar_type(),
      "expected m1 and m2 to have the same dtype, but got: ",
      a.dtype(),
      " != ",
      b.dtype());
}

} // namespace kunlun::aten::detail
