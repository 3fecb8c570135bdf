// The caching allocator's way to the driver: what happens when the cache has no block that fits.
#include <algorithm>

#include "runtime/allocator/CachingAllocatorDevice.h"

namespace kunlun {

using Block = CachingAllocatorCore::Block;

// From cheap to dear: new memory (after garbage collection, if that is on), what others have let go of, what all
// streams have finished with, the memory pools that allow it, and then there is no memory.
Block* CachingAllocatorCore::Device::mallocSlowly(Lock& lock, StreamPool& pool, const Request& request) {
  const bool within_host_call = request.sequence_limit != kNoSequenceLimit || allocator_host_call.stream != nullptr;
  const size_t segment_size = segmentSize(request);
  if (!request.small() && !within_host_call) {
    collectGarbage(lock, segment_size);
  }
  if (Block* block = newSegment(pool, request)) {
    return block;
  }
  ++stats_.num_alloc_retries;
  if (within_host_call) {
    reclaimWithinHostCall(request.sequence_limit, {});
  } else {
    if (reclaimFromOthers(lock)) {
      if (Block* block = findFree(pool, request.size, request.sequence_limit)) {
        return block;
      }
    }
    reclaim(lock, {});
  }
  // Waiting may also have completed blocks of segments that are still in use.
  if (Block* block = findFree(pool, request.size, request.sequence_limit)) {
    return block;
  }
  if (Block* block = newSegment(pool, request)) {
    return block;
  }
  if (!pool.owner->isPrivate()) {
    if (Block* block = borrowFromPools(pool.stream, request)) {
      return block;
    }
  }
  outOfMemory(request, segment_size);
}

size_t CachingAllocatorCore::Device::segmentSize(const Request& request) const {
  if (request.small()) {
    return kSmallBuffer;
  }
  return request.size < kMinLargeAlloc ? std::max(settings().large_segment_size, roundUp(request.size, kRoundLarge))
                                       : roundUp(request.size, kRoundLarge);
}

bool CachingAllocatorCore::Device::fitsLimit(size_t bytes) const {
  return static_cast<uint64_t>(stats_.reserved_bytes[0].current) + bytes <= allowed_;
}

// A free block that is in no bin, or NULL when neither the driver nor the memory fraction has room.
Block* CachingAllocatorCore::Device::newSegment(StreamPool& pool, const Request& request) {
  const AllocatorPoolOptions& options = pool.owner->options;
  if (settings().expandable_segments && options.memory.allocate == nullptr && !options.no_split && !options.can_sleep) {
    return growExpandable(pool, request);
  }
  return newPlainSegment(pool, request, segmentSize(request));
}

Block* CachingAllocatorCore::Device::newPlainSegment(StreamPool& pool, const Request& request, size_t bytes) {
  if (!fitsLimit(bytes)) {
    return nullptr;
  }
  const AllocatorMemory& memory = pool.owner->options.memory;
  void* ptr = nullptr;
  if (memory.allocate != nullptr) {
    ptr = memory.allocate(bytes, index_, pool.stream);
    if (ptr == nullptr) {
      return nullptr;
    }
  } else {
    const bool can_sleep = pool.owner->options.can_sleep;
    const kl_result result =
        can_sleep ? mapAddresses(bytes, &ptr) : runtime_.memory_alloc(index_, bytes, KL_MEMORY_MAIN, &ptr);
    if (result == KL_ERROR_OUT_OF_MEMORY) {
      return nullptr;
    }
    if (result != KL_SUCCESS) {
      throw AllocatorDriverFailure{result, can_sleep ? "address_reserve or memory_map" : "memory_alloc"};
    }
  }
  Block** entry = blocks_.at(ptr);
  if (entry == nullptr) {
    if (memory.allocate != nullptr) {
      memory.free(ptr, bytes, index_, pool.stream);
    } else if (pool.owner->options.can_sleep) {
      runtime_.address_release(index_, ptr);
    } else {
      runtime_.memory_free(index_, ptr);
    }
    throw AllocatorDriverFailure{KL_ERROR_RUNTIME, "memory_alloc (address not aligned to 512 bytes)"};
  }
  Block* block = takeBlock();
  block->ptr = static_cast<char*>(ptr);
  block->size = bytes;
  block->pool = &pool;
  block->small = request.small();
  *entry = block;
  segments_[block->ptr] = {
      .base = block->ptr,
      .bytes = bytes,
      .pool = &pool,
      .small = block->small,
      .context = request.context != nullptr ? *request.context : nullptr};
  ++stats_.num_device_alloc;
  countSegment(pool, block->small, static_cast<int64_t>(bytes), 1);
  if (isOversize(block->small, bytes)) {
    stats_.oversize_segments.increase(1);
  }
  if (history_ != nullptr) {
    note(AllocatorAction::SegmentAlloc, ptr, bytes, &pool, request.context);
  }
  return block;
}

// Books memory that the driver has given (or taken back, if negative), and how many segments that adds.
void CachingAllocatorCore::Device::countSegment(StreamPool& pool, bool small, int64_t bytes, int segments) {
  const auto count = [small](AllocatorStatArray& stat, int64_t amount) {
    if (amount > 0) {
      increase(stat, small, static_cast<size_t>(amount));
    } else if (amount < 0) {
      decrease(stat, small, static_cast<size_t>(-amount));
    }
  };
  count(stats_.segment, segments);
  count(stats_.reserved_bytes, bytes);
  pool.owner->segments += segments;
  if (pool.owner->isPrivate()) {
    count(pool.owner->reserved_bytes, bytes);
  }
}

// Gives a segment back that is one free block, which is gone then. When the driver refuses, all stays as it is.
kl_result CachingAllocatorCore::Device::freeSegment(Block* block) {
  StreamPool& pool = *block->pool;
  if (pool.owner->options.memory.free != nullptr) {
    pool.owner->options.memory.free(block->ptr, block->size, index_, pool.stream);
  } else {
    const kl_result result = pool.owner->options.can_sleep ? runtime_.address_release(index_, block->ptr)
                                                           : runtime_.memory_free(index_, block->ptr);
    if (result != KL_SUCCESS) {
      return result;
    }
  }
  const auto segment = segments_.find(block->ptr);
  const bool asleep = segment->second.asleep; // its memory has gone back before
  pool.bins(block->small).remove(block);
  *blocks_.at(block->ptr) = nullptr;
  segments_.erase(segment);
  ++stats_.num_device_free;
  countSegment(pool, block->small, asleep ? 0 : -static_cast<int64_t>(block->size), -1);
  if (isOversize(block->small, block->size)) {
    stats_.oversize_segments.decrease(1);
  }
  if (history_ != nullptr && !asleep) {
    note(AllocatorAction::SegmentFree, block->ptr, block->size, &pool);
  }
  dropBlock(block);
  return KL_SUCCESS;
}

// Memory of its own for one block, which is marked to go back to the driver when it is free.
void* CachingAllocatorCore::Device::mallocUncached(kl_stream stream, size_t bytes, AllocatorContext* context) {
  Lock lock(mutex_);
  processEvents();
  const Request request{bytes, bytes, allocator_host_call.sequence, context};
  if (bytes > kMaxRequest) {
    outOfMemory(request, bytes);
  }
  const size_t size = roundUp(std::max(bytes, kMinBlockSize), kPage);
  const Request rounded{bytes, size, request.sequence_limit, context};
  StreamPool& pool = poolOf(default_pool_, stream);
  Block* block = newPlainSegment(pool, rounded, size);
  if (block == nullptr) {
    ++stats_.num_alloc_retries;
    if (allocator_host_call.stream != nullptr) {
      reclaimWithinHostCall(allocator_host_call.sequence, {});
    } else {
      reclaimFromOthers(lock);
      reclaim(lock, {});
    }
    block = newPlainSegment(pool, rounded, size);
    if (block == nullptr) {
      outOfMemory(rounded, size);
    }
  }
  block->uncached = true;
  block->other_streams.emplace_back(index_, stream); // its own work, too, must be over before it goes back
  return handOut(block, rounded);
}

Block* CachingAllocatorCore::Device::borrowFromPools(kl_stream stream, const Request& request) {
  for (const auto& [id, pool] : private_pools_) {
    if (pool->options.use_on_oom) {
      if (Block* block = findFree(poolOf(*pool, stream), request.size, request.sequence_limit)) {
        return block;
      }
    }
  }
  return nullptr;
}

void CachingAllocatorCore::Device::outOfMemory(const Request& request, size_t segment_size) {
  ++stats_.num_ooms;
  AllocatorOutOfMemory report{};
  report.device = index_;
  report.requested = request.bytes;
  report.segment = segment_size;
  report.allowed = allowed_;
  report.allocated = stats_.allocated_bytes[0].current - allocatedAsleep();
  report.reserved = stats_.reserved_bytes[0].current;
  report.limited = !fitsLimit(segment_size);
  for (const auto& [id, pool] : private_pools_) {
    report.in_private_pools += pool->reserved_bytes[0].current;
  }
  const kl_result result = runtime_.memory_info(index_, &report.free_bytes, &report.total_bytes);
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, "memory_info"};
  }
  if (history_ != nullptr) {
    note(
        AllocatorAction::OutOfMemory,
        reinterpret_cast<const void*>(report.free_bytes),
        request.bytes,
        nullptr,
        request.context);
  }
  throw report;
}

} // namespace kunlun
