// Checks that the fused operators share; for tensors of symbolic sizes too.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace kunlun::aten::fused {

inline void checkFloat(const char* op, const char* name, const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK(
      dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
      op,
      ": ",
      name,
      " must be float32, float16 or bfloat16, got ",
      dtype);
}

inline void checkDtype(const char* op, const char* name, const at::Tensor& tensor, c10::ScalarType dtype) {
  TORCH_CHECK(tensor.scalar_type() == dtype, op, ": ", name, " must be ", dtype, ", got ", tensor.scalar_type());
}

// The dtype of the activations, or float32.
inline void checkParameterDtype(const char* op, const char* name, const at::Tensor& tensor, const at::Tensor& x) {
  TORCH_CHECK(
      tensor.scalar_type() == x.scalar_type() || tensor.scalar_type() == at::kFloat,
      op,
      ": ",
      name,
      " must be float32 or of the same dtype as the input (",
      x.scalar_type(),
      "), got ",
      tensor.scalar_type());
}

inline void checkIndex(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.scalar_type() == at::kInt || tensor.scalar_type() == at::kLong,
      op,
      ": ",
      name,
      " must be int32 or int64, got ",
      tensor.scalar_type());
}

inline void checkDims(const char* op, const char* name, const at::Tensor& tensor, int64_t dims) {
  TORCH_CHECK(tensor.dim() == dims, op, ": ", name, " must have ", dims, " dimensions, got ", tensor.dim());
}

inline void
checkSize(const char* op, const char* name, const at::Tensor& tensor, int64_t dim, const c10::SymInt& size) {
  TORCH_CHECK(
      tensor.sym_size(dim) == size,
      op,
      ": ",
      name,
      " must have size ",
      size,
      " in dimension ",
      dim,
      ", got a tensor of shape ",
      tensor.sym_sizes());
}

inline void checkShape(const char* op, const char* name, const at::Tensor& tensor, c10::SymIntArrayRef sizes) {
  TORCH_CHECK(tensor.sym_sizes() == sizes, op, ": ", name, " must have shape ", sizes, ", got ", tensor.sym_sizes());
}

// Kernels want the elements of a row side by side; what they write cannot be copied first.
inline void checkWritable(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.dim() > 0 && (tensor.sym_size(-1) <= 1 || tensor.sym_stride(-1) == 1) && !tensor.is_neg(),
      op,
      ": ",
      name,
      " is written to and must be contiguous in its last dimension, got strides ",
      tensor.sym_strides());
}

// A cache is too large to be copied first.
inline void checkCacheRows(const char* op, const char* name, const at::Tensor& cache) {
  TORCH_CHECK(
      (cache.sym_size(-1) <= 1 || cache.sym_stride(-1) == 1) && !cache.is_neg(),
      op,
      ": ",
      name,
      " must be contiguous in its last dimension, got strides ",
      cache.sym_strides());
}

// A tensor whose last dimension is contiguous: itself, or a copy.
inline at::Tensor dense(const at::Tensor& tensor) {
  const bool ready = !tensor.is_neg() && (tensor.size(-1) <= 1 || tensor.stride(-1) == 1);
  return ready ? tensor : tensor.resolve_neg().contiguous();
}

inline std::optional<at::Tensor> dense(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined() ? std::optional<at::Tensor>(dense(*tensor)) : std::nullopt;
}

inline bool has(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

} // namespace kunlun::aten::fused
