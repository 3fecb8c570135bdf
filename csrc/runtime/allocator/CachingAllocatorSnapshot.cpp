// The caching allocator's memory of itself: recorded events and snapshots.
#include <chrono>

#include "runtime/allocator/CachingAllocatorDevice.h"

namespace kunlun {

using Block = CachingAllocatorCore::Block;

namespace {

int64_t microsecondsNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

std::string& threadMetadata() {
  thread_local std::string text;
  return text;
}

} // namespace

void CachingAllocatorCore::recordHistory(const AllocatorHistoryOptions& options) {
  gather_.store(options.gather, std::memory_order_relaxed);
  for (auto& device : devices_) {
    device->recordHistory(options);
  }
  history_level_.store(options.enabled ? options.context : -1, std::memory_order_relaxed);
}

// Outside the lock: gathering a Python stack takes the GIL, under which others wait for the lock.
AllocatorContext CachingAllocatorCore::gather(int level) const {
  const AllocatorContextFn function = gather_.load(std::memory_order_relaxed);
  if (function == nullptr || history_level_.load(std::memory_order_relaxed) < level) {
    return nullptr;
  }
  return allocator_borrowed_context != nullptr ? *allocator_borrowed_context : function();
}

void CachingAllocatorCore::setMetadata(std::string text) {
  threadMetadata() = std::move(text);
}

const std::string& CachingAllocatorCore::metadata() {
  return threadMetadata();
}

AllocatorSnapshot CachingAllocatorCore::snapshot(bool traces, const AllocatorPoolId* pool) {
  AllocatorSnapshot result;
  for (auto& device : devices_) {
    device->snapshot(result, traces, pool);
  }
  return result;
}

AllocatorContext CachingAllocatorCore::blockContext(void* ptr) {
  Block* block = blocks_.find(ptr);
  return block == nullptr ? nullptr : block->device->blockContext(block);
}

// ---- one device -------------------------------------------------------------

void CachingAllocatorCore::Device::recordHistory(const AllocatorHistoryOptions& options) {
  Lock lock(mutex_);
  if (history_ == nullptr) {
    if (!options.enabled) {
      return;
    }
    history_ = std::make_unique<History<Block>>();
  }
  history_->configure(options);
}

void CachingAllocatorCore::Device::note(
    AllocatorAction action,
    const void* address,
    size_t size,
    const StreamPool* pool,
    const AllocatorContext* context) {
  if (!history_->records(action)) {
    return;
  }
  const bool keeps_context = context != nullptr && history_->options().context >= AllocatorHistoryOptions::Alloc;
  history_->add(
      {.action = action,
       .address = reinterpret_cast<uintptr_t>(address),
       .size = size,
       .stream = pool == nullptr ? nullptr : pool->stream,
       .pool = pool == nullptr ? AllocatorPoolId() : pool->owner->id,
       .time_us = microsecondsNow(),
       .context = keeps_context ? *context : nullptr,
       .metadata = threadMetadata()});
}

void CachingAllocatorCore::Device::snapshot(AllocatorSnapshot& out, bool traces, const AllocatorPoolId* only) {
  Lock lock(mutex_);
  for (const auto& [base, segment] : segments_) {
    if (segment.asleep || (only != nullptr && segment.pool->owner->id != *only)) {
      continue;
    }
    AllocatorSegmentInfo info{};
    info.device = index_;
    info.address = reinterpret_cast<uintptr_t>(base);
    info.stream = segment.pool->stream;
    info.large = !segment.small;
    info.expandable = segment.expandable;
    info.pool = segment.pool->owner->id;
    info.context = segment.context;
    const Block* block = blocks_.find(base);
    if (block == nullptr) { // an expandable segment that begins with addresses without memory
      for (const Block* addresses : segment.pool->unmapped) {
        if (addresses->ptr == base) {
          block = addresses;
        }
      }
    }
    for (; block != nullptr; block = block->next) {
      if (block->unmapped) {
        continue;
      }
      const bool active = block->allocated || block->pending_events != 0;
      info.total_size += block->size;
      info.allocated_size += block->allocated ? block->size : 0;
      info.active_size += active ? block->size : 0;
      info.requested_size += active ? block->requested : 0;
      info.blocks.push_back(
          {.address = reinterpret_cast<uintptr_t>(block->ptr),
           .size = block->size,
           .requested = active ? block->requested : 0,
           .allocated = block->allocated,
           .active = active,
           .context = history_ == nullptr ? nullptr : history_->owner(block)});
    }
    out.segments.push_back(std::move(info));
  }
  for (const auto& [id, pool] : private_pools_) {
    out.use_count.emplace_back(id, pool->use_count);
  }
  out.traces.emplace_back();
  if (traces && history_ != nullptr) {
    note(AllocatorAction::Snapshot, nullptr, static_cast<size_t>(stats_.reserved_bytes[0].current), nullptr);
    out.traces.back() = history_->entries();
  }
}

AllocatorContext CachingAllocatorCore::Device::blockContext(Block* block) {
  Lock lock(mutex_);
  return history_ == nullptr || !block->allocated ? nullptr : history_->owner(block);
}

} // namespace kunlun
