// The caching allocator itself, without torch: blocks, pools, statistics, over the driver's memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/allocator/AddressMap.h"
#include "runtime/allocator/AllocatorTypes.h"
#include "runtime/chip/chip.h"

namespace kunlun {

// The host call that the calling thread is executing for a stream, see CachingAllocator::HostCallScope.
struct AllocatorHostCall {
  kl_stream stream = nullptr;
  uint64_t sequence = kNoSequenceLimit;
};
extern constinit thread_local AllocatorHostCall allocator_host_call;

// Pools of all cores that are not awake: while it is 0, nobody needs to ask whether a block sleeps.
extern constinit std::atomic<int> allocator_sleeping_pools;

// The memory pools that the calling thread allocates from, innermost first; see beginAllocateToPool. A thread that
// works on behalf of another one borrows its list.
struct AllocatorRoute;
extern constinit thread_local AllocatorRoute* allocator_route;

// Who the calling thread works for, if not for itself: recorded in its place.
extern constinit thread_local const AllocatorContext* allocator_borrowed_context;

// Thread-safe. Blocks belong to one stream each and are reused in its order without waiting: memory may be handed out
// again while earlier work on the stream still uses it, because the work of the next owner comes after.
class CachingAllocatorCore {
 public:
  using SettingsFn = AllocatorSettings (*)();
  // Into how many steps a power of two is cut when a size is rounded up; 0 or 1: multiples of kMinBlockSize only.
  using DivisionsFn = size_t (*)(size_t);
  // Asked before the cache is emptied for want of memory, without a lock and by threads that may wait: whether blocks
  // that were kept for others could be freed. They have been, when it returns true.
  using ReclaimFn = bool (*)();

  CachingAllocatorCore(
      const kl_runtime_table& runtime,
      int device_count,
      SettingsFn settings = nullptr,
      DivisionsFn divisions = nullptr,
      ReclaimFn reclaim = nullptr);
  ~CachingAllocatorCore();
  CachingAllocatorCore(const CachingAllocatorCore&) = delete;
  CachingAllocatorCore& operator=(const CachingAllocatorCore&) = delete;

  // Memory for work that will be enqueued on `stream`; never NULL. A thread of the chip that executes a host call
  // cannot rely on the stream's order, since work that was enqueued after the call has not run yet. It passes the
  // number of the newest item at the time when the call was enqueued: blocks that a newer item may use are left alone.
  void* malloc(int device, kl_stream stream, size_t bytes, uint64_t sequence_limit = kNoSequenceLimit);
  // Memory of its own from the driver, which goes back there once it is freed and no work uses it any more.
  void* mallocUncached(int device, kl_stream stream, size_t bytes);
  // False when the pointer is not a block in use.
  bool free(void* ptr) noexcept;
  // The block must also outlive the work that `stream` (of `stream_device`) has when the block is freed.
  bool recordStream(void* ptr, int stream_device, kl_stream stream);

  // Gives back what is unused: of the default pool and of released memory pools, or of one memory pool.
  void emptyCache(AllocatorPoolId pool = {0, 0});
  AllocatorStats stats(int device);
  void resetAccumulatedStats(int device);
  void resetPeakStats(int device);
  void setMemoryFraction(int device, double fraction);
  double memoryFraction(int device);
  // The segment that holds the block `ptr`, as the driver's pointer_info has it; {nullptr, 0} when it is not a block in
  // use. Of an expandable segment, all addresses.
  std::pair<void*, size_t> baseAllocation(void* ptr);
  // Bytes in use and in use or cached, for reports.
  std::pair<int64_t, int64_t> usage(int device);
  size_t blockSize(void* ptr);

  // Memory pools. A pool appears on a device with its first user and is counted: it is kept until each user has
  // called releasePool, and its memory until the cache is emptied and no block is in use.
  void retainPool(int device, AllocatorPoolId id, const AllocatorPoolOptions& options = {});
  void releasePool(int device, AllocatorPoolId id);
  int poolUseCount(int device, AllocatorPoolId id); // 0: there is none
  // Bytes that each memory pool of the device has from the driver.
  std::vector<std::pair<AllocatorPoolId, AllocatorStatArray>> poolReservedBytes(int device);
  // From now on, what the calling thread allocates on the device comes from the pool; false when that sleeps. Also a
  // use of the pool, which endAllocateToPool does not release. Calls nest. endAllocateToPool returns false when the
  // calling thread does not allocate to that pool.
  bool beginAllocateToPool(int device, AllocatorPoolId id, const AllocatorPoolOptions& options = {});
  bool endAllocateToPool(int device, AllocatorPoolId id);

  // Pools with `can_sleep`. One that sleeps has no memory; its addresses stay, so that its blocks are where they were
  // once it is awake. Both wait for the device, copy by way of `stream`, and leave everything as it was when they
  // throw: AllocatorOutOfMemory from wakeUp, which may be tried again. With `keep`, what is in use is kept in pinned
  // host memory meanwhile; otherwise its contents are lost. `bytes`: what has been given back.
  AllocatorSleep putToSleep(int device, AllocatorPoolId id, bool keep, kl_stream stream, uint64_t& bytes);
  AllocatorSleep wakeUp(int device, AllocatorPoolId id, kl_stream stream);
  bool poolSleeps(int device, AllocatorPoolId id);
  bool poolHas(int device, AllocatorPoolId id, const void* ptr); // whether ptr is a block of the pool, in use
  // Whether the block is in use and has no memory at present.
  bool isAsleep(const void* ptr);

  // Recording who allocated what and when.
  void recordHistory(const AllocatorHistoryOptions& options);
  bool recordsHistory() const {
    return history_level_.load(std::memory_order_relaxed) >= 0;
  }
  // A text for the events of the calling thread.
  static void setMetadata(std::string text);
  static const std::string& metadata();
  // All segments or those of one pool; with `traces` the recorded events, among which the snapshot is noted.
  AllocatorSnapshot snapshot(bool traces, const AllocatorPoolId* pool = nullptr);
  // Who the calling thread is; empty when that is not recorded.
  AllocatorContext gather(int level = AllocatorHistoryOptions::State) const;
  // Who allocated the block; empty when it is not in use or nobody recorded it.
  AllocatorContext blockContext(void* ptr);

  // Parts, defined in CachingAllocatorDevice.h.
  class Device;
  struct Block;
  struct StreamPool;
  struct Pool;
  struct Segment;

 private:
  AddressMap<Block> blocks_;
  std::vector<std::unique_ptr<Device>> devices_;
  // AllocatorHistoryOptions::Level while history is recorded, -1 otherwise.
  std::atomic<int> history_level_{-1};
  std::atomic<AllocatorContextFn> gather_{nullptr};
};

} // namespace kunlun
