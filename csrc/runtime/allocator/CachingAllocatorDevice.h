// One device's part of the caching allocator; private to CachingAllocatorCore.
#pragma once

#include "runtime/allocator/CachingAllocatorCore.h"

namespace kunlun {

// A piece of a segment. Neighbours in the segment are linked, so that free ones can be merged.
struct CachingAllocatorCore::Block : FreeBinNode {
  char* ptr = nullptr;
  size_t requested = 0;
  StreamPool* pool = nullptr;
  Block* previous = nullptr;
  Block* next = nullptr;
  Device* device = nullptr;
  // The host call that it was allocated in, as the call's sequence limit.
  uint64_t host_call_sequence = kNoSequenceLimit;
  std::vector<std::pair<int, kl_stream>> other_streams; // from recordStream: device, stream
  uint32_t pending_events = 0;
  bool allocated = false;
  bool small = false;

  bool isSplit() const {
    return previous != nullptr || next != nullptr;
  }
};

struct CachingAllocatorCore::StreamPool {
  kl_stream stream = nullptr;
  FreeBins small;
  FreeBins large;
};

class CachingAllocatorCore::Device {
 public:
  Device(
      const kl_runtime_table& runtime,
      AddressMap<Block>& blocks,
      int index,
      SettingsFn settings,
      DivisionsFn divisions)
      : runtime_(runtime), blocks_(blocks), index_(index), settings_(settings), divisions_(divisions) {}
  ~Device();

  void* malloc(kl_stream stream, size_t bytes, uint64_t sequence_limit);
  bool free(Block* block);
  bool recordStream(Block* block, int stream_device, kl_stream stream);
  void emptyCache();

  AllocatorStats stats();
  void resetAccumulatedStats();
  void resetPeakStats();
  void setMemoryFraction(double fraction);
  double memoryFraction();
  std::pair<void*, size_t> baseAllocation(Block* block);
  std::pair<int64_t, int64_t> usage();

 private:
  using Lock = std::unique_lock<std::mutex>;

  StreamPool& poolOf(kl_stream stream);
  size_t roundSize(size_t bytes) const;
  Block* findFree(StreamPool& pool, size_t size, uint64_t sequence_limit);
  Block* newSegment(StreamPool& pool, size_t size, size_t segment_size);
  Block* mallocSlowly(Lock& lock, StreamPool& pool, size_t size, size_t bytes, uint64_t sequence_limit);
  void carve(Block* block, size_t size);
  void freeBlock(Block* block);
  size_t mergeInto(Block* block, Block* neighbour);
  uint64_t freeSequence(const Block* block) const;

  Block* takeBlock();
  void dropBlock(Block* block);

  void recordEvents(Block* block);
  void processEvents();
  kl_event takeEvent(int device);
  void giveEvent(int device, kl_event event);

  void reclaim(Lock& lock);
  void reclaimWithinHostCall(uint64_t sequence_limit);
  void releaseSegments(StreamPool& pool, uint64_t done_sequence);
  [[noreturn]] void outOfMemory(size_t bytes, size_t segment_size);

  const kl_runtime_table& runtime_;
  AddressMap<Block>& blocks_;
  const int index_;
  const SettingsFn settings_;
  const DivisionsFn divisions_;

  // Guards everything below and the blocks of this device. Never held while waiting for a stream: the thread of that
  // stream may be in a host call that allocates.
  std::mutex mutex_;
  std::vector<std::unique_ptr<StreamPool>> pools_;
  StreamPool* last_pool_ = nullptr;
  std::vector<Block*> spare_blocks_;
  AllocatorStats stats_;
  double fraction_ = 1.0;
  uint64_t allowed_ = UINT64_MAX; // bytes that may be reserved

  struct PendingEvent {
    kl_event event;
    Block* block;
  };
  struct PendingStream {
    int device;
    kl_stream stream;
    std::deque<PendingEvent> events; // in stream order
  };
  std::vector<PendingStream> pending_;
  size_t pending_count_ = 0;
  std::vector<std::vector<kl_event>> spare_events_; // by device
};

} // namespace kunlun
