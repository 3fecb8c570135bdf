// The caching allocator's books: statistics, limits, and where a block comes from.
#include "runtime/allocator/CachingAllocatorDevice.h"

namespace kunlun {

using Block = CachingAllocatorCore::Block;

AllocatorStats CachingAllocatorCore::Device::stats() {
  Lock lock(mutex_);
  return stats_;
}

std::pair<int64_t, int64_t> CachingAllocatorCore::Device::usage() {
  Lock lock(mutex_);
  return {stats_.allocated_bytes[0].current, stats_.reserved_bytes[0].current};
}

namespace {

template <typename Function>
void forEachStat(AllocatorStats& stats, Function&& function) {
  for (AllocatorStatArray* array :
       {&stats.allocation,
        &stats.segment,
        &stats.active,
        &stats.inactive_split,
        &stats.allocated_bytes,
        &stats.reserved_bytes,
        &stats.active_bytes,
        &stats.inactive_split_bytes,
        &stats.requested_bytes}) {
    for (AllocatorStat& stat : *array) {
      function(stat);
    }
  }
  function(stats.oversize_allocations);
  function(stats.oversize_segments);
}

} // namespace

void CachingAllocatorCore::Device::resetAccumulatedStats() {
  Lock lock(mutex_);
  clock_base_ += stats_.allocation[0].allocated;
  forEachStat(stats_, [](AllocatorStat& stat) { stat.allocated = stat.freed = 0; });
  for (const auto& [id, pool] : private_pools_) {
    for (AllocatorStat& stat : pool->reserved_bytes) {
      stat.allocated = stat.freed = 0;
    }
  }
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
  stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = 0;
  stats_.num_device_free = 0;
}

void CachingAllocatorCore::Device::resetPeakStats() {
  Lock lock(mutex_);
  forEachStat(stats_, [](AllocatorStat& stat) { stat.peak = stat.current; });
  for (const auto& [id, pool] : private_pools_) {
    for (AllocatorStat& stat : pool->reserved_bytes) {
      stat.peak = stat.current;
    }
  }
}

void CachingAllocatorCore::Device::setMemoryFraction(double fraction) {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  const kl_result result = runtime_.memory_info(index_, &free_bytes, &total_bytes);
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, "memory_info"};
  }
  Lock lock(mutex_);
  fraction_ = fraction;
  allowed_ = fraction < 1.0 ? static_cast<uint64_t>(fraction * static_cast<double>(total_bytes)) : UINT64_MAX;
}

double CachingAllocatorCore::Device::memoryFraction() {
  Lock lock(mutex_);
  return fraction_;
}

std::pair<void*, size_t> CachingAllocatorCore::Device::baseAllocation(Block* block) {
  Lock lock(mutex_);
  if (!block->allocated) {
    return {nullptr, 0};
  }
  if (block->expandable != nullptr) {
    return {block->expandable->base, block->expandable->bytes};
  }
  while (block->previous != nullptr) {
    block = block->previous;
  }
  void* base = block->ptr;
  size_t size = 0;
  for (; block != nullptr; block = block->next) {
    size += block->size;
  }
  return {base, size};
}

} // namespace kunlun
