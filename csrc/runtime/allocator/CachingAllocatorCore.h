// The caching allocator itself, without torch: blocks, pools, statistics, over the driver's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/allocator/AddressMap.h"
#include "runtime/allocator/FreeBins.h"
#include "runtime/chip/chip.h"

namespace kunlun {

// Sizes as in c10/core/AllocatorConfig.h.
inline constexpr size_t kMinBlockSize = 512;     // every block is a multiple of this
inline constexpr size_t kSmallSize = 1 << 20;    // largest block of the small pool
inline constexpr size_t kSmallBuffer = 2 << 20;  // segments of the small pool
inline constexpr size_t kLargeBuffer = 20 << 20; // segments for blocks up to kMinLargeAlloc
inline constexpr size_t kMinLargeAlloc = 10 << 20;
inline constexpr size_t kRoundLarge = 2 << 20; // larger segments are multiples of this

inline constexpr uint64_t kNoSequenceLimit = UINT64_MAX;

// What PYTORCH_ALLOC_CONF can change.
struct AllocatorSettings {
  size_t large_segment_size = kLargeBuffer;
  size_t max_split_size = SIZE_MAX;                  // larger blocks are not split
  size_t max_non_split_rounding_size = kLargeBuffer; // slack with which such a block is handed out whole
};

struct AllocatorStat {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;
  int64_t freed = 0;

  void increase(int64_t amount) {
    current += amount;
    peak = current > peak ? current : peak;
    allocated += amount;
  }
  void decrease(int64_t amount) {
    current -= amount;
    freed += amount;
  }
};

// Index 0 is the sum, 1 the small pool, 2 the large pool.
using AllocatorStatArray = std::array<AllocatorStat, 3>;

// The members that c10::CachingDeviceAllocator::DeviceStats has, under the same names.
struct AllocatorStats {
  AllocatorStatArray allocation, segment, active, inactive_split;
  AllocatorStatArray allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  AllocatorStat oversize_allocations, oversize_segments;
  int64_t num_alloc_retries = 0;
  int64_t num_ooms = 0;
  int64_t num_sync_all_streams = 0;
  int64_t num_device_alloc = 0;
  int64_t num_device_free = 0;
};

// Thrown when a request cannot be served although everything unused has been given back.
struct AllocatorOutOfMemory {
  int device;
  size_t requested;                 // bytes asked for
  size_t segment;                   // bytes that the driver refused
  uint64_t free_bytes, total_bytes; // as the driver counts
  uint64_t allowed;                 // by the memory fraction
  bool limited;                     // the fraction refused, not the driver
  int64_t allocated, reserved;      // bytes in use, and in use or cached
};

// Thrown when the driver fails for another reason; last_error has the text.
struct AllocatorDriverFailure {
  kl_result result;
  const char* call;
};

// The host call that the calling thread is executing for a stream, see CachingAllocator::HostCallScope.
struct AllocatorHostCall {
  kl_stream stream = nullptr;
  uint64_t sequence = kNoSequenceLimit;
};
extern constinit thread_local AllocatorHostCall allocator_host_call;

// Thread-safe. Blocks belong to one stream each and are reused in its order without waiting: memory may be handed out
// again while earlier work on the stream still uses it, because the work of the next owner comes after.
class CachingAllocatorCore {
 public:
  using SettingsFn = AllocatorSettings (*)();
  // Into how many steps a power of two is cut when a size is rounded up; 0 or 1: multiples of kMinBlockSize only.
  using DivisionsFn = size_t (*)(size_t);

  CachingAllocatorCore(
      const kl_runtime_table& runtime,
      int device_count,
      SettingsFn settings = nullptr,
      DivisionsFn divisions = nullptr);
  ~CachingAllocatorCore();
  CachingAllocatorCore(const CachingAllocatorCore&) = delete;
  CachingAllocatorCore& operator=(const CachingAllocatorCore&) = delete;

  // Memory for work that will be enqueued on `stream`; never NULL. A thread of the chip that executes a host call
  // cannot rely on the stream's order, since work that was enqueued after the call has not run yet. It passes the
  // number of the newest item at the time when the call was enqueued: blocks that a newer item may use are left alone.
  void* malloc(int device, kl_stream stream, size_t bytes, uint64_t sequence_limit = kNoSequenceLimit);
  // False when the pointer is not a block in use.
  bool free(void* ptr) noexcept;
  // The block must also outlive the work that `stream` (of `stream_device`) has when the block is freed.
  bool recordStream(void* ptr, int stream_device, kl_stream stream);

  void emptyCache();
  AllocatorStats stats(int device);
  void resetAccumulatedStats(int device);
  void resetPeakStats(int device);
  void setMemoryFraction(int device, double fraction);
  double memoryFraction(int device);
  // The segment that holds the block `ptr`; {nullptr, 0} when it is not a block in use.
  std::pair<void*, size_t> baseAllocation(void* ptr);
  // Bytes in use and in use or cached, for reports.
  std::pair<int64_t, int64_t> usage(int device);
  size_t blockSize(void* ptr);

  // Parts, defined in CachingAllocatorDevice.h.
  class Device;
  struct Block;
  struct StreamPool;

 private:
  AddressMap<Block> blocks_;
  std::vector<std::unique_ptr<Device>> devices_;
};

} // namespace kunlun
