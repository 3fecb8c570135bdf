// Aliases of strided nested tensors: one buffer, and sizes, strides and offsets that always lie in host memory.
#include <ATen/NestedTensorImpl.h>

#include "aten/boxed/Aliases.h"
#include "aten/boxed/HostMemory.h"

namespace kunlun::aten {

namespace {

at::Tensor makeNested(
    c10::DispatchKey key,
    c10::Storage storage,
    const at::Tensor& like,
    const at::Tensor& sizes,
    const at::Tensor& strides,
    const at::Tensor& offsets) {
  const auto keys = c10::DispatchKeySet(key).add(c10::DispatchKey::AutogradNestedTensor);
  return at::detail::make_tensor<at::native::NestedTensorImpl>(
      std::move(storage), keys, like.dtype(), sizes, strides, offsets);
}

} // namespace

at::Tensor Aliases::hostNested(const at::Tensor& tensor) {
  const auto* impl = at::native::get_nested_tensor_impl(tensor);
  return makeNested(
      c10::DispatchKey::NestedTensorCPU,
      hostStorage(tensor, /*whole=*/true),
      tensor,
      impl->get_nested_sizes(),
      impl->get_nested_strides(),
      impl->get_storage_offsets());
}

// What a CPU kernel allocates on the chip's thread lies in device memory; what it took over from an argument does not.
at::Tensor Aliases::inHostMemory(const at::Tensor& metadata) {
  bool on_device = metadata.storage().data_ptr().get_deleter() == deviceAllocator()->raw_deleter();
  for (const auto& pair : storages_) {
    on_device |= pair.host.unsafeGetStorageImpl() == metadata.storage().unsafeGetStorageImpl();
  }
  return on_device ? deviceStrided(metadata).cpu() : metadata;
}

at::Tensor Aliases::deviceNested(const at::Tensor& host) {
  const auto* impl = at::native::get_nested_tensor_impl(host);
  const auto sizes = inHostMemory(impl->get_nested_sizes());
  const auto strides = inHostMemory(impl->get_nested_strides());
  const auto offsets = inHostMemory(impl->get_storage_offsets());
  return makeNested(
      c10::DispatchKey::NestedTensorPrivateUse1, deviceStorage(host.storage()), host, sizes, strides, offsets);
}

} // namespace kunlun::aten
