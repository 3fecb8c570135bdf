// Host copies of device memory, for chips whose memory the host cannot reach.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

namespace kunlun::aten {

// For one call. A copy has the size of the whole storage, so that offsets and overlaps stay what they are, but only
// what the arguments cover is transferred: a cache of gigabytes is not moved because of one of its rows.
class HostCopies {
 public:
  explicit HostCopies(c10::Device device) : device_(device) {}

  // Memory for a copy of the storage, without its contents.
  c10::DataPtr make(const c10::Storage& storage);
  // Brings what the tensor covers, or its whole storage, to where make() put the copy. Waits for the stream.
  void fetch(const at::Tensor& tensor, void* copy, bool whole_storage);
  // Takes the elements back to the device, and leaves alone what lies between them: other streams may write there.
  void deliver(const at::Tensor& host, const at::Tensor& device);

 private:
  struct Range {
    const void* storage;
    size_t begin;
    size_t end;
  };
  c10::Device device_;
  std::vector<Range> fetched_;
};

} // namespace kunlun::aten
