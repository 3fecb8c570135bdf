// Memory pools: allocations that are kept apart from all others.
#include "runtime/MemPool.h"

#include <atomic>

#include <c10/util/Exception.h>

#include "runtime/CachingAllocator.h"
#include "runtime/Device.h"
#include "runtime/allocator/CachingAllocatorCore.h"

namespace kunlun {

c10::MempoolId_t MemPool::newId(bool is_user_created) {
  static std::atomic<c10::CaptureId_t> users{0};
  static std::atomic<c10::CaptureId_t> others{0};
  return is_user_created ? c10::MempoolId_t(0, ++users) : c10::MempoolId_t(++others, 0);
}

MemPool::MemPool(std::shared_ptr<PluggableAllocator> allocator, bool is_user_created, bool use_on_oom, bool no_split)
    : allocator_(std::move(allocator)), id_(newId(is_user_created)), device_(currentDevice()) {
  lazyInit();
  PluggableAllocator::refuse("MemPool");
  if (allocator_ != nullptr) {
    options_.memory = allocator_->functions();
  }
  options_.use_on_oom = use_on_oom;
  options_.no_split = no_split;
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
  CachingAllocator::core().beginAllocateToPool(resolveDevice(device), id_, options_);
}

void MemPool::end(c10::DeviceIndex device) {
  lazyInit();
  device = resolveDevice(device);
  TORCH_CHECK(
      CachingAllocator::core().endAllocateToPool(device, id_),
      "the calling thread does not allocate from this memory pool; a pool is left by the thread that has entered it");
  CachingAllocator::core().releasePool(device, id_);
}

} // namespace kunlun
