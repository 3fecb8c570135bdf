// One device's part of the caching allocator; private to the files of this folder.
#pragma once

#include <deque>
#include <map>
#include <mutex>

#include "runtime/allocator/CachingAllocatorCore.h"
#include "runtime/allocator/FreeBins.h"
#include "runtime/allocator/History.h"

namespace kunlun {

// A piece of a segment. Neighbours in the segment are linked, so that free ones can be merged.
struct CachingAllocatorCore::Block : FreeBinNode {
  char* ptr = nullptr;
  size_t requested = 0;
  StreamPool* pool = nullptr;
  Block* previous = nullptr;
  Block* next = nullptr;
  Device* device = nullptr;
  Segment* expandable = nullptr; // the segment, if it can grow
  // The host call that it was allocated in, as the call's sequence limit.
  uint64_t host_call_sequence = kNoSequenceLimit;
  uint64_t freed_at = 0;                                // by the device's clock of allocations
  std::vector<std::pair<int, kl_stream>> other_streams; // from recordStream: device, stream
  uint32_t pending_events = 0;
  // Addresses without memory count as allocated, so that nothing is merged with them; they are not in the address map.
  bool allocated = false;
  bool unmapped = false;
  bool small = false;
  bool uncached = false; // goes back to the driver as soon as it is free

  // A part of a segment that is given back as a whole only.
  bool isSplit() const {
    return (previous != nullptr || next != nullptr) && expandable == nullptr;
  }
  bool isFree() const {
    return !allocated && pending_events == 0;
  }
};

// Memory from the driver in one piece, or addresses that get memory as they are needed.
struct CachingAllocatorCore::Segment {
  char* base = nullptr;
  size_t bytes = 0;
  StreamPool* pool = nullptr;
  bool small = false;
  bool expandable = false;
  bool asleep = false;    // of a pool with can_sleep: addresses that have no memory at present
  size_t granularity = 0; // of mapping
  AllocatorContext context;
};

struct CachingAllocatorCore::StreamPool {
  kl_stream stream = nullptr;
  Pool* owner = nullptr;
  FreeBins small;
  FreeBins large;
  // A block keeps what is left over when that would be less than this.
  size_t least_rest_small = kMinBlockSize;
  size_t least_rest_large = kSmallSize + 1;
  std::vector<Block*> unmapped; // addresses of expandable segments that have no memory

  FreeBins& bins(bool is_small) {
    return is_small ? small : large;
  }
};

// The default pool of a device, or a memory pool of a user.
struct CachingAllocatorCore::Pool {
  // What is kept of a pool that sleeps: pieces of its memory, one after the other in pinned host memory.
  struct Backup {
    void* host = nullptr;
    std::vector<std::pair<char*, size_t>> pieces;
  };

  explicit Pool(Device* d, AllocatorPoolId i = {0, 0}, const AllocatorPoolOptions& o = {})
      : device(d), id(i), options(o) {}
  bool isPrivate() const {
    return id != AllocatorPoolId(0, 0);
  }

  // Falling asleep or waking up takes a while without the lock, in which the segments stay as they are.
  enum class State : uint8_t { Awake, Changing, Asleep };

  Device* const device;
  const AllocatorPoolId id;
  const AllocatorPoolOptions options;
  int use_count = 0;
  int64_t segments = 0;
  AllocatorStatArray reserved_bytes;
  std::vector<std::unique_ptr<StreamPool>> streams;
  StreamPool* last = nullptr;
  State state = State::Awake;
  Backup backup;
};

struct AllocatorRoute {
  CachingAllocatorCore::Pool* pool = nullptr;
  AllocatorRoute* outer = nullptr;
};

class CachingAllocatorCore::Device {
 public:
  Device(
      const kl_runtime_table& runtime,
      AddressMap<Block>& blocks,
      int index,
      SettingsFn settings,
      DivisionsFn divisions,
      ReclaimFn reclaim)
      : runtime_(runtime),
        blocks_(blocks),
        index_(index),
        settings_fn_(settings),
        divisions_(divisions),
        reclaim_fn_(reclaim) {}
  ~Device();

  // `context` is NULL or who allocates or frees, when history is recorded.
  void* malloc(kl_stream stream, size_t bytes, uint64_t sequence_limit, AllocatorContext* context);
  void* mallocUncached(kl_stream stream, size_t bytes, AllocatorContext* context);
  bool free(Block* block, AllocatorContext* context);
  bool recordStream(Block* block, int stream_device, kl_stream stream);
  void emptyCache(AllocatorPoolId pool);

  AllocatorStats stats();
  void resetAccumulatedStats();
  void resetPeakStats();
  void setMemoryFraction(double fraction);
  double memoryFraction();
  std::pair<void*, size_t> baseAllocation(Block* block);
  std::pair<int64_t, int64_t> usage();

  void retainPool(AllocatorPoolId id, const AllocatorPoolOptions& options);
  void releasePool(AllocatorPoolId id);
  int poolUseCount(AllocatorPoolId id);
  std::vector<std::pair<AllocatorPoolId, AllocatorStatArray>> poolReservedBytes();
  bool beginAllocateToPool(AllocatorPoolId id, const AllocatorPoolOptions& options);
  bool endAllocateToPool(AllocatorPoolId id);

  AllocatorSleep putToSleep(AllocatorPoolId id, bool keep, kl_stream stream, uint64_t& bytes);
  AllocatorSleep wakeUp(AllocatorPoolId id, kl_stream stream);
  bool poolSleeps(AllocatorPoolId id);
  bool poolHas(AllocatorPoolId id, const Block* block);
  bool isAsleep(const Block* block);

  void recordHistory(const AllocatorHistoryOptions& options);
  void snapshot(AllocatorSnapshot& out, bool traces, const AllocatorPoolId* pool);
  AllocatorContext blockContext(Block* block);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Request {
    size_t bytes; // asked for
    size_t size;  // of the block, rounded
    uint64_t sequence_limit;
    AllocatorContext* context;
    bool small() const {
      return size <= kSmallSize;
    }
  };
  // A stream that is waited for: all up to `sequence` is done when the event has happened.
  struct Mark {
    int device;
    kl_stream stream;
    kl_event event;
    uint64_t sequence;
  };
  // Which pools are to give memory back.
  struct Selection {
    AllocatorPoolId id{0, 0};
    bool contains(const Pool& pool) const {
      return id == AllocatorPoolId(0, 0) ? !pool.isPrivate() || pool.use_count == 0 : pool.id == id;
    }
  };

  AllocatorSettings settings() const {
    return settings_fn_ == nullptr ? AllocatorSettings() : settings_fn_();
  }
  bool isOversize(bool small, size_t size) const {
    return !small && settings_fn_ != nullptr && size >= settings_fn_().max_split_size;
  }

  // Core: the way of most calls.
  Pool& routedPool();
  StreamPool& poolOf(Pool& pool, kl_stream stream);
  size_t roundSize(size_t bytes) const;
  Block* findFree(StreamPool& pool, size_t size, uint64_t sequence_limit);
  void* handOut(Block* block, const Request& request);
  void carve(Block* block, size_t size);
  void freeBlock(Block* block);
  size_t mergeInto(Block* block, Block* neighbour);
  uint64_t freeSequence(const Block* block) const;
  Block* takeBlock();
  void dropBlock(Block* block);

  // Segments: memory from the driver.
  Block* mallocSlowly(Lock& lock, StreamPool& pool, const Request& request);
  size_t segmentSize(const Request& request) const;
  bool fitsLimit(size_t bytes) const;
  Block* newSegment(StreamPool& pool, const Request& request);
  Block* newPlainSegment(StreamPool& pool, const Request& request, size_t bytes);
  void countSegment(StreamPool& pool, bool small, int64_t bytes, int segments);
  kl_result freeSegment(Block* block);
  Block* borrowFromPools(kl_stream stream, const Request& request);
  [[noreturn]] void outOfMemory(const Request& request, size_t segment_size);

  // Expandable segments.
  Block* growExpandable(StreamPool& pool, const Request& request);
  Block* reserveAddresses(StreamPool& pool, const Request& request);
  Block* mapFront(Block* addresses, size_t bytes, const Request& request);
  void unmapInside(Block* block);
  void releaseAddresses(Block* addresses);

  // Sleep: pools whose memory comes and goes while their addresses stay.
  kl_result mapAddresses(size_t bytes, void** out);
  void backUp(Pool& pool, kl_stream stream);
  void restore(Pool& pool, kl_stream stream);
  void dropBackup(Pool& pool);
  size_t bytesAsleep(const Pool& pool) const;
  bool mapPool(Pool& pool);
  void unmapPool(Pool& pool);
  void setState(Pool& pool, Pool::State state);
  int64_t allocatedAsleep() const;

  // Reclaim: other streams, giving memory back.
  void recordEvents(Block* block);
  void processEvents();
  kl_event takeEvent(int device);
  void giveEvent(int device, kl_event event);
  std::vector<Mark> waitForStreams(Lock& lock, const Selection& selection, AllocatorDriverFailure& failure);
  bool reclaimFromOthers(Lock& lock);
  void reclaim(Lock& lock, const Selection& selection);
  void reclaimWithinHostCall(uint64_t sequence_limit, const Selection& selection);
  void collectGarbage(Lock& lock, size_t segment_size);
  void releaseSegments(StreamPool& pool, uint64_t done_sequence);
  void giveBack(Block* block);
  void retire(Block* block);
  void dropUnusedPools();
  template <typename Function>
  void forEachPool(const Selection& selection, Function&& function);

  // History: called only where history_ is set.
  void note(
      AllocatorAction action,
      const void* address,
      size_t size,
      const StreamPool* pool,
      const AllocatorContext* context = nullptr);

  const kl_runtime_table& runtime_;
  AddressMap<Block>& blocks_;
  const int index_;
  const SettingsFn settings_fn_;
  const DivisionsFn divisions_;
  const ReclaimFn reclaim_fn_;

  // Guards everything below and the blocks of this device. Never held while waiting for a stream: the thread of that
  // stream may be in a host call that allocates.
  std::mutex mutex_;
  Pool default_pool_{this};
  std::map<AllocatorPoolId, std::unique_ptr<Pool>> private_pools_;
  std::map<char*, Segment> segments_;
  std::vector<Block*> spare_blocks_;
  AllocatorStats stats_;
  int64_t clock_base_ = 0; // what resetAccumulatedStats has taken from the count of allocations
  double fraction_ = 1.0;
  uint64_t allowed_ = UINT64_MAX; // bytes that may be reserved
  // NULL unless history is or was recorded.
  std::unique_ptr<History<Block>> history_;

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

template <typename Function>
void CachingAllocatorCore::Device::forEachPool(const Selection& selection, Function&& function) {
  if (selection.contains(default_pool_)) {
    function(default_pool_);
  }
  for (const auto& [id, pool] : private_pools_) {
    if (selection.contains(*pool)) {
      function(*pool);
    }
  }
}

// Adds to the sum and to the pool's own column.
inline void increase(AllocatorStatArray& stat, bool small, size_t amount) {
  stat[0].increase(static_cast<int64_t>(amount));
  stat[small ? 1 : 2].increase(static_cast<int64_t>(amount));
}

inline void decrease(AllocatorStatArray& stat, bool small, size_t amount) {
  stat[0].decrease(static_cast<int64_t>(amount));
  stat[small ? 1 : 2].decrease(static_cast<int64_t>(amount));
}

constexpr size_t roundUp(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

} // namespace kunlun
