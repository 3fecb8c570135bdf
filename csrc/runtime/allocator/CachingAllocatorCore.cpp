// The caching allocator itself: allocation and free.
#include "runtime/allocator/CachingAllocatorCore.h"

#include <algorithm>
#include <bit>

#include "runtime/allocator/CachingAllocatorDevice.h"

namespace kunlun {

constinit std::atomic<int> allocator_sleeping_pools{0};
constinit thread_local AllocatorHostCall allocator_host_call;
constinit thread_local AllocatorRoute* allocator_route = nullptr;
constinit thread_local const AllocatorContext* allocator_borrowed_context = nullptr;

using Block = CachingAllocatorCore::Block;
using Pool = CachingAllocatorCore::Pool;

// ---- the whole --------------------------------------------------------------

CachingAllocatorCore::CachingAllocatorCore(
    const kl_runtime_table& runtime,
    int device_count,
    SettingsFn settings,
    DivisionsFn divisions,
    ReclaimFn reclaim) {
  for (int device = 0; device < device_count; ++device) {
    devices_.push_back(std::make_unique<Device>(runtime, blocks_, device, settings, divisions, reclaim));
  }
}

CachingAllocatorCore::~CachingAllocatorCore() = default;

void* CachingAllocatorCore::malloc(int device, kl_stream stream, size_t bytes, uint64_t sequence_limit) {
  if (recordsHistory()) [[unlikely]] {
    AllocatorContext context = gather(AllocatorHistoryOptions::State);
    return devices_[device]->malloc(stream, bytes, sequence_limit, &context);
  }
  return devices_[device]->malloc(stream, bytes, sequence_limit, nullptr);
}

void* CachingAllocatorCore::mallocUncached(int device, kl_stream stream, size_t bytes) {
  AllocatorContext context = recordsHistory() ? gather(AllocatorHistoryOptions::State) : nullptr;
  return devices_[device]->mallocUncached(stream, bytes, &context);
}

bool CachingAllocatorCore::free(void* ptr) noexcept {
  Block* block = blocks_.find(ptr);
  if (block == nullptr) {
    return false;
  }
  if (recordsHistory()) [[unlikely]] {
    AllocatorContext context = gather(AllocatorHistoryOptions::All);
    return block->device->free(block, &context);
  }
  return block->device->free(block, nullptr);
}

bool CachingAllocatorCore::recordStream(void* ptr, int stream_device, kl_stream stream) {
  Block* block = blocks_.find(ptr);
  return block != nullptr && block->device->recordStream(block, stream_device, stream);
}

void CachingAllocatorCore::emptyCache(AllocatorPoolId pool) {
  for (auto& device : devices_) {
    device->emptyCache(pool);
  }
}

AllocatorStats CachingAllocatorCore::stats(int device) {
  return devices_[device]->stats();
}

void CachingAllocatorCore::resetAccumulatedStats(int device) {
  devices_[device]->resetAccumulatedStats();
}

void CachingAllocatorCore::resetPeakStats(int device) {
  devices_[device]->resetPeakStats();
}

void CachingAllocatorCore::setMemoryFraction(int device, double fraction) {
  devices_[device]->setMemoryFraction(fraction);
}

double CachingAllocatorCore::memoryFraction(int device) {
  return devices_[device]->memoryFraction();
}

std::pair<void*, size_t> CachingAllocatorCore::baseAllocation(void* ptr) {
  Block* block = blocks_.find(ptr);
  return block == nullptr ? std::pair<void*, size_t>(nullptr, 0) : block->device->baseAllocation(block);
}

std::pair<int64_t, int64_t> CachingAllocatorCore::usage(int device) {
  return devices_[device]->usage();
}

size_t CachingAllocatorCore::blockSize(void* ptr) {
  Block* block = blocks_.find(ptr);
  return block == nullptr ? 0 : block->size;
}

// ---- allocation -------------------------------------------------------------

Pool& CachingAllocatorCore::Device::routedPool() {
  for (const AllocatorRoute* route = allocator_route; route != nullptr; route = route->outer) {
    if (route->pool->device == this) {
      return *route->pool;
    }
  }
  return default_pool_;
}

CachingAllocatorCore::StreamPool& CachingAllocatorCore::Device::poolOf(Pool& pool, kl_stream stream) {
  if (pool.last != nullptr && pool.last->stream == stream) {
    return *pool.last;
  }
  for (auto& candidate : pool.streams) {
    if (candidate->stream == stream) {
      pool.last = candidate.get();
      return *candidate;
    }
  }
  pool.streams.push_back(std::make_unique<StreamPool>());
  StreamPool* fresh = pool.streams.back().get();
  fresh->stream = stream;
  fresh->owner = &pool;
  if (pool.options.no_split) {
    fresh->least_rest_small = fresh->least_rest_large = SIZE_MAX;
  }
  pool.last = fresh;
  return *fresh;
}

size_t CachingAllocatorCore::Device::roundSize(size_t bytes) const {
  if (bytes < kMinBlockSize) {
    return kMinBlockSize;
  }
  const size_t divisions = divisions_ == nullptr ? 0 : divisions_(bytes);
  if (divisions > 1 && bytes > kMinBlockSize * divisions) {
    const size_t step = std::bit_floor(bytes) / std::bit_floor(divisions);
    return roundUp(roundUp(bytes, step), kMinBlockSize);
  }
  return roundUp(bytes, kMinBlockSize);
}

Block* CachingAllocatorCore::Device::findFree(StreamPool& pool, size_t size, uint64_t sequence_limit) {
  const bool small = size <= kSmallSize;
  FreeBins& bins = pool.bins(small);
  auto* block = static_cast<Block*>(bins.bestFit(size, sequence_limit));
  if (block == nullptr) {
    return nullptr;
  }
  if (!small && settings_fn_ != nullptr) {
    // A block above the split limit is handed out whole, so it must not be wasted on a much smaller request.
    const AllocatorSettings settings = settings_fn_();
    if (size < settings.max_split_size ? block->size >= settings.max_split_size
                                       : block->size - size >= settings.max_non_split_rounding_size) {
      return nullptr;
    }
  }
  bins.remove(block);
  return block;
}

void* CachingAllocatorCore::Device::malloc(
    kl_stream stream,
    size_t bytes,
    uint64_t sequence_limit,
    AllocatorContext* context) {
  const AllocatorHostCall& call = allocator_host_call;
  if (call.stream == stream && call.stream != nullptr) {
    sequence_limit = std::min(sequence_limit, call.sequence);
  }
  Lock lock(mutex_);
  if (pending_count_ != 0) {
    processEvents();
  }
  if (bytes > kMaxRequest) [[unlikely]] {
    outOfMemory({bytes, bytes, sequence_limit, context}, bytes);
  }
  const Request request{bytes, roundSize(bytes), sequence_limit, context};
  StreamPool& pool = poolOf(allocator_route == nullptr ? default_pool_ : routedPool(), stream);
  Block* block = findFree(pool, request.size, sequence_limit);
  if (block == nullptr) [[unlikely]] {
    block = mallocSlowly(lock, pool, request);
  }
  carve(block, request.size);
  return handOut(block, request);
}

void* CachingAllocatorCore::Device::handOut(Block* block, const Request& request) {
  block->allocated = true;
  block->requested = request.bytes;
  block->host_call_sequence = request.sequence_limit;
  const bool small = block->small;
  increase(stats_.allocation, small, 1);
  increase(stats_.active, small, 1);
  increase(stats_.allocated_bytes, small, block->size);
  increase(stats_.active_bytes, small, block->size);
  increase(stats_.requested_bytes, small, request.bytes);
  if (isOversize(small, block->size)) [[unlikely]] {
    stats_.oversize_allocations.increase(1);
  }
  if (history_ != nullptr) [[unlikely]] {
    note(AllocatorAction::Alloc, block->ptr, block->size, block->pool, request.context);
    if (request.context != nullptr) {
      history_->setOwner(block, *request.context);
    }
  }
  return block->ptr;
}

// Cuts what is not needed off a free block that has left its bin, and puts the rest back.
void CachingAllocatorCore::Device::carve(Block* block, size_t size) {
  const bool was_split = block->isSplit();
  const size_t rest_size = block->size - size;
  const bool split = block->small ? rest_size >= block->pool->least_rest_small
                                  : rest_size >= block->pool->least_rest_large && !isOversize(false, size);
  if (!split) {
    if (was_split) {
      decrease(stats_.inactive_split, block->small, 1);
      decrease(stats_.inactive_split_bytes, block->small, block->size);
    }
    return;
  }
  Block* rest = takeBlock();
  rest->ptr = block->ptr + size;
  rest->size = rest_size;
  rest->free_sequence = block->free_sequence;
  rest->pool = block->pool;
  rest->freed_at = block->freed_at;
  rest->small = block->small;
  rest->expandable = block->expandable;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) {
    rest->next->previous = rest;
  }
  block->next = rest;
  block->size = size;
  *blocks_.at(rest->ptr) = rest;
  rest->pool->bins(rest->small).insert(rest);
  if (block->expandable != nullptr) {
    return; // what is free of it can be given back
  }
  if (was_split) {
    decrease(stats_.inactive_split_bytes, block->small, size);
  } else {
    increase(stats_.inactive_split, block->small, 1);
    increase(stats_.inactive_split_bytes, block->small, rest_size);
  }
}

// ---- free -------------------------------------------------------------------

// The newest work item that may use a block that is freed now.
uint64_t CachingAllocatorCore::Device::freeSequence(const Block* block) const {
  const AllocatorHostCall& call = allocator_host_call;
  if (call.stream == block->pool->stream && call.sequence == block->host_call_sequence) {
    // Allocated and freed within one host call: only the call has used it, and the call is past it.
    return call.sequence;
  }
  uint64_t sequence = 0;
  if (runtime_.stream_sequence(block->pool->stream, &sequence) != KL_SUCCESS) {
    return kNoSequenceLimit; // unknown: reused in stream order only
  }
  return sequence;
}

bool CachingAllocatorCore::Device::free(Block* block, AllocatorContext* context) {
  Lock lock(mutex_);
  if (!block->allocated) {
    return false;
  }
  block->allocated = false;
  block->free_sequence = freeSequence(block);
  decrease(stats_.allocation, block->small, 1);
  decrease(stats_.allocated_bytes, block->small, block->size);
  if (isOversize(block->small, block->size)) [[unlikely]] {
    stats_.oversize_allocations.decrease(1);
  }
  if (history_ != nullptr) [[unlikely]] {
    note(AllocatorAction::FreeRequested, block->ptr, block->size, block->pool, context);
  }
  if (!block->other_streams.empty()) {
    recordEvents(block);
  } else {
    freeBlock(block);
  }
  return true;
}

// Puts a block that nobody uses any more back into its bin, merged with free neighbours.
void CachingAllocatorCore::Device::freeBlock(Block* block) {
  const bool small = block->small;
  if (history_ != nullptr) [[unlikely]] {
    note(AllocatorAction::FreeCompleted, block->ptr, block->size, block->pool);
    history_->forgetOwner(block);
  }
  decrease(stats_.active, small, 1);
  decrease(stats_.active_bytes, small, block->size);
  decrease(stats_.requested_bytes, small, block->requested);
  block->freed_at = static_cast<uint64_t>(stats_.allocation[0].allocated + clock_base_);
  for (Block* neighbour : {block->previous, block->next}) {
    const size_t merged = mergeInto(block, neighbour);
    if (merged != 0 && block->expandable == nullptr) {
      decrease(stats_.inactive_split, small, 1);
      decrease(stats_.inactive_split_bytes, small, merged);
    }
  }
  block->pool->bins(small).insert(block);
  if (block->isSplit()) {
    increase(stats_.inactive_split, small, 1);
    increase(stats_.inactive_split_bytes, small, block->size);
  }
}

// Returns the bytes that `block` has gained, 0 when the neighbour is in use.
size_t CachingAllocatorCore::Device::mergeInto(Block* block, Block* neighbour) {
  if (neighbour == nullptr || !neighbour->isFree()) {
    return 0;
  }
  const size_t gained = neighbour->size;
  block->pool->bins(block->small).remove(neighbour);
  *blocks_.at(neighbour->ptr) = nullptr;
  if (neighbour == block->previous) {
    *blocks_.at(block->ptr) = nullptr;
    block->ptr = neighbour->ptr;
    block->previous = neighbour->previous;
    if (block->previous != nullptr) {
      block->previous->next = block;
    }
    *blocks_.at(block->ptr) = block;
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) {
      block->next->previous = block;
    }
  }
  block->size += gained;
  block->free_sequence = std::max(block->free_sequence, neighbour->free_sequence);
  dropBlock(neighbour);
  return gained;
}

Block* CachingAllocatorCore::Device::takeBlock() {
  if (spare_blocks_.empty()) {
    auto* block = new Block;
    block->device = this;
    return block;
  }
  Block* block = spare_blocks_.back();
  spare_blocks_.pop_back();
  return block;
}

void CachingAllocatorCore::Device::dropBlock(Block* block) {
  block->ptr = nullptr;
  block->size = 0;
  block->requested = 0;
  block->pool = nullptr;
  block->previous = block->next = nullptr;
  block->expandable = nullptr;
  block->free_sequence = 0;
  block->allocated = block->unmapped = block->uncached = false;
  spare_blocks_.push_back(block);
}

} // namespace kunlun
