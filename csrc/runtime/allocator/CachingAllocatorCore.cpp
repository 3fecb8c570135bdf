// The caching allocator itself: allocation and free.
#include "runtime/allocator/CachingAllocatorCore.h"

#include <algorithm>
#include <bit>

#include "runtime/allocator/CachingAllocatorDevice.h"

namespace kunlun {

constinit thread_local AllocatorHostCall allocator_host_call;

namespace {

// Larger requests cannot be addresses of a 48-bit space; refused before rounding could overflow.
constexpr size_t kMaxRequest = size_t(1) << 47;

constexpr size_t roundUp(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Adds to the sum and to the pool's own column.
void increase(AllocatorStatArray& stat, bool small, size_t amount) {
  stat[0].increase(static_cast<int64_t>(amount));
  stat[small ? 1 : 2].increase(static_cast<int64_t>(amount));
}

void decrease(AllocatorStatArray& stat, bool small, size_t amount) {
  stat[0].decrease(static_cast<int64_t>(amount));
  stat[small ? 1 : 2].decrease(static_cast<int64_t>(amount));
}

} // namespace

using Block = CachingAllocatorCore::Block;

// ---- the whole --------------------------------------------------------------

CachingAllocatorCore::CachingAllocatorCore(
    const kl_runtime_table& runtime,
    int device_count,
    SettingsFn settings,
    DivisionsFn divisions) {
  for (int device = 0; device < device_count; ++device) {
    devices_.push_back(std::make_unique<Device>(runtime, blocks_, device, settings, divisions));
  }
}

CachingAllocatorCore::~CachingAllocatorCore() = default;

void* CachingAllocatorCore::malloc(int device, kl_stream stream, size_t bytes, uint64_t sequence_limit) {
  return devices_[device]->malloc(stream, bytes, sequence_limit);
}

bool CachingAllocatorCore::free(void* ptr) noexcept {
  Block* block = blocks_.find(ptr);
  return block != nullptr && block->device->free(block);
}

bool CachingAllocatorCore::recordStream(void* ptr, int stream_device, kl_stream stream) {
  Block* block = blocks_.find(ptr);
  return block != nullptr && block->device->recordStream(block, stream_device, stream);
}

void CachingAllocatorCore::emptyCache() {
  for (auto& device : devices_) {
    device->emptyCache();
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

CachingAllocatorCore::StreamPool& CachingAllocatorCore::Device::poolOf(kl_stream stream) {
  if (last_pool_ != nullptr && last_pool_->stream == stream) {
    return *last_pool_;
  }
  for (auto& pool : pools_) {
    if (pool->stream == stream) {
      last_pool_ = pool.get();
      return *pool;
    }
  }
  pools_.push_back(std::make_unique<StreamPool>());
  last_pool_ = pools_.back().get();
  last_pool_->stream = stream;
  return *last_pool_;
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
  FreeBins& bins = small ? pool.small : pool.large;
  auto* block = static_cast<Block*>(bins.bestFit(size, sequence_limit));
  if (block == nullptr) {
    return nullptr;
  }
  if (!small && settings_ != nullptr) {
    // A block above the split limit is handed out whole, so it must not be wasted on a much smaller request.
    const AllocatorSettings settings = settings_();
    if (size < settings.max_split_size ? block->size >= settings.max_split_size
                                       : block->size - size >= settings.max_non_split_rounding_size) {
      return nullptr;
    }
  }
  bins.remove(block);
  return block;
}

void* CachingAllocatorCore::Device::malloc(kl_stream stream, size_t bytes, uint64_t sequence_limit) {
  const AllocatorHostCall& call = allocator_host_call;
  if (call.stream == stream && call.stream != nullptr) {
    sequence_limit = std::min(sequence_limit, call.sequence);
  }
  Lock lock(mutex_);
  if (pending_count_ != 0) {
    processEvents();
  }
  if (bytes > kMaxRequest) {
    outOfMemory(bytes, bytes);
  }
  const size_t size = roundSize(bytes);
  StreamPool& pool = poolOf(stream);
  Block* block = findFree(pool, size, sequence_limit);
  if (block == nullptr) [[unlikely]] {
    block = mallocSlowly(lock, pool, size, bytes, sequence_limit);
  }
  carve(block, size);
  block->allocated = true;
  block->requested = bytes;
  block->host_call_sequence = sequence_limit;
  const bool small = block->small;
  increase(stats_.allocation, small, 1);
  increase(stats_.active, small, 1);
  increase(stats_.allocated_bytes, small, block->size);
  increase(stats_.active_bytes, small, block->size);
  increase(stats_.requested_bytes, small, bytes);
  if (!small && settings_ != nullptr && block->size >= settings_().max_split_size) {
    stats_.oversize_allocations.increase(1);
  }
  return block->ptr;
}

// Cuts what is not needed off a free block that has left its bin, and puts the rest back.
void CachingAllocatorCore::Device::carve(Block* block, size_t size) {
  const bool was_split = block->isSplit();
  const size_t rest_size = block->size - size;
  const bool split = block->small
      ? rest_size >= kMinBlockSize
      : rest_size > kSmallSize && (settings_ == nullptr || size < settings_().max_split_size);
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
  rest->small = block->small;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr) {
    rest->next->previous = rest;
  }
  block->next = rest;
  block->size = size;
  *blocks_.at(rest->ptr) = rest;
  (rest->small ? rest->pool->small : rest->pool->large).insert(rest);
  if (was_split) {
    decrease(stats_.inactive_split_bytes, block->small, size);
  } else {
    increase(stats_.inactive_split, block->small, 1);
    increase(stats_.inactive_split_bytes, block->small, rest_size);
  }
}

Block* CachingAllocatorCore::Device::mallocSlowly(
    Lock& lock,
    StreamPool& pool,
    size_t size,
    size_t bytes,
    uint64_t sequence_limit) {
  const AllocatorSettings settings = settings_ == nullptr ? AllocatorSettings() : settings_();
  const size_t segment_size = size <= kSmallSize ? kSmallBuffer
      : size < kMinLargeAlloc                    ? settings.large_segment_size
                                                 : roundUp(size, kRoundLarge);
  if (Block* block = newSegment(pool, size, segment_size)) {
    return block;
  }
  ++stats_.num_alloc_retries;
  if (sequence_limit != kNoSequenceLimit || allocator_host_call.stream != nullptr) {
    reclaimWithinHostCall(sequence_limit);
  } else {
    reclaim(lock);
  }
  // Waiting may also have completed blocks of segments that are still in use.
  if (Block* block = findFree(pool, size, sequence_limit)) {
    return block;
  }
  if (Block* block = newSegment(pool, size, segment_size)) {
    return block;
  }
  outOfMemory(bytes, segment_size);
}

// NULL when neither the driver nor the memory fraction has room.
Block* CachingAllocatorCore::Device::newSegment(StreamPool& pool, size_t size, size_t segment_size) {
  if (static_cast<uint64_t>(stats_.reserved_bytes[0].current) + segment_size > allowed_) {
    return nullptr;
  }
  void* ptr = nullptr;
  const kl_result result = runtime_.memory_alloc(index_, segment_size, KL_MEMORY_MAIN, &ptr);
  if (result == KL_ERROR_OUT_OF_MEMORY) {
    return nullptr;
  }
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, "memory_alloc"};
  }
  Block** entry = blocks_.at(ptr);
  if (entry == nullptr) {
    runtime_.memory_free(index_, ptr);
    throw AllocatorDriverFailure{KL_ERROR_RUNTIME, "memory_alloc (address not aligned to 512 bytes)"};
  }
  Block* block = takeBlock();
  block->ptr = static_cast<char*>(ptr);
  block->size = segment_size;
  block->pool = &pool;
  block->small = size <= kSmallSize;
  *entry = block;
  ++stats_.num_device_alloc;
  increase(stats_.segment, block->small, 1);
  increase(stats_.reserved_bytes, block->small, segment_size);
  if (settings_ != nullptr && segment_size >= settings_().max_split_size) {
    stats_.oversize_segments.increase(1);
  }
  return block;
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

bool CachingAllocatorCore::Device::free(Block* block) {
  Lock lock(mutex_);
  if (!block->allocated) {
    return false;
  }
  block->allocated = false;
  block->free_sequence = freeSequence(block);
  decrease(stats_.allocation, block->small, 1);
  decrease(stats_.allocated_bytes, block->small, block->size);
  if (!block->small && settings_ != nullptr && block->size >= settings_().max_split_size) {
    stats_.oversize_allocations.decrease(1);
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
  decrease(stats_.active, small, 1);
  decrease(stats_.active_bytes, small, block->size);
  decrease(stats_.requested_bytes, small, block->requested);
  for (Block* neighbour : {block->previous, block->next}) {
    const size_t merged = mergeInto(block, neighbour);
    if (merged != 0) {
      decrease(stats_.inactive_split, small, 1);
      decrease(stats_.inactive_split_bytes, small, merged);
    }
  }
  (small ? block->pool->small : block->pool->large).insert(block);
  if (block->isSplit()) {
    increase(stats_.inactive_split, small, 1);
    increase(stats_.inactive_split_bytes, small, block->size);
  }
}

// Returns the bytes that `block` has gained, 0 when the neighbour is in use.
size_t CachingAllocatorCore::Device::mergeInto(Block* block, Block* neighbour) {
  if (neighbour == nullptr || neighbour->allocated || neighbour->pending_events != 0) {
    return 0;
  }
  const size_t gained = neighbour->size;
  (block->small ? block->pool->small : block->pool->large).remove(neighbour);
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
  block->free_sequence = 0;
  block->allocated = false;
  spare_blocks_.push_back(block);
}

} // namespace kunlun
