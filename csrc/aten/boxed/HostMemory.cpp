// Device memory for what CPU kernels allocate while they run on a chip thread.
#include "aten/boxed/HostMemory.h"

#include <cstring>
#include <mutex>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "runtime/Error.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun::aten {

namespace {

struct Switch {
  c10::DeviceIndex device = -1; // -1: off
  kl_stream stream = nullptr;
  uint64_t sequence = 0;
  Spare* spare = nullptr;
};
thread_local Switch current;

c10::DataPtr relabel(c10::DataPtr&& data, c10::Device device) {
  void* address = data.get();
  const auto deleter = data.get_deleter();
  return {address, data.release_context(), deleter, device};
}

c10::DeleterFnPtr replaced_deleter = nullptr; // set once, before the allocator is installed

// Libraries under ATen take raw memory and give it back by address alone.
void deleteRaw(void* address) {
  kl_pointer_info info{};
  if (chip::runtime().pointer_info(address, &info) == KL_SUCCESS && info.type == KL_POINTER_DEVICE) {
    CachingAllocator::get()->raw_deleter()(address);
  } else {
    replaced_deleter(address);
  }
}

class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator* replaced) : replaced_(replaced) {}

  c10::DataPtr allocate(size_t nbytes) override {
    if (current.device < 0) {
      return replaced_->allocate(nbytes);
    }
    if (current.spare != nullptr && current.spare->nbytes == nbytes && nbytes != 0) {
      current.spare->nbytes = 0; // taken: a DataPtr that was moved from still has its address
      return relabel(std::move(current.spare->data), c10::Device(c10::DeviceType::CPU));
    }
    return relabel(
        CachingAllocator::allocateOnStream(nbytes, current.device, current.stream, current.sequence),
        c10::Device(c10::DeviceType::CPU));
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &deleteRaw;
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    replaced_->copy_data(dest, src, count);
  }

 private:
  c10::Allocator* replaced_;
};

} // namespace

void installHostAllocator() {
  hostAllocator();
}

c10::Allocator* hostAllocator() {
  static auto* allocator = [] {
    auto* replaced = c10::GetCPUAllocator();
    replaced_deleter = replaced->raw_deleter();
    TORCH_INTERNAL_ASSERT(replaced_deleter != nullptr, "torch's CPU allocator has no raw deleter");
    auto* made = new HostAllocator(replaced);
    // The highest priority: an allocator that is set later must not cut the switch off.
    c10::SetCPUAllocator(made, /*priority=*/255);
    return made;
  }();
  return allocator;
}

c10::Allocator* deviceAllocator() {
  return CachingAllocator::get();
}

DeviceMemoryScope::DeviceMemoryScope(
    c10::DeviceIndex device,
    kl_stream stream,
    uint64_t sequence,
    const CachingAllocator::Route& route,
    Spare* spare)
    : scope_(stream, sequence, route) {
  TORCH_INTERNAL_ASSERT(current.device < 0);
  current = {device, stream, sequence, spare};
}

DeviceMemoryScope::~DeviceMemoryScope() {
  current = {};
}

c10::DataPtr adopt(c10::DataPtr&& data, size_t nbytes, c10::Device device) {
  static const auto device_deleter = CachingAllocator::get()->raw_deleter();
  if (data.get_deleter() == device_deleter) {
    return relabel(std::move(data), device);
  }
  const auto stream = currentStreamHandle(device.index());
  auto copy = CachingAllocator::allocateOnStream(nbytes, device.index(), stream);
  if (nbytes != 0) {
    check(
        chip::runtime().memcpy_async(copy.get(), data.get(), nbytes, KL_COPY_HOST_TO_DEVICE, /*flags=*/0, stream),
        "memcpy_async");
  }
  data.clear();
  return copy;
}

} // namespace kunlun::aten
