// Quantised tensors: their parameters are read on the host, and a copy moves the integers as they are.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_empty_affine_quantized_native.h>
#include <ATen/ops/_empty_per_channel_affine_quantized_native.h>
#include <ATen/ops/empty_quantized_native.h>
#include <ATen/ops/q_per_channel_axis_native.h>
#include <ATen/ops/q_per_channel_scales_native.h>
#include <ATen/ops/q_per_channel_zero_points_native.h>
#include <ATen/ops/q_scale_native.h>
#include <ATen/ops/q_zero_point_native.h>
#include <ATen/ops/qscheme_native.h>
#include <ATen/ops/quantize_per_channel_ops.h>
#include <ATen/ops/quantize_per_tensor_ops.h>
#include <ATen/ops/set_native.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace kunlun::aten {

namespace {

at::Tensor emptyQuantized(
    at::IntArrayRef size,
    const at::Tensor& like,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device.has_value() ? device : like.device());
  return at::native::empty_quantized(size, like, dtype, layout, device, pin_memory, format);
}

at::Tensor emptyAffine(
    at::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory,
    double scale,
    int64_t zero_point,
    std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::native::empty_affine_quantized(size, dtype, layout, device, pin_memory, scale, zero_point, format);
}

at::Tensor emptyPerChannel(
    at::IntArrayRef size,
    const at::Tensor& scales,
    const at::Tensor& zero_points,
    int64_t axis,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device.has_value() ? device : scales.device());
  return at::native::empty_per_channel_affine_quantized(
      size, scales, zero_points, axis, dtype, layout, device, pin_memory, format);
}

// The integers of a quantised tensor, on its device, sharing its memory.
at::Tensor integers(const at::Tensor& tensor) {
  const auto key = tensor.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  auto plain = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()),
      c10::DispatchKeySet(key),
      c10::scalarTypeToTypeMeta(c10::toUnderlying(tensor.scalar_type())));
  plain.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return plain;
}

at::Tensor quantizeLike(const at::Tensor& values, const at::Tensor& like) {
  if (like.qscheme() == c10::kPerTensorAffine) {
    return at::_ops::quantize_per_tensor::call(values, like.q_scale(), like.q_zero_point(), like.scalar_type());
  }
  return at::_ops::quantize_per_channel::call(
      values,
      like.q_per_channel_scales().to(values.device()),
      like.q_per_channel_zero_points().to(values.device()),
      like.q_per_channel_axis(),
      like.scalar_type());
}

at::Tensor copyFrom(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  TORCH_CHECK(
      dst.is_quantized(),
      "Copying from quantized Tensor to non-quantized Tensor is not allowed, please use dequantize to get a float "
      "Tensor from a quantized Tensor");
  if (!self.is_quantized()) {
    TORCH_CHECK(self.sizes() == dst.sizes(), "Quantized copy only works with Tensors with the same shape");
    integers(dst).copy_(integers(quantizeLike(self.to(dst.device()), dst)), non_blocking);
    return dst;
  }
  TORCH_CHECK(self.qscheme() == dst.qscheme(), "Quantized copy only works with the same qscheme");
  TORCH_CHECK(self.scalar_type() == dst.scalar_type(), "Quantized copy only works with the same dtype");
  at::get_qtensorimpl(dst)->set_quantizer_(at::get_qtensorimpl(self)->quantizer());
  integers(dst).copy_(integers(self), non_blocking);
  return dst;
}

} // namespace

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("empty_quantized", TORCH_FN(emptyQuantized));
  m.impl("_empty_affine_quantized", TORCH_FN(emptyAffine));
  m.impl("_empty_per_channel_affine_quantized", TORCH_FN(emptyPerChannel));
  m.impl("q_scale", TORCH_FN(at::native::q_scale_quant));
  m.impl("q_zero_point", TORCH_FN(at::native::q_zero_point_quant));
  m.impl("qscheme", TORCH_FN(at::native::qscheme_quant));
  m.impl("q_per_channel_scales", TORCH_FN(at::native::q_per_channel_scales));
  m.impl("q_per_channel_zero_points", TORCH_FN(at::native::q_per_channel_zero_points));
  m.impl("q_per_channel_axis", TORCH_FN(at::native::q_per_channel_axis));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_quantized_));
  m.impl("_copy_from", TORCH_FN(copyFrom));
}

// torch makes quantised tensors under the key of the device alone, too.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_empty_affine_quantized", TORCH_FN(emptyAffine));
  m.impl("_empty_per_channel_affine_quantized", TORCH_FN(emptyPerChannel));
}

} // namespace kunlun::aten
