// The caching allocator's slow side: events of other streams, giving memory back, statistics.
#include <algorithm>

#include "runtime/allocator/CachingAllocatorDevice.h"

namespace kunlun {

using Block = CachingAllocatorCore::Block;

// The blocks and segments are left to the process: the allocator is never destroyed while the driver is in use, and a
// test that does destroy one has freed its memory before.
CachingAllocatorCore::Device::~Device() {
  for (Block* block : spare_blocks_) {
    delete block;
  }
  for (const auto& events : spare_events_) {
    for (const kl_event event : events) {
      runtime_.event_destroy(event);
    }
  }
}

// ---- other streams ----------------------------------------------------------

bool CachingAllocatorCore::Device::recordStream(Block* block, int stream_device, kl_stream stream) {
  Lock lock(mutex_);
  if (!block->allocated) {
    return false;
  }
  const std::pair<int, kl_stream> use(stream_device, stream);
  auto& uses = block->other_streams;
  if (block->pool->stream != stream && std::find(uses.begin(), uses.end(), use) == uses.end()) {
    uses.push_back(use);
  }
  return true;
}

// Called by free(), which cannot throw: a stream that refuses an event is faulty, its work has been dropped, and so it
// does not keep the block.
void CachingAllocatorCore::Device::recordEvents(Block* block) {
  for (const auto& [device, stream] : block->other_streams) {
    kl_event event = takeEvent(device);
    if (event == nullptr) {
      continue;
    }
    if (runtime_.event_record(event, stream) != KL_SUCCESS) {
      giveEvent(device, event);
      continue;
    }
    auto queue = std::find_if(
        pending_.begin(), pending_.end(), [stream = stream](const auto& entry) { return entry.stream == stream; });
    if (queue == pending_.end()) {
      pending_.push_back({device, stream, {}});
      queue = pending_.end() - 1;
    }
    queue->events.push_back({event, block});
    ++block->pending_events;
    ++pending_count_;
  }
  block->other_streams.clear();
  if (block->pending_events == 0) {
    freeBlock(block);
  }
}

void CachingAllocatorCore::Device::processEvents() {
  for (auto& queue : pending_) {
    // In stream order: behind an event that is pending, all are.
    while (!queue.events.empty()) {
      const auto [event, block] = queue.events.front();
      if (runtime_.event_query(event) == KL_NOT_READY) {
        break;
      }
      queue.events.pop_front();
      --pending_count_;
      giveEvent(queue.device, event);
      if (--block->pending_events == 0) {
        freeBlock(block);
      }
    }
  }
}

kl_event CachingAllocatorCore::Device::takeEvent(int device) {
  if (static_cast<size_t>(device) < spare_events_.size() && !spare_events_[device].empty()) {
    kl_event event = spare_events_[device].back();
    spare_events_[device].pop_back();
    return event;
  }
  kl_event event = nullptr;
  return runtime_.event_create(device, 0, &event) == KL_SUCCESS ? event : nullptr;
}

void CachingAllocatorCore::Device::giveEvent(int device, kl_event event) {
  if (static_cast<size_t>(device) >= spare_events_.size()) {
    spare_events_.resize(device + 1);
  }
  spare_events_[device].push_back(event);
}

// ---- giving memory back -----------------------------------------------------

// Gives every segment back that is free as a whole and that no unfinished work may use. Waits, without the lock, for
// the work that the streams have now; segments that are freed meanwhile stay.
void CachingAllocatorCore::Device::reclaim(Lock& lock) {
  struct Mark {
    int device;
    kl_stream stream;
    kl_event event;
    uint64_t sequence;
  };
  std::vector<Mark> marks;
  kl_result failure = KL_SUCCESS;
  const char* call = nullptr;
  auto note = [&](kl_result result, const char* name) {
    if (result != KL_SUCCESS && failure == KL_SUCCESS) {
      failure = result;
      call = name;
    }
    return result == KL_SUCCESS;
  };
  auto add = [&](int device, kl_stream stream) {
    for (const Mark& mark : marks) {
      if (mark.stream == stream) {
        return;
      }
    }
    Mark mark{device, stream, takeEvent(device), 0};
    if (mark.event == nullptr) {
      note(KL_ERROR_RUNTIME, "event_create");
      return;
    }
    if (note(runtime_.stream_sequence(stream, &mark.sequence), "stream_sequence") &&
        note(runtime_.event_record(mark.event, stream), "event_record")) {
      marks.push_back(mark);
    } else {
      giveEvent(device, mark.event);
    }
  };
  ++stats_.num_sync_all_streams;
  for (const auto& pool : pools_) {
    add(index_, pool->stream);
  }
  for (const auto& queue : pending_) {
    if (!queue.events.empty()) {
      add(queue.device, queue.stream);
    }
  }

  lock.unlock();
  for (const Mark& mark : marks) {
    note(runtime_.event_synchronize(mark.event), "event_synchronize");
  }
  lock.lock();

  processEvents();
  for (const Mark& mark : marks) {
    giveEvent(mark.device, mark.event);
  }
  for (const Mark& mark : marks) {
    for (const auto& pool : pools_) {
      if (pool->stream == mark.stream) {
        releaseSegments(*pool, mark.sequence);
      }
    }
  }
  if (failure != KL_SUCCESS) {
    // The failure of some work that was waited for: reported here, as at any other wait.
    throw AllocatorDriverFailure{failure, call};
  }
}

// On the chip's thread nothing can be waited for, so only what is known to be done is given back.
void CachingAllocatorCore::Device::reclaimWithinHostCall(uint64_t sequence_limit) {
  processEvents();
  const kl_stream stream = allocator_host_call.stream;
  const uint64_t done = std::min(sequence_limit, allocator_host_call.sequence);
  for (const auto& pool : pools_) {
    if (pool->stream == stream && done != kNoSequenceLimit) {
      releaseSegments(*pool, done);
    }
  }
}

void CachingAllocatorCore::Device::releaseSegments(StreamPool& pool, uint64_t done_sequence) {
  for (FreeBins* bins : {&pool.small, &pool.large}) {
    bins->forEach([&](FreeBinNode* node) {
      auto* block = static_cast<Block*>(node);
      if (block->isSplit() || block->free_sequence > done_sequence) {
        return;
      }
      const kl_result result = runtime_.memory_free(index_, block->ptr);
      if (result != KL_SUCCESS) {
        throw AllocatorDriverFailure{result, "memory_free"};
      }
      bins->remove(block);
      *blocks_.at(block->ptr) = nullptr;
      ++stats_.num_device_free;
      for (const size_t column : {size_t(0), size_t(block->small ? 1 : 2)}) {
        stats_.segment[column].decrease(1);
        stats_.reserved_bytes[column].decrease(static_cast<int64_t>(block->size));
      }
      if (settings_ != nullptr && block->size >= settings_().max_split_size) {
        stats_.oversize_segments.decrease(1);
      }
      dropBlock(block);
    });
  }
}

void CachingAllocatorCore::Device::emptyCache() {
  Lock lock(mutex_);
  if (allocator_host_call.stream != nullptr) {
    reclaimWithinHostCall(allocator_host_call.sequence);
  } else if (stats_.segment[0].current != 0) {
    reclaim(lock);
  }
}

void CachingAllocatorCore::Device::outOfMemory(size_t bytes, size_t segment_size) {
  ++stats_.num_ooms;
  AllocatorOutOfMemory report{};
  report.device = index_;
  report.requested = bytes;
  report.segment = segment_size;
  report.allowed = allowed_;
  report.allocated = stats_.allocated_bytes[0].current;
  report.reserved = stats_.reserved_bytes[0].current;
  report.limited = static_cast<uint64_t>(report.reserved) + segment_size > allowed_;
  const kl_result result = runtime_.memory_info(index_, &report.free_bytes, &report.total_bytes);
  if (result != KL_SUCCESS) {
    throw AllocatorDriverFailure{result, "memory_info"};
  }
  throw report;
}

// ---- statistics and limits --------------------------------------------------

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
  forEachStat(stats_, [](AllocatorStat& stat) { stat.allocated = stat.freed = 0; });
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
  stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = 0;
  stats_.num_device_free = 0;
}

void CachingAllocatorCore::Device::resetPeakStats() {
  Lock lock(mutex_);
  forEachStat(stats_, [](AllocatorStat& stat) { stat.peak = stat.current; });
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
