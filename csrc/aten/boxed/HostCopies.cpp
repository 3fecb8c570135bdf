// Host copies of device memory, for chips whose memory the host cannot reach.
#include "aten/boxed/HostCopies.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/boxed/HostMemory.h"
#include "runtime/Error.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun::aten {

namespace {

// From the first byte of the tensor's elements to the one behind the last, in its storage.
std::pair<size_t, size_t> extent(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return {0, 0};
  }
  int64_t last = tensor.storage_offset();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto bytes = tensor.dtype().itemsize();
  return {static_cast<size_t>(tensor.storage_offset()) * bytes, static_cast<size_t>(last + 1) * bytes};
}

} // namespace

c10::DataPtr HostCopies::make(const c10::Storage& storage) {
  return hostAllocator()->allocate(storage.nbytes());
}

void HostCopies::fetch(const at::Tensor& tensor, void* copy, bool whole_storage) {
  const auto& storage = tensor.storage();
  const auto [begin, end] = whole_storage ? std::pair<size_t, size_t>(0, storage.nbytes()) : extent(tensor);
  const void* identity = storage.unsafeGetStorageImpl();
  if (begin == end || storage.data() == nullptr || std::any_of(fetched_.begin(), fetched_.end(), [&](const Range& r) {
        return r.storage == identity && r.begin <= begin && end <= r.end;
      })) {
    return;
  }
  check(
      chip::runtime().memcpy_async(
          static_cast<char*>(copy) + begin,
          static_cast<const char*>(storage.data()) + begin,
          end - begin,
          KL_COPY_DEVICE_TO_HOST,
          0,
          currentStreamHandle(device_.index())),
      "memcpy_async");
  fetched_.push_back({identity, begin, end});
}

void HostCopies::deliver(const at::Tensor& host, const at::Tensor& device) {
  if (host.numel() == 0 || host._is_zerotensor()) {
    return;
  }
  if (!host.is_nested() && !host.is_non_overlapping_and_dense()) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    device.copy_(host);
    return;
  }
  const auto [begin, end] = host.is_nested() ? std::pair<size_t, size_t>(0, host.storage().nbytes()) : extent(host);
  check(
      chip::runtime().memcpy_async(
          static_cast<char*>(const_cast<void*>(device.storage().data())) + begin,
          static_cast<const char*>(host.storage().data()) + begin,
          end - begin,
          KL_COPY_HOST_TO_DEVICE,
          0,
          currentStreamHandle(device_.index())),
      "memcpy_async");
}

} // namespace kunlun::aten
