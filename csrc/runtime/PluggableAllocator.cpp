// A user's own allocator in the caching allocator's place, or behind a memory pool.
#include "runtime/PluggableAllocator.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include <c10/util/Exception.h>

#include "runtime/CachingAllocator.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

void deleteMemory(void* ptr);

struct Adapter final : public c10::DeviceAllocator {
  struct Memory {
    size_t bytes;
    c10::DeviceIndex device;
    kl_stream stream;
  };

  explicit Adapter(const AllocatorMemory& f) : functions(f) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = currentDevice();
    return PluggableAllocator::allocateOnStream(bytes, device, currentStreamHandle(device));
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &deleteMemory;
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    if (count != 0) {
      const kl_stream stream = currentStreamHandle(currentDevice());
      check(chip::runtime().memcpy_async(dest, src, count, KL_COPY_DEVICE_TO_DEVICE, 0, stream), "memcpy_async");
      afterLaunch(stream);
    }
  }
  bool initialized() override {
    return checkUsable();
  }
  // It is asked for every tensor, so there is nothing that could be kept back.
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    CachingAllocator::recordStream(ptr, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return CachingAllocator::getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {
    PluggableAllocator::refuse("reset_accumulated_memory_stats");
  }
  void resetPeakStats(c10::DeviceIndex) override {
    PluggableAllocator::refuse("reset_peak_memory_stats");
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return CachingAllocator::getMemoryInfo(device);
  }

  const AllocatorMemory functions;
  std::mutex lock; // guards live
  std::unordered_map<void*, Memory> live;
};

std::atomic<Adapter*> installed{nullptr};

void deleteMemory(void* ptr) {
  if (ptr == nullptr || !checkUsable()) {
    return;
  }
  Adapter* adapter = installed.load(std::memory_order_acquire);
  Adapter::Memory memory{};
  {
    std::lock_guard lock(adapter->lock);
    const auto found = adapter->live.find(ptr);
    if (found == adapter->live.end()) {
      TORCH_WARN("kunlun memory at ", ptr, " was freed twice or does not come from the pluggable allocator; ignored");
      return;
    }
    memory = found->second;
    adapter->live.erase(found);
  }
  adapter->functions.free(ptr, memory.bytes, memory.device, memory.stream);
}

} // namespace

PluggableAllocator::PluggableAllocator(uintptr_t allocate, uintptr_t free) {
  TORCH_CHECK_VALUE(allocate != 0 && free != 0, "a pluggable allocator needs a function to allocate and one to free");
  functions_.allocate = reinterpret_cast<decltype(functions_.allocate)>(allocate);
  functions_.free = reinterpret_cast<decltype(functions_.free)>(free);
}

void PluggableAllocator::install(const PluggableAllocator& allocator) {
  TORCH_CHECK(
      !CachingAllocator::coreExists() && current() == nullptr,
      "Can't swap an already initialized allocator: call change_current_allocator before the first kunlun tensor");
  auto* adapter = new Adapter(allocator.functions()); // leaked: torch keeps the pointer until the end of the process
  installed.store(adapter, std::memory_order_release);
  c10::SetAllocator(kType, adapter, /*priority=*/1);
}

c10::DeviceAllocator* PluggableAllocator::current() noexcept {
  return installed.load(std::memory_order_acquire);
}

c10::DataPtr PluggableAllocator::allocateOnStream(size_t bytes, c10::DeviceIndex device, kl_stream stream) {
  Adapter* adapter = installed.load(std::memory_order_acquire);
  void* ptr = adapter->functions.allocate(bytes, device, stream);
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      ptr != nullptr,
      "kunlun out of memory. The pluggable allocator has no ",
      c10::CachingAllocator::format_size(bytes),
      " for device ",
      static_cast<int>(device));
  {
    std::lock_guard lock(adapter->lock);
    adapter->live[ptr] = {bytes, device, stream};
  }
  return {ptr, ptr, &deleteMemory, c10::Device(kType, device)};
}

void PluggableAllocator::refuse(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      current() == nullptr,
      what,
      " is a matter of the caching allocator, in whose place change_current_allocator has put another one");
}

} // namespace kunlun
