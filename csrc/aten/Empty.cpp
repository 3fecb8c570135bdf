// Uninitialised tensors on a kunlun device.
#include "aten/Empty.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "runtime/CachingAllocator.h"
#include "runtime/Device.h"
#include "runtime/Stream.h"

namespace kunlun::aten {

namespace {

at::Tensor makeTensor(
    size_t nbytes,
    c10::ScalarType dtype,
    c10::Device device,
    kl_stream stream,
    uint64_t sequence = CachingAllocator::kNoSequenceLimit) {
  auto data = CachingAllocator::allocateOnStream(nbytes, device.index(), stream, sequence);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      static_cast<int64_t>(nbytes),
      std::move(data),
      CachingAllocator::get(),
      /*resizable=*/true);
  return at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
}

} // namespace

c10::Device resolve(std::optional<c10::Device> device) {
  TORCH_CHECK(
      !device.has_value() || device->type() == c10::DeviceType::PrivateUse1,
      "expected a kunlun device, got ",
      device.value_or(c10::Device(c10::DeviceType::CPU)));
  lazyInit();
  return {c10::DeviceType::PrivateUse1, resolveDevice(device.has_value() ? device->index() : c10::DeviceIndex(-1))};
}

at::Tensor emptyOnStream(at::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device, kl_stream stream) {
  auto tensor =
      makeTensor(at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype)), dtype, device, stream);
  // A fresh TensorImpl is 1-dim and empty.
  if (sizes.size() != 1 || sizes[0] != 0) {
    tensor.unsafeGetTensorImpl()->generic_set_sizes_contiguous(sizes);
  }
  return tensor;
}

at::Tensor
empty(at::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device, std::optional<c10::MemoryFormat> format) {
  at::detail::check_size_nonnegative(sizes);
  auto tensor = emptyOnStream(sizes, dtype, device, currentStreamHandle(device.index()));
  auto* impl = tensor.unsafeGetTensorImpl();
  if (format.has_value() && *format != c10::MemoryFormat::Contiguous) {
    impl->empty_tensor_restride(*format);
  }
  return tensor;
}

at::Tensor emptyStrided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype, c10::Device device) {
  return emptyStridedOnStream(
      sizes, strides, dtype, device, currentStreamHandle(device.index()), CachingAllocator::kNoSequenceLimit);
}

at::Tensor emptyStridedOnStream(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    c10::ScalarType dtype,
    c10::Device device,
    kl_stream stream,
    uint64_t sequence) {
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK(
      sizes.size() == strides.size(),
      "dimensionality of sizes (",
      sizes.size(),
      ") must match dimensionality of strides (",
      strides.size(),
      ")");
  auto tensor = makeTensor(
      at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype)), dtype, device, stream, sequence);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor emptyLike(const at::Tensor& like, std::optional<c10::ScalarType> dtype) {
  const auto type = dtype.value_or(like.scalar_type());
  if (like.is_non_overlapping_and_dense()) {
    return emptyStrided(like.sizes(), like.strides(), type, like.device());
  }
  return emptyStrided(like.sizes(), at::infer_dense_strides(like.sizes(), like.strides()), type, like.device());
}

} // namespace kunlun::aten
