// Expandable segments: ranges of addresses that get memory where it is needed and lose it where it is not.
#include <algorithm>

#include "runtime/allocator/CachingAllocatorDevice.h"

namespace kunlun {

using Block = CachingAllocatorCore::Block;

// Gives memory to the addresses behind a free block, or to fresh ones, so that a block of the size appears. It is in no
// bin. NULL when neither the driver nor the memory fraction has room.
Block* CachingAllocatorCore::Device::growExpandable(StreamPool& pool, const Request& request) {
  Block* best = nullptr;
  size_t best_bytes = 0;
  for (Block* addresses : pool.unmapped) {
    if (addresses->small != request.small()) {
      continue;
    }
    const auto free_in = [&](const Block* neighbour) {
      const bool joins =
          neighbour != nullptr && neighbour->isFree() && neighbour->free_sequence <= request.sequence_limit;
      return joins ? neighbour->size : 0;
    };
    const size_t have = free_in(addresses->previous);
    // A free block in front is smaller than the request, or it would have been taken; if not, as with the split limit,
    // one unit is mapped all the same.
    const size_t needed = have < request.size ? request.size - have : 1;
    size_t bytes = roundUp(needed, addresses->expandable->granularity);
    if (bytes > addresses->size && needed <= addresses->size + free_in(addresses->next)) {
      bytes = addresses->size; // with memory, they join two free blocks
    }
    if (bytes <= addresses->size && (best == nullptr || bytes < best_bytes)) {
      best = addresses;
      best_bytes = bytes;
    }
  }
  if (best == nullptr) {
    best = reserveAddresses(pool, request);
    if (best == nullptr) {
      // No addresses are left, which is not the same as no memory.
      return newPlainSegment(pool, request, segmentSize(request));
    }
    best_bytes = roundUp(request.size, best->expandable->granularity);
  }
  Block* block = fitsLimit(best_bytes) ? mapFront(best, best_bytes, request) : nullptr;
  if (block == nullptr && best->size == best->expandable->bytes) {
    releaseAddresses(best);
  }
  return block;
}

// As many addresses as the device has memory, so that a segment of large blocks hardly ever has to end; small blocks
// seldom need that many. Fewer when addresses are scarce.
Block* CachingAllocatorCore::Device::reserveAddresses(StreamPool& pool, const Request& request) {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  kl_result result = runtime_.memory_info(index_, &free_bytes, &total_bytes);
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, "memory_info"};
  }
  void* base = nullptr;
  uint64_t granularity = 0;
  const uint64_t wanted = request.small() ? total_bytes / 8 : total_bytes;
  uint64_t bytes = std::max<uint64_t>(roundUp(wanted, kRoundLarge), roundUp(request.size, kRoundLarge));
  for (;; bytes = roundUp(bytes / 2, kRoundLarge)) {
    result = runtime_.address_reserve(index_, bytes, &granularity, &base);
    if (result != KL_ERROR_OUT_OF_MEMORY) {
      break;
    }
    if (bytes / 2 < request.size || bytes <= kRoundLarge) {
      return nullptr;
    }
  }
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, "address_reserve"};
  }
  if (granularity == 0 || granularity % kMinBlockSize != 0 || bytes % granularity != 0 ||
      reinterpret_cast<uintptr_t>(base) % granularity != 0 || blocks_.at(base) == nullptr) {
    runtime_.address_release(index_, base);
    throw AllocatorDriverFailure{KL_ERROR_RUNTIME, "address_reserve (granularity or alignment that cannot be used)"};
  }
  Segment& segment = segments_[static_cast<char*>(base)];
  segment.base = static_cast<char*>(base);
  segment.bytes = bytes;
  segment.pool = &pool;
  segment.small = request.small();
  segment.expandable = true;
  segment.granularity = granularity;
  segment.context = request.context != nullptr ? *request.context : nullptr;
  Block* addresses = takeBlock();
  addresses->ptr = segment.base;
  addresses->size = bytes;
  addresses->pool = &pool;
  addresses->small = segment.small;
  addresses->expandable = &segment;
  addresses->allocated = addresses->unmapped = true;
  pool.unmapped.push_back(addresses);
  countSegment(pool, segment.small, 0, 1);
  return addresses;
}

// Maps the first `bytes` of `addresses` and joins them with the free block in front. NULL when there is no memory.
Block* CachingAllocatorCore::Device::mapFront(Block* addresses, size_t bytes, const Request& request) {
  const kl_result result = runtime_.memory_map(index_, addresses->ptr, bytes);
  if (result == KL_ERROR_OUT_OF_MEMORY) {
    return nullptr;
  }
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, "memory_map"};
  }
  StreamPool& pool = *addresses->pool;
  Block* block = takeBlock();
  block->ptr = addresses->ptr;
  block->size = bytes;
  block->pool = &pool;
  block->small = addresses->small;
  block->expandable = addresses->expandable;
  block->previous = addresses->previous;
  if (block->previous != nullptr) {
    block->previous->next = block;
  }
  *blocks_.at(block->ptr) = block;
  if (bytes == addresses->size) {
    block->next = addresses->next;
    std::erase(pool.unmapped, addresses);
    dropBlock(addresses);
  } else {
    addresses->ptr += bytes;
    addresses->size -= bytes;
    block->next = addresses;
  }
  if (block->next != nullptr) {
    block->next->previous = block;
  }
  ++stats_.num_device_alloc;
  countSegment(pool, block->small, static_cast<int64_t>(bytes), 0);
  if (history_ != nullptr) {
    note(AllocatorAction::SegmentMap, block->ptr, bytes, &pool, request.context);
  }
  for (Block* neighbour : {block->previous, block->next}) {
    if (neighbour != nullptr && neighbour->isFree() && neighbour->free_sequence <= request.sequence_limit) {
      mergeInto(block, neighbour);
    }
  }
  return block;
}

// Takes the memory away from the whole units inside a free block. What is left at its ends stays free.
void CachingAllocatorCore::Device::unmapInside(Block* block) {
  const size_t unit = block->expandable->granularity;
  const auto start = reinterpret_cast<uintptr_t>(block->ptr);
  const size_t head = roundUp(start, unit) - start;
  if (head >= block->size) {
    return;
  }
  const size_t bytes = (block->size - head) / unit * unit;
  if (bytes == 0) {
    return;
  }
  const kl_result result = runtime_.memory_unmap(index_, block->ptr + head, bytes);
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, "memory_unmap"};
  }
  StreamPool& pool = *block->pool;
  FreeBins& bins = pool.bins(block->small);
  bins.remove(block);
  const size_t tail = block->size - head - bytes;
  ++stats_.num_device_free;
  countSegment(pool, block->small, -static_cast<int64_t>(bytes), 0);
  if (history_ != nullptr) {
    note(AllocatorAction::SegmentUnmap, block->ptr + head, bytes, &pool);
  }
  if (tail != 0) {
    Block* rest = takeBlock();
    rest->ptr = block->ptr + head + bytes;
    rest->size = tail;
    rest->pool = &pool;
    rest->small = block->small;
    rest->expandable = block->expandable;
    rest->free_sequence = block->free_sequence;
    rest->freed_at = block->freed_at;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr) {
      rest->next->previous = rest;
    }
    block->next = rest;
    *blocks_.at(rest->ptr) = rest;
    bins.insert(rest);
  }
  Block* addresses = block;
  if (head != 0) {
    addresses = takeBlock();
    addresses->ptr = block->ptr + head;
    addresses->pool = &pool;
    addresses->small = block->small;
    addresses->expandable = block->expandable;
    addresses->previous = block;
    addresses->next = block->next;
    if (addresses->next != nullptr) {
      addresses->next->previous = addresses;
    }
    block->next = addresses;
    block->size = head;
    bins.insert(block);
  } else {
    *blocks_.at(block->ptr) = nullptr;
  }
  addresses->size = bytes;
  addresses->free_sequence = 0;
  addresses->allocated = addresses->unmapped = true;
  pool.unmapped.push_back(addresses);
  for (Block* neighbour : {addresses->previous, addresses->next}) {
    if (neighbour == nullptr || !neighbour->unmapped) {
      continue;
    }
    if (neighbour == addresses->previous) {
      addresses->ptr = neighbour->ptr;
      addresses->previous = neighbour->previous;
      if (addresses->previous != nullptr) {
        addresses->previous->next = addresses;
      }
    } else {
      addresses->next = neighbour->next;
      if (addresses->next != nullptr) {
        addresses->next->previous = addresses;
      }
    }
    addresses->size += neighbour->size;
    std::erase(pool.unmapped, neighbour);
    dropBlock(neighbour);
  }
  if (addresses->size == addresses->expandable->bytes) {
    releaseAddresses(addresses);
  }
}

// Gives a segment back that has no memory any more.
void CachingAllocatorCore::Device::releaseAddresses(Block* addresses) {
  StreamPool& pool = *addresses->pool;
  const kl_result result = runtime_.address_release(index_, addresses->ptr);
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, "address_release"};
  }
  countSegment(pool, addresses->small, 0, -1);
  std::erase(pool.unmapped, addresses);
  segments_.erase(addresses->ptr);
  dropBlock(addresses);
}

} // namespace kunlun
