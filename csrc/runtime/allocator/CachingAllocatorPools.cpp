// Memory pools: parts of the caching allocator that a user keeps apart.
#include <iterator>
#include <utility>

#include "runtime/allocator/CachingAllocatorDevice.h"

namespace kunlun {

void CachingAllocatorCore::retainPool(int device, AllocatorPoolId id, const AllocatorPoolOptions& options) {
  devices_[device]->retainPool(id, options);
}

void CachingAllocatorCore::releasePool(int device, AllocatorPoolId id) {
  devices_[device]->releasePool(id);
}

int CachingAllocatorCore::poolUseCount(int device, AllocatorPoolId id) {
  return devices_[device]->poolUseCount(id);
}

std::vector<std::pair<AllocatorPoolId, AllocatorStatArray>> CachingAllocatorCore::poolReservedBytes(int device) {
  return devices_[device]->poolReservedBytes();
}

bool CachingAllocatorCore::beginAllocateToPool(int device, AllocatorPoolId id, const AllocatorPoolOptions& options) {
  return devices_[device]->beginAllocateToPool(id, options);
}

bool CachingAllocatorCore::endAllocateToPool(int device, AllocatorPoolId id) {
  return devices_[device]->endAllocateToPool(id);
}

// ---- one device -------------------------------------------------------------

void CachingAllocatorCore::Device::retainPool(AllocatorPoolId id, const AllocatorPoolOptions& options) {
  Lock lock(mutex_);
  auto& pool = private_pools_[id];
  if (pool == nullptr) {
    pool = std::make_unique<Pool>(this, id, options);
  }
  ++pool->use_count;
}

void CachingAllocatorCore::Device::releasePool(AllocatorPoolId id) {
  Lock lock(mutex_);
  const auto pool = private_pools_.find(id);
  if (pool == private_pools_.end() || pool->second->use_count == 0) {
    return;
  }
  if (--pool->second->use_count != 0) {
    return;
  }
  if (pool->second->state == Pool::State::Asleep) {
    dropBackup(*pool->second); // nobody can wake it up any more
  }
  // What idle streams have left goes back at once. Nothing is waited for: the rest goes back when the cache is emptied.
  for (const auto& streams : pool->second->streams) {
    uint64_t sequence = 0;
    if (runtime_.stream_sequence(streams->stream, &sequence) == KL_SUCCESS &&
        runtime_.stream_query(streams->stream) == KL_SUCCESS) {
      releaseSegments(*streams, sequence);
    }
  }
  dropUnusedPools();
}

int CachingAllocatorCore::Device::poolUseCount(AllocatorPoolId id) {
  Lock lock(mutex_);
  const auto pool = private_pools_.find(id);
  return pool == private_pools_.end() ? 0 : pool->second->use_count;
}

std::vector<std::pair<AllocatorPoolId, AllocatorStatArray>> CachingAllocatorCore::Device::poolReservedBytes() {
  Lock lock(mutex_);
  std::vector<std::pair<AllocatorPoolId, AllocatorStatArray>> result;
  for (const auto& [id, pool] : private_pools_) {
    result.emplace_back(id, pool->reserved_bytes);
  }
  return result;
}

bool CachingAllocatorCore::Device::beginAllocateToPool(AllocatorPoolId id, const AllocatorPoolOptions& options) {
  Lock lock(mutex_);
  auto& pool = private_pools_[id];
  if (pool == nullptr) {
    pool = std::make_unique<Pool>(this, id, options);
  }
  if (pool->state != Pool::State::Awake) {
    return false;
  }
  ++pool->use_count;
  allocator_route = new AllocatorRoute{pool.get(), allocator_route};
  return true;
}

bool CachingAllocatorCore::Device::endAllocateToPool(AllocatorPoolId id) {
  for (AllocatorRoute** link = &allocator_route; *link != nullptr; link = &(*link)->outer) {
    AllocatorRoute* route = *link;
    if (route->pool->device == this && route->pool->id == id) {
      *link = route->outer;
      delete route;
      return true;
    }
  }
  return false;
}

} // namespace kunlun
