// Memory pools that sleep: their memory goes back to the driver, their addresses stay.
#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/allocator/CachingAllocatorDevice.h"

namespace kunlun {

using Block = CachingAllocatorCore::Block;

AllocatorSleep
CachingAllocatorCore::putToSleep(int device, AllocatorPoolId id, bool keep, kl_stream stream, uint64_t& bytes) {
  return devices_[device]->putToSleep(id, keep, stream, bytes);
}

AllocatorSleep CachingAllocatorCore::wakeUp(int device, AllocatorPoolId id, kl_stream stream) {
  return devices_[device]->wakeUp(id, stream);
}

bool CachingAllocatorCore::poolSleeps(int device, AllocatorPoolId id) {
  return devices_[device]->poolSleeps(id);
}

bool CachingAllocatorCore::poolHas(int device, AllocatorPoolId id, const void* ptr) {
  Block* block = blocks_.find(ptr);
  return block != nullptr && devices_[device].get() == block->device && block->device->poolHas(id, block);
}

bool CachingAllocatorCore::isAsleep(const void* ptr) {
  Block* block = blocks_.find(ptr);
  return block != nullptr && block->device->isAsleep(block);
}

namespace {

void require(kl_result result, const char* call) {
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, call};
  }
}

// Waits to the end even when the wait is interrupted: what is being copied must not be unmapped under the copy.
void finish(const kl_runtime_table& runtime, kl_stream stream) {
  const kl_result result = runtime.stream_synchronize(stream);
  if (result == KL_ERROR_INTERRUPTED) {
    while (runtime.stream_query(stream) == KL_NOT_READY) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  require(result, "stream_synchronize");
}

} // namespace

// ---- one device -------------------------------------------------------------

// Addresses and memory for all of them.
kl_result CachingAllocatorCore::Device::mapAddresses(size_t bytes, void** out) {
  uint64_t granularity = 0;
  void* base = nullptr;
  if (const kl_result result = runtime_.address_reserve(index_, bytes, &granularity, &base); result != KL_SUCCESS) {
    return result;
  }
  const kl_result result = runtime_.memory_map(index_, base, bytes);
  if (result != KL_SUCCESS) {
    runtime_.address_release(index_, base);
    return result;
  }
  *out = base;
  return KL_SUCCESS;
}

AllocatorSleep
CachingAllocatorCore::Device::putToSleep(AllocatorPoolId id, bool keep, kl_stream stream, uint64_t& bytes) {
  Lock lock(mutex_);
  const auto find = [&] {
    const auto found = private_pools_.find(id);
    return found == private_pools_.end() ? nullptr : found->second.get();
  };
  Pool* pool = find();
  if (pool == nullptr || !pool->options.can_sleep) {
    return AllocatorSleep::NoSuchPool;
  }
  const int64_t before = pool->reserved_bytes[0].current;
  reclaim(lock, {id}); // what is free goes back with its addresses; takes a while without the lock
  pool = find();
  if (pool == nullptr) {
    return AllocatorSleep::NoSuchPool;
  }
  if (pool->state != Pool::State::Awake) {
    return AllocatorSleep::NotAwake;
  }
  if (pool->use_count != 1) {
    return AllocatorSleep::InUse;
  }
  setState(*pool, Pool::State::Changing);
  try {
    if (keep) {
      for (const auto& [base, segment] : segments_) {
        if (segment.pool->owner != pool) {
          continue;
        }
        for (const Block* block = blocks_.find(base); block != nullptr; block = block->next) {
          if (block->isFree()) {
            continue;
          }
          auto& pieces = pool->backup.pieces;
          if (!pieces.empty() && pieces.back().first + pieces.back().second == block->ptr) {
            pieces.back().second += block->size;
          } else {
            pieces.emplace_back(block->ptr, block->size);
          }
        }
      }
    }
    lock.unlock();
    // Also work of other streams, of which nobody may have told the allocator.
    require(runtime_.device_synchronize(index_), "device_synchronize");
    backUp(*pool, stream);
    lock.lock();
  } catch (...) {
    if (!lock.owns_lock()) {
      lock.lock();
    }
    dropBackup(*pool);
    setState(*pool, Pool::State::Awake);
    throw;
  }
  setState(*pool, Pool::State::Asleep);
  unmapPool(*pool);
  bytes = static_cast<uint64_t>(before - pool->reserved_bytes[0].current);
  return AllocatorSleep::Done;
}

AllocatorSleep CachingAllocatorCore::Device::wakeUp(AllocatorPoolId id, kl_stream stream) {
  Lock lock(mutex_);
  const auto found = private_pools_.find(id);
  if (found == private_pools_.end() || !found->second->options.can_sleep) {
    return AllocatorSleep::NoSuchPool;
  }
  Pool& pool = *found->second; // the caller's use keeps it
  if (pool.state != Pool::State::Asleep) {
    return AllocatorSleep::NotAsleep;
  }
  setState(pool, Pool::State::Changing);
  try {
    if (!mapPool(pool)) {
      ++stats_.num_alloc_retries;
      reclaimFromOthers(lock);
      reclaim(lock, {});
      if (!mapPool(pool)) {
        const size_t bytes = bytesAsleep(pool);
        outOfMemory({bytes, bytes, kNoSequenceLimit, nullptr}, bytes);
      }
    }
    lock.unlock();
    restore(pool, stream);
    lock.lock();
  } catch (...) {
    if (!lock.owns_lock()) {
      lock.lock();
    }
    setState(pool, Pool::State::Asleep);
    unmapPool(pool);
    throw;
  }
  dropBackup(pool);
  setState(pool, Pool::State::Awake);
  return AllocatorSleep::Done;
}

bool CachingAllocatorCore::Device::poolSleeps(AllocatorPoolId id) {
  Lock lock(mutex_);
  const auto pool = private_pools_.find(id);
  return pool != private_pools_.end() && pool->second->state != Pool::State::Awake;
}

bool CachingAllocatorCore::Device::poolHas(AllocatorPoolId id, const Block* block) {
  Lock lock(mutex_);
  return block->allocated && block->pool != nullptr && block->pool->owner->id == id;
}

bool CachingAllocatorCore::Device::isAsleep(const Block* block) {
  Lock lock(mutex_);
  return block->allocated && block->pool != nullptr && block->pool->owner->state != Pool::State::Awake;
}

// Without the lock, as the pool is changing.
void CachingAllocatorCore::Device::backUp(Pool& pool, kl_stream stream) {
  size_t bytes = 0;
  for (const auto& piece : pool.backup.pieces) {
    bytes += piece.second;
  }
  if (bytes == 0) {
    return;
  }
  require(runtime_.host_malloc(bytes, &pool.backup.host), "host_malloc");
  char* to = static_cast<char*>(pool.backup.host);
  kl_result result = KL_SUCCESS;
  for (const auto& [from, size] : pool.backup.pieces) {
    if (result == KL_SUCCESS) {
      result = runtime_.memcpy_async(to, from, size, KL_COPY_DEVICE_TO_HOST, KL_COPY_ASYNC, stream);
    }
    to += size;
  }
  finish(runtime_, stream); // before the memory on either side could go
  require(result, "memcpy_async");
}

// The same, the other way.
void CachingAllocatorCore::Device::restore(Pool& pool, kl_stream stream) {
  const char* from = static_cast<const char*>(pool.backup.host);
  kl_result result = KL_SUCCESS;
  for (const auto& [to, size] : pool.backup.pieces) {
    if (result == KL_SUCCESS) {
      result = runtime_.memcpy_async(to, from, size, KL_COPY_HOST_TO_DEVICE, KL_COPY_ASYNC, stream);
    }
    from += size;
  }
  finish(runtime_, stream);
  require(result, "memcpy_async");
}

void CachingAllocatorCore::Device::dropBackup(Pool& pool) {
  if (pool.backup.host != nullptr) {
    runtime_.host_free(pool.backup.host);
  }
  pool.backup = {};
}

size_t CachingAllocatorCore::Device::bytesAsleep(const Pool& pool) const {
  size_t bytes = 0;
  for (const auto& [base, segment] : segments_) {
    bytes += segment.asleep && segment.pool->owner == &pool ? segment.bytes : 0;
  }
  return bytes;
}

// False, with nothing mapped, when neither the driver nor the memory fraction has room.
bool CachingAllocatorCore::Device::mapPool(Pool& pool) {
  if (!fitsLimit(bytesAsleep(pool))) {
    return false;
  }
  for (auto& [base, segment] : segments_) {
    if (!segment.asleep || segment.pool->owner != &pool) {
      continue;
    }
    const kl_result result = runtime_.memory_map(index_, base, segment.bytes);
    if (result == KL_ERROR_OUT_OF_MEMORY) {
      unmapPool(pool);
      return false;
    }
    require(result, "memory_map");
    segment.asleep = false;
    ++stats_.num_device_alloc;
    countSegment(*segment.pool, segment.small, static_cast<int64_t>(segment.bytes), 0);
    if (history_ != nullptr) {
      note(AllocatorAction::SegmentMap, base, segment.bytes, segment.pool);
    }
  }
  return true;
}

// A segment whose memory the driver does not take back, because the device is faulty, keeps it.
void CachingAllocatorCore::Device::unmapPool(Pool& pool) {
  for (auto& [base, segment] : segments_) {
    if (segment.asleep || segment.pool->owner != &pool ||
        runtime_.memory_unmap(index_, base, segment.bytes) != KL_SUCCESS) {
      continue;
    }
    segment.asleep = true;
    ++stats_.num_device_free;
    countSegment(*segment.pool, segment.small, -static_cast<int64_t>(segment.bytes), 0);
    if (history_ != nullptr) {
      note(AllocatorAction::SegmentUnmap, base, segment.bytes, segment.pool);
    }
  }
}

void CachingAllocatorCore::Device::setState(Pool& pool, Pool::State state) {
  allocator_sleeping_pools +=
      static_cast<int>(pool.state == Pool::State::Awake) - static_cast<int>(state == Pool::State::Awake);
  pool.state = state;
}

// What of the bytes in use has no memory at present.
int64_t CachingAllocatorCore::Device::allocatedAsleep() const {
  int64_t bytes = 0;
  for (const auto& [base, segment] : segments_) {
    for (const Block* block = segment.asleep ? blocks_.find(base) : nullptr; block != nullptr; block = block->next) {
      bytes += block->allocated ? static_cast<int64_t>(block->size) : 0;
    }
  }
  return bytes;
}

} // namespace kunlun
