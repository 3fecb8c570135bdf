// CPU tensors that stand for kunlun tensors during one call, over the device's memory or over host copies of it.
#include "aten/boxed/Aliases.h"

#include <algorithm>

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "aten/boxed/HostMemory.h"
#include "runtime/CachingAllocator.h"

namespace kunlun::aten {

c10::IValue Aliases::toHost(const c10::IValue& value, const char* op, Use use) {
  if (value.isTensor()) {
    return hostTensor(value.toTensor(), op, use);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    list.reserve(value.toTensorList().size());
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(hostTensor(tensor, op, use));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(
          tensor.has_value() && tensor->defined() ? std::optional<at::Tensor>(hostTensor(*tensor, op, use))
                                                  : std::nullopt);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) {
    return c10::Device(c10::DeviceType::CPU);
  }
  return value;
}

at::Tensor Aliases::hostTensor(const at::Tensor& tensor, const char* op, Use use) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (tensor.device() != device_) {
    TORCH_CHECK(
        tensor.device().is_cpu() && tensor.dim() == 0,
        "Expected all tensors to be on the same device, but found at least two devices, ",
        device_,
        " and ",
        tensor.device(),
        "! (in a call of ",
        op,
        "; only 0-dim CPU tensors may be mixed with kunlun tensors)");
    return tensor;
  }
  for (auto& pair : tensors_) {
    if (pair.device.is_same(tensor)) {
      pair.written |= use != Use::Read;
      return pair.host;
    }
  }
  at::Tensor host;
  switch (tensor.layout()) {
    case c10::kStrided:
      host = tensor.is_nested()   ? hostNested(tensor)
          : tensor.is_quantized() ? hostQuantized(tensor, op, use)
                                  : hostStrided(tensor, use);
      break;
    case c10::kSparse:
      host = hostSparse(tensor, op, use);
      break;
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc:
      host = hostSparseCompressed(tensor, op, use);
      break;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, op, " does not take kunlun tensors of layout ", tensor.layout());
  }
  // Some kernels compute what only a backward pass needs when an argument requires a gradient.
  if (tensor.requires_grad() && at::GradMode::is_enabled()) {
    host.set_requires_grad(true);
  }
  tensors_.push_back({tensor, host, use != Use::Read});
  return host;
}

c10::Storage Aliases::hostStorage(const at::Tensor& tensor, bool whole) {
  const auto& storage = tensor.storage();
  c10::Storage host;
  for (const auto& pair : storages_) {
    if (pair.device.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
      host = pair.host;
    }
  }
  if (!host) {
    CachingAllocator::checkAwake(storage.data());
    auto data = copies_ != nullptr ? copies_->make(storage)
                                   : c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::DeviceType::CPU));
    const void* address = data.get();
    host = c10::Storage(
        c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t(),
            static_cast<int64_t>(storage.nbytes()),
            std::move(data),
            hostAllocator(),
            /*resizable=*/true));
    storages_.push_back({storage, host, address});
  }
  if (copies_ != nullptr) {
    copies_->fetch(tensor, const_cast<void*>(host.data()), whole);
  }
  return host;
}

at::Tensor Aliases::hostStrided(const at::Tensor& tensor, Use use) {
  const auto* from = tensor.unsafeGetTensorImpl();
  auto keys = c10::DispatchKeySet(c10::DispatchKey::CPU);
  if (from->key_set().has(c10::DispatchKey::ZeroTensor)) {
    keys = keys.add(c10::DispatchKey::ZeroTensor);
  }
  auto alias = at::detail::make_tensor<c10::TensorImpl>(hostStorage(tensor, use == Use::Out), keys, tensor.dtype());
  auto* to = alias.unsafeGetTensorImpl();
  to->set_storage_offset(from->storage_offset());
  to->set_sizes_and_strides(from->sizes(), from->strides());
  if (from->is_wrapped_number()) {
    to->set_wrapped_number(true);
  }
  if (tensor.is_conj()) {
    to->_set_conj(true);
  }
  if (tensor.is_neg()) {
    to->_set_neg(true);
  }
  return alias;
}

void Aliases::writeBack() {
  for (auto& pair : storages_) {
    auto* host = pair.host.unsafeGetStorageImpl();
    auto* device = pair.device.unsafeGetStorageImpl();
    if (host->data() != pair.data) {
      // The kernel resized its argument; without copies, the new memory is already the device's.
      pair.replaced = true;
      auto data = adopt(host->set_data_ptr({}), host->nbytes(), device_);
      pair.data = data.get();
      device->set_data_ptr_noswap(std::move(data));
      host->set_data_ptr_noswap(c10::DataPtr(const_cast<void*>(pair.data), c10::Device(c10::DeviceType::CPU)));
    }
    if (host->nbytes() != device->nbytes()) {
      device->set_nbytes(host->nbytes());
    }
  }
  // By index: carrying over a sparse tensor's members may add pairs.
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto pair = tensors_[i];
    if (pair.device.is_nested()) {
      // Its sizes never change.
    } else if (pair.device.is_quantized()) {
      writeBackQuantized(pair.device, pair.host);
    } else if (pair.device.layout() == c10::kStrided) {
      writeBackStrided(pair.device, pair.host);
    } else if (pair.device.layout() == c10::kSparse) {
      writeBackSparse(pair.device, pair.host);
    } else {
      writeBackSparseCompressed(pair.device, pair.host);
    }
    if (copies_ != nullptr && pair.written && pair.device.layout() == c10::kStrided &&
        !isReplaced(pair.device.storage())) {
      copies_->deliver(pair.host, pair.device);
    }
  }
}

bool Aliases::isReplaced(const c10::Storage& device) const {
  return std::any_of(storages_.begin(), storages_.end(), [&](const StoragePair& pair) {
    return pair.replaced && pair.device.unsafeGetStorageImpl() == device.unsafeGetStorageImpl();
  });
}

void Aliases::writeBackStrided(const at::Tensor& device, const at::Tensor& host) {
  auto* to = device.unsafeGetTensorImpl();
  const auto* from = host.unsafeGetTensorImpl();
  if (to->sizes() != from->sizes() || to->strides() != from->strides() ||
      to->storage_offset() != from->storage_offset()) {
    to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  }
}

c10::IValue Aliases::toDevice(const c10::IValue& value) {
  if (value.isTensor()) {
    return deviceTensor(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(deviceTensor(tensor));
    }
    return list;
  }
  return value;
}

at::Tensor Aliases::deviceTensor(const at::Tensor& host) {
  if (!host.defined()) {
    return host;
  }
  for (const auto& pair : tensors_) {
    if (pair.host.is_same(host)) {
      return pair.device;
    }
  }
  at::Tensor device;
  if (host.is_nested()) {
    device = deviceNested(host);
  } else if (host.is_quantized()) {
    device = deviceQuantized(host);
  } else if (host.layout() == c10::kStrided) {
    device = deviceStrided(host);
  } else if (host.layout() == c10::kSparse) {
    device = deviceSparse(host);
  } else if (at::sparse_csr::is_sparse_compressed(host)) {
    device = deviceSparseCompressed(host);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "kunlun cannot hold tensors of layout ", host.layout());
  }
  tensors_.push_back({device, host});
  return device;
}

at::Tensor Aliases::deviceStrided(const at::Tensor& host) {
  auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  const auto* from = host.unsafeGetTensorImpl();
  if (from->key_set().has(c10::DispatchKey::ZeroTensor)) {
    keys = keys.add(c10::DispatchKey::ZeroTensor);
  }
  auto device = at::detail::make_tensor<c10::TensorImpl>(deviceStorage(host.storage()), keys, host.dtype());
  auto* to = device.unsafeGetTensorImpl();
  to->set_storage_offset(from->storage_offset());
  to->set_sizes_and_strides(from->sizes(), from->strides());
  if (from->is_wrapped_number()) {
    to->set_wrapped_number(true);
  }
  if (host.is_conj()) {
    to->_set_conj(true);
  }
  if (host.is_neg()) {
    to->_set_neg(true);
  }
  return device;
}

c10::Storage Aliases::deviceStorage(const c10::Storage& host) {
  for (const auto& pair : storages_) {
    if (pair.host.unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) {
      return pair.device;
    }
  }
  auto* impl = host.unsafeGetStorageImpl();
  const auto nbytes = impl->nbytes();
  auto data = adopt(impl->set_data_ptr({}), nbytes, device_);
  const void* address = data.get();
  c10::Storage device(
      c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(),
          static_cast<int64_t>(nbytes),
          std::move(data),
          deviceAllocator(),
          /*resizable=*/true));
  storages_.push_back({device, host, address});
  return device;
}

} // namespace kunlun::aten
