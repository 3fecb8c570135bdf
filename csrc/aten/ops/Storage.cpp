// Creation, views and storage: what never crosses the chip interface.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <torch/library.h>

#include "aten/Empty.h"
#include "runtime/CachingAllocator.h"
#include "runtime/Error.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun::aten {

namespace {

void checkLayout(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(c10::kStrided) == c10::kStrided, "kunlun cannot create strided memory for layout ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

// With deterministic algorithms uninitialised memory holds NaN or the largest
// integer, as on every device of torch.
bool fillsUninitialized() {
  const auto& context = at::globalContext();
  return C10_UNLIKELY(context.deterministicAlgorithms()) && context.deterministicFillUninitializedMemory();
}

at::Tensor filled(at::Tensor tensor) {
  if (fillsUninitialized()) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

at::Tensor emptyMemoryFormat(
    at::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> format) {
  checkLayout(layout, pin_memory);
  return filled(empty(size, c10::dtype_or_default(dtype), resolve(device), format));
}

at::Tensor emptyStridedOp(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  checkLayout(layout, pin_memory);
  return filled(emptyStrided(size, stride, c10::dtype_or_default(dtype), resolve(device)));
}

// A tensor of zeros that has no memory.
at::Tensor efficientZeroTensor(
    at::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout,
    std::optional<c10::Device> device,
    std::optional<bool> pin_memory) {
  checkLayout(layout, pin_memory);
  const auto where = resolve(device);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, where), CachingAllocator::get(), true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1).add(c10::DispatchKey::ZeroTensor),
      c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype)));
  tensor.unsafeGetTensorImpl()->generic_set_sizes_contiguous(size);
  return tensor;
}

// New memory on the storage's own device, old contents copied on that device's
// current stream; torch's own resize allocates on the current device and copies
// on the host.
void growStorage(c10::StorageImpl* storage, size_t nbytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const auto device = storage->device();
  const auto stream = currentStreamHandle(device.index());
  auto data = CachingAllocator::allocateOnStream(nbytes, device.index(), stream);
  const auto keep = std::min(nbytes, storage->nbytes());
  if (keep != 0) {
    CachingAllocator::checkAwake(storage->data());
    check(
        chip::runtime().memcpy_async(data.get(), storage->data(), keep, KL_COPY_DEVICE_TO_DEVICE, 0, stream),
        "resize_");
  }
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(nbytes);
}

void resizeImpl(c10::TensorImpl* self, at::IntArrayRef size, c10::OptionalArrayRef<int64_t> stride) {
  if (self->sizes() == size && (!stride.has_value() || self->strides() == *stride)) {
    return;
  }
  const auto itemsize = self->dtype().itemsize();
  const size_t needed = stride.has_value()
      ? at::detail::computeStorageNbytes(size, *stride, itemsize, self->storage_offset())
      : at::detail::computeStorageNbytesContiguous(size, itemsize, self->storage_offset());
  auto* storage = self->unsafe_storage().unsafeGetStorageImpl();
  // First, so that a tensor whose storage cannot grow keeps its shape, and with it its bounds.
  if (c10::multiply_integers(size) != 0 && storage->nbytes() < needed) {
    growStorage(storage, needed);
  }
  if (stride.has_value()) {
    self->set_sizes_and_strides(size, *stride);
  } else {
    self->generic_set_sizes_contiguous(size);
  }
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  at::detail::check_size_nonnegative(size);
  const auto old_nbytes = static_cast<int64_t>(self.storage().nbytes());
  resizeImpl(self.unsafeGetTensorImpl(), size, std::nullopt);
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  if (fillsUninitialized()) {
    const c10::DeviceGuard guard(self.device());
    at::native::fill_resize_deterministic_(self, old_nbytes);
  }
  return self;
}

at::Tensor&
setStorageOffset(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  resizeImpl(impl, size, stride.data() != nullptr ? c10::OptionalArrayRef<int64_t>(stride) : std::nullopt);
  return self;
}

at::Tensor& setStorage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return setStorageOffset(self, std::move(source), 0, count, {});
}

at::Tensor& setTensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) {
    return self;
  }
  return setStorageOffset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& setEmpty(at::Tensor& self) {
  const auto device = self.device();
  c10::Storage storage(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), CachingAllocator::get(), true));
  return setStorageOffset(self, std::move(storage), 0, {0}, {});
}

bool isSetTo(const at::Tensor& self, const at::Tensor& source) {
  return self.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl() &&
      self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() &&
      self.strides() == source.strides();
}

// Whether `self.data = from` may change `self` in place. torch's own answer knows
// no out-of-tree device; without this one Module.to would replace parameters,
// which unties shared weights and leaves optimizers behind with the old ones.
bool hasCompatibleShallowCopyType(const at::Tensor& self, const at::Tensor& from) {
  auto both = [&](c10::DispatchKey functionality) {
    constexpr c10::DispatchKeySet backends({c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit});
    const c10::DispatchKeySet key(functionality);
    return self.key_set().has_any(key) && from.key_set().has_any(key) && self.key_set().has_any(backends) &&
        from.key_set().has_any(backends);
  };
  return self.key_set() == from.key_set() || both(c10::DispatchKey::Dense) || both(c10::DispatchKey::Sparse) ||
      both(c10::DispatchKey::SparseCsr);
}

void recordStream(at::Tensor& self, c10::Stream stream) {
  CachingAllocator::recordStream(self.storage().data_ptr(), stream);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(emptyMemoryFormat));
  m.impl("empty_strided", TORCH_FN(emptyStridedOp));
  m.impl("_efficientzerotensor", TORCH_FN(efficientZeroTensor));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(setStorage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(setStorageOffset));
  m.impl("set_.source_Tensor", TORCH_FN(setTensor));
  m.impl("set_", TORCH_FN(setEmpty));
  m.impl("is_set_to", TORCH_FN(isSetTo));
  m.impl("record_stream", TORCH_FN(recordStream));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(hasCompatibleShallowCopyType));
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(hasCompatibleShallowCopyType));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(hasCompatibleShallowCopyType));
}

} // namespace kunlun::aten
