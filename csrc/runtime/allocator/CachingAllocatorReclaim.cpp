// The caching allocator's slow side: events of other streams, giving memory back.
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
    retire(block);
  }
}

// A block that nobody uses any more.
void CachingAllocatorCore::Device::retire(Block* block) {
  const bool uncached = block->uncached;
  freeBlock(block);
  // Where the driver refuses, because the device is faulty, the block stays in the cache; emptyCache will report it.
  if (uncached && freeSegment(block) != KL_SUCCESS) {
    block->uncached = false;
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
        retire(block);
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

// Waits, without the lock, for the work that the streams of the selected pools and those of recordStream have now. What
// went wrong is left in `failure`.
std::vector<CachingAllocatorCore::Device::Mark>
CachingAllocatorCore::Device::waitForStreams(Lock& lock, const Selection& selection, AllocatorDriverFailure& failure) {
  std::vector<Mark> marks;
  auto note_failure = [&](kl_result result, const char* name) {
    if (result != KL_SUCCESS && failure.result == KL_SUCCESS) {
      failure = {result, name};
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
      note_failure(KL_ERROR_RUNTIME, "event_create");
      return;
    }
    if (note_failure(runtime_.stream_sequence(stream, &mark.sequence), "stream_sequence") &&
        note_failure(runtime_.event_record(mark.event, stream), "event_record")) {
      marks.push_back(mark);
    } else {
      giveEvent(device, mark.event);
    }
  };
  ++stats_.num_sync_all_streams;
  forEachPool(selection, [&](Pool& pool) {
    for (const auto& streams : pool.streams) {
      // One that somebody else has made may have been destroyed, after all of its memory was given back.
      int32_t device = -1;
      if (runtime_.stream_device(streams->stream, &device) != KL_ERROR_VALUE) {
        add(index_, streams->stream);
      }
    }
  });
  for (const auto& queue : pending_) {
    if (!queue.events.empty()) {
      add(queue.device, queue.stream);
    }
  }

  lock.unlock();
  for (const Mark& mark : marks) {
    note_failure(runtime_.event_synchronize(mark.event), "event_synchronize");
  }
  lock.lock();

  processEvents();
  for (const Mark& mark : marks) {
    giveEvent(mark.device, mark.event);
  }
  // A wait that was given up says nothing about the stream.
  std::erase_if(marks, [this](const Mark& mark) { return runtime_.event_query(mark.event) == KL_NOT_READY; });
  return marks;
}

// What was kept for others, such as processes that have let go of it. It comes back through free().
bool CachingAllocatorCore::Device::reclaimFromOthers(Lock& lock) {
  if (reclaim_fn_ == nullptr) {
    return false;
  }
  lock.unlock();
  const bool freed = reclaim_fn_();
  lock.lock();
  return freed;
}

// Gives everything back that is free and that no unfinished work may use; what is freed during the wait stays.
void CachingAllocatorCore::Device::reclaim(Lock& lock, const Selection& selection) {
  AllocatorDriverFailure failure{KL_SUCCESS, nullptr};
  const auto marks = waitForStreams(lock, selection, failure);
  forEachPool(selection, [&](Pool& pool) {
    for (const auto& streams : pool.streams) {
      for (const Mark& mark : marks) {
        if (mark.stream == streams->stream) {
          releaseSegments(*streams, mark.sequence);
        }
      }
    }
  });
  dropUnusedPools();
  if (failure.result != KL_SUCCESS) {
    // The failure of some work that was waited for: reported here, as at any other wait.
    throw failure;
  }
}

// On the chip's thread nothing can be waited for, so only what is known to be done is given back.
void CachingAllocatorCore::Device::reclaimWithinHostCall(uint64_t sequence_limit, const Selection& selection) {
  processEvents();
  const kl_stream stream = allocator_host_call.stream;
  const uint64_t done = std::min(sequence_limit, allocator_host_call.sequence);
  if (done == kNoSequenceLimit) {
    return;
  }
  forEachPool(selection, [&](Pool& pool) {
    for (const auto& streams : pool.streams) {
      if (streams->stream == stream) {
        releaseSegments(*streams, done);
      }
    }
  });
}

// What a free block can spare: its segment, if it is the whole of it, or the memory inside.
void CachingAllocatorCore::Device::giveBack(Block* block) {
  if (block->expandable != nullptr) {
    unmapInside(block);
  } else if (!block->isSplit()) {
    const kl_result result = freeSegment(block);
    if (result != KL_SUCCESS) {
      throw AllocatorDriverFailure{result, "memory_free"};
    }
  }
}

void CachingAllocatorCore::Device::releaseSegments(StreamPool& pool, uint64_t done_sequence) {
  if (pool.owner->state == Pool::State::Changing) {
    return;
  }
  for (FreeBins* bins : {&pool.small, &pool.large}) {
    // Unmapping puts what is left of a block into other bins, where it may be met again, with nothing left to do.
    bins->forEach([&](FreeBinNode* node) {
      auto* block = static_cast<Block*>(node);
      if (block->free_sequence > done_sequence) {
        return;
      }
      giveBack(block);
    });
  }
}

// Memory pools that have no user and no memory left.
void CachingAllocatorCore::Device::dropUnusedPools() {
  std::erase_if(private_pools_, [this](const auto& entry) {
    Pool& pool = *entry.second;
    const bool unused = pool.use_count == 0 && pool.segments == 0;
    if (unused) {
      setState(pool, Pool::State::Awake); // it is not counted among the sleeping ones any more
    }
    return unused;
  });
}

// PYTORCH_ALLOC_CONF=garbage_collection_threshold: before the device is asked for memory beyond that share of what is
// allowed, the large blocks that have been free for longest are given back, until the share is kept or only blocks are
// left that are younger than the average.
void CachingAllocatorCore::Device::collectGarbage(Lock& lock, size_t segment_size) {
  const double threshold = settings().garbage_collection_threshold;
  if (threshold <= 0) {
    return;
  }
  uint64_t allowed = allowed_;
  if (allowed == UINT64_MAX) {
    uint64_t free_bytes = 0;
    const kl_result result = runtime_.memory_info(index_, &free_bytes, &allowed);
    if (result != KL_SUCCESS) {
      throw AllocatorDriverFailure{result, "memory_info"};
    }
  }
  const auto limit = static_cast<uint64_t>(threshold * static_cast<double>(allowed));
  const auto wanted = [&] { return static_cast<uint64_t>(stats_.reserved_bytes[0].current) + segment_size; };
  if (wanted() <= limit) {
    return;
  }
  AllocatorDriverFailure failure{KL_SUCCESS, nullptr};
  const auto marks = waitForStreams(lock, {}, failure);
  const auto now = static_cast<uint64_t>(stats_.allocation[0].allocated + clock_base_);
  std::vector<Block*> candidates;
  uint64_t total_age = 0;
  forEachPool({}, [&](Pool& pool) {
    for (const auto& streams : pool.streams) {
      const auto mark =
          std::find_if(marks.begin(), marks.end(), [&](const Mark& m) { return m.stream == streams->stream; });
      if (mark == marks.end()) {
        continue;
      }
      streams->large.forEach([&](FreeBinNode* node) {
        auto* block = static_cast<Block*>(node);
        if (block->free_sequence <= mark->sequence && !block->isSplit()) {
          candidates.push_back(block);
          total_age += now - block->freed_at;
        }
      });
    }
  });
  std::sort(candidates.begin(), candidates.end(), [](const Block* a, const Block* b) {
    return a->freed_at != b->freed_at ? a->freed_at < b->freed_at : a->ptr < b->ptr;
  });
  const size_t count = candidates.size();
  for (Block* block : candidates) {
    if (wanted() <= limit || (now - block->freed_at) * count < total_age) {
      break;
    }
    giveBack(block);
  }
  if (failure.result != KL_SUCCESS) {
    throw failure;
  }
}

void CachingAllocatorCore::Device::emptyCache(AllocatorPoolId pool) {
  Lock lock(mutex_);
  const Selection selection{pool};
  if (allocator_host_call.stream != nullptr) {
    reclaimWithinHostCall(allocator_host_call.sequence, selection);
  } else if (!segments_.empty()) {
    reclaim(lock, selection);
  } else {
    dropUnusedPools();
  }
}

} // namespace kunlun
