// What goes into the caching allocator and comes out of it: settings, statistics, errors, snapshots. Without torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/chip/chip.h"

namespace kunlun {

// Sizes as in c10/core/AllocatorConfig.h.
inline constexpr size_t kMinBlockSize = 512;     // every block is a multiple of this
inline constexpr size_t kSmallSize = 1 << 20;    // largest block of the small pool
inline constexpr size_t kSmallBuffer = 2 << 20;  // segments of the small pool
inline constexpr size_t kLargeBuffer = 20 << 20; // segments for blocks up to kMinLargeAlloc
inline constexpr size_t kMinLargeAlloc = 10 << 20;
inline constexpr size_t kRoundLarge = 2 << 20; // larger segments are multiples of this
inline constexpr size_t kPage = 4096;          // uncached blocks are multiples of this, as the driver's memory is

// Larger requests cannot be addresses of a 48-bit space; refused before rounding could overflow.
inline constexpr size_t kMaxRequest = size_t(1) << 47;

inline constexpr uint64_t kNoSequenceLimit = UINT64_MAX;

// What PYTORCH_ALLOC_CONF can change.
struct AllocatorSettings {
  size_t large_segment_size = kLargeBuffer;
  size_t max_split_size = SIZE_MAX;                  // larger blocks are not split
  size_t max_non_split_rounding_size = kLargeBuffer; // slack with which such a block is handed out whole
  double garbage_collection_threshold = 0;           // share of the allowed memory; 0: no collection
  bool expandable_segments = false;
};

// ---- statistics -------------------------------------------------------------

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

// ---- memory pools -----------------------------------------------------------

// Like c10::MempoolId_t; {0, 0} is the default pool.
using AllocatorPoolId = std::pair<uint64_t, uint64_t>;

// Where a memory pool takes its segments from, if not from the driver. Called with the allocator's lock held, so they
// must not allocate through it. `allocate` returns NULL when there is no memory.
struct AllocatorMemory {
  void* (*allocate)(size_t bytes, int device, kl_stream stream) = nullptr;
  void (*free)(void* ptr, size_t bytes, int device, kl_stream stream) = nullptr;
};

struct AllocatorPoolOptions {
  AllocatorMemory memory = {};
  bool use_on_oom = false; // its free blocks serve requests from outside before memory runs out
  bool no_split = false;   // every allocation gets a segment of its own
  bool can_sleep = false;  // its memory can go back to the driver without its addresses; excludes the three above
};

// What putToSleep and wakeUp found.
enum class AllocatorSleep : uint8_t {
  Done,
  NoSuchPool, // or one that cannot sleep
  InUse,      // somebody allocates from it
  NotAwake,
  NotAsleep
};

// ---- errors -----------------------------------------------------------------

// Thrown when a request cannot be served although everything unused has been given back.
struct AllocatorOutOfMemory {
  int device;
  size_t requested;                 // bytes asked for
  size_t segment;                   // bytes that the driver refused
  uint64_t free_bytes, total_bytes; // as the driver counts
  uint64_t allowed;                 // by the memory fraction
  bool limited;                     // the fraction refused, not the driver
  int64_t allocated, reserved;      // bytes in use, apart from what sleeps, and in use or cached
  int64_t in_private_pools;         // bytes of `reserved` that belong to memory pools
};

// Thrown when the driver fails for another reason; last_error has the text.
struct AllocatorDriverFailure {
  kl_result result;
  const char* call;
};

// ---- history and snapshots --------------------------------------------------

// Who allocated: whatever the gathering function made, such as a stack trace.
using AllocatorContext = std::shared_ptr<void>;
using AllocatorContextFn = AllocatorContext (*)();

// The order is that of c10::CachingDeviceAllocator::TraceEntry::Action.
enum class AllocatorAction : uint8_t {
  Alloc,
  FreeRequested,
  FreeCompleted,
  SegmentAlloc,
  SegmentFree,
  SegmentMap,
  SegmentUnmap,
  Snapshot,
  OutOfMemory
};

struct AllocatorTraceEntry {
  AllocatorAction action;
  uint64_t address; // OutOfMemory: the bytes that the driver has free
  size_t size;
  kl_stream stream;
  AllocatorPoolId pool;
  int64_t time_us; // since the epoch
  AllocatorContext context;
  std::string metadata; // of the thread, see CachingAllocatorCore::setMetadata
};

struct AllocatorHistoryOptions {
  enum Level : uint8_t { Never, State, Alloc, All }; // as c10::CachingDeviceAllocator::RecordContext
  bool enabled = false;                              // false: stop recording; what is recorded stays
  bool trace = false;                                // keep the events, not only who holds the live blocks
  Level context = Never;                             // for which events a context is gathered
  AllocatorContextFn gather = nullptr;
  size_t max_entries = SIZE_MAX; // of a device; older events make room for newer ones
  bool clear = false;            // forget the events so far
  uint32_t skip = 0;             // bits (1 << action) that are not recorded
};

struct AllocatorBlockInfo {
  uintptr_t address;
  size_t size, requested;
  bool allocated;
  bool active; // allocated, or still in use by another stream
  AllocatorContext context;
};

struct AllocatorSegmentInfo {
  int device;
  uintptr_t address;
  size_t total_size; // of an expandable segment: what is mapped
  size_t requested_size, allocated_size, active_size;
  kl_stream stream;
  bool large, expandable;
  AllocatorPoolId pool;
  std::vector<AllocatorBlockInfo> blocks; // by address; mapped ones only
  AllocatorContext context;
};

struct AllocatorSnapshot {
  std::vector<AllocatorSegmentInfo> segments;             // by device and address
  std::vector<std::vector<AllocatorTraceEntry>> traces;   // by device, oldest event first
  std::vector<std::pair<AllocatorPoolId, int>> use_count; // of every memory pool
};

} // namespace kunlun
