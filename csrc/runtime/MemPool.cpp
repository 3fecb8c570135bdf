// Memory pools: allocations that are kept apart from all others.
#include "runtime/MemPool.h"

#include <atomic>

#include <c10/util/Exception.h>

#include "runtime/CachingAllocator.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/allocator/CachingAllocatorCore.h"
#include "runtime/chip/Loader.h"
#include "runtime/ipc/SharedStorage.h"

namespace kunlun {

c10::MempoolId_t MemPool::newId(bool is_user_created) {
  static std::atomic<c10::CaptureId_t> users{0};
  static std::atomic<c10::CaptureId_t> others{0};
  return is_user_created ? c10::MempoolId_t(0, ++users) : c10::MempoolId_t(++others, 0);
}

MemPool::MemPool(
    std::shared_ptr<PluggableAllocator> allocator,
    bool is_user_created,
    bool use_on_oom,
    bool no_split,
    bool can_sleep)
    : allocator_(std::move(allocator)), id_(newId(is_user_created)), device_(currentDevice()) {
  lazyInit();
  PluggableAllocator::refuse("MemPool");
  if (allocator_ != nullptr) {
    options_.memory = allocator_->functions();
  }
  options_.use_on_oom = use_on_oom;
  options_.no_split = no_split;
  options_.can_sleep = can_sleep;
  if (can_sleep) {
    TORCH_CHECK_VALUE(
        allocator_ == nullptr && !use_on_oom && !no_split,
        "a memory pool that can sleep takes its memory from the driver, lends none and splits it: allocator, "
        "use_on_oom and no_split do not go together with it");
    // Whether the chip can do it is known now, not when memory is short.
    uint64_t granularity = 0;
    void* addresses = nullptr;
    check(chip::runtime().address_reserve(device_, kRoundLarge, &granularity, &addresses), "address_reserve");
    check(chip::runtime().address_release(device_, addresses), "address_release");
  }
  CachingAllocator::core().retainPool(device_, id_, options_);
}

MemPool::~MemPool() {
  // In a forked child and after the shutdown there is nothing that could be given back.
  if (checkUsable()) {
    CachingAllocator::core().releasePool(device_, id_);
  }
}

int MemPool::useCount() const {
  return CachingAllocator::core().poolUseCount(device_, id_);
}

void MemPool::begin(c10::DeviceIndex device) {
  lazyInit();
  device = resolveDevice(device);
  TORCH_CHECK(
      !options_.can_sleep || device == device_,
      "the memory pool can sleep and belongs to device ",
      static_cast<int>(device_),
      ", but was entered for device ",
      static_cast<int>(device));
  TORCH_CHECK(
      CachingAllocator::core().beginAllocateToPool(device, id_, options_),
      "nothing can be allocated from a memory pool that sleeps: call wake_up() first");
}

void MemPool::end(c10::DeviceIndex device) {
  lazyInit();
  device = resolveDevice(device);
  TORCH_CHECK(
      CachingAllocator::core().endAllocateToPool(device, id_),
      "the calling thread does not allocate from this memory pool; a pool is left by the thread that has entered it");
  CachingAllocator::core().releasePool(device, id_);
}

uint64_t MemPool::sleep(bool keep) {
  // Another process would read zeros from then on, without a word.
  TORCH_CHECK(
      !ipc::anyLent([&](const void* memory) { return CachingAllocator::core().poolHas(device_, id_, memory); }),
      "the memory pool cannot sleep while one of its tensors is shared with another process or on its way there: "
      "delete "
      "the tensor in that process first");
  uint64_t bytes = 0;
  switch (CachingAllocator::putToSleep(device_, id_, keep, bytes)) {
    case AllocatorSleep::Done:
      return bytes;
    case AllocatorSleep::InUse:
      TORCH_CHECK(false, "the memory pool cannot sleep while a thread allocates from it: leave use_mem_pool first");
    case AllocatorSleep::NotAwake:
      TORCH_CHECK(false, "the memory pool sleeps already");
    default:
      TORCH_CHECK(false, "this memory pool cannot sleep: make it as a SleepableMemPool");
  }
}

void MemPool::wakeUp() {
  const AllocatorSleep result = CachingAllocator::wakeUp(device_, id_);
  TORCH_CHECK(result != AllocatorSleep::NotAsleep, "the memory pool is awake");
  TORCH_CHECK(result == AllocatorSleep::Done, "this memory pool cannot sleep: make it as a SleepableMemPool");
}

bool MemPool::isAsleep() const {
  return CachingAllocator::core().poolSleeps(device_, id_);
}

} // namespace kunlun
