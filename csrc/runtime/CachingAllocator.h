// torch's view of the caching allocator: c10::DeviceAllocator over CachingAllocatorCore.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include "runtime/Device.h"
#include "runtime/chip/chip.h"

namespace kunlun {
class CachingAllocatorCore;
enum class AllocatorSleep : uint8_t;
extern constinit std::atomic<int> allocator_sleeping_pools;
struct AllocatorRoute;
} // namespace kunlun

namespace kunlun::CachingAllocator {

inline constexpr uint64_t kNoSequenceLimit = UINT64_MAX;

// The allocator of the device: this one, or the pluggable allocator that has taken its place.
c10::DeviceAllocator* get();

// The caching allocator itself, made at the first use of a device.
CachingAllocatorCore& core();
bool coreExists() noexcept;

// Memory on `device` for work that will be enqueued on `stream`. With a sequence limit, only memory whose last user on
// that stream was enqueued at or before that number is taken: what a host call that runs on the stream's own thread
// needs (see HostCallScope).
c10::DataPtr
allocateOnStream(size_t nbytes, c10::DeviceIndex device, kl_stream stream, uint64_t sequence_limit = kNoSequenceLimit);

// What a thread hands to a thread of the chip that allocates for it while it waits: the memory pools that it allocates
// from (see MemPool.h), and who it is, if history is recorded.
struct Route {
  AllocatorRoute* pools = nullptr;
  std::shared_ptr<void> context;
};
Route currentRoute();

// Declares that the calling thread is executing a host call of `stream`, enqueued when the stream's newest item had
// number `sequence`, for a thread that allocates by `route`. Memory that is allocated under the scope and freed under
// the same scope is free for the scope again at once, although the stream may have newer items enqueued already; and
// running out of memory never waits for the stream, which would be a wait for oneself.
class HostCallScope {
 public:
  HostCallScope(kl_stream stream, uint64_t sequence, const Route& route) noexcept;
  ~HostCallScope();
  HostCallScope(const HostCallScope&) = delete;
  HostCallScope& operator=(const HostCallScope&) = delete;

 private:
  kl_stream previous_stream_;
  uint64_t previous_sequence_;
  AllocatorRoute* previous_pools_;
  const std::shared_ptr<void>* previous_context_;
};

// The memory must not be reused before the work that `stream` has at the time of the free is done.
void recordStream(const c10::DataPtr& ptr, c10::Stream stream);

// Gives unused segments back to the driver, waiting for work that may still use them: those of the default pool and of
// memory pools that nobody has any more, or of one memory pool.
void emptyCache(c10::MempoolId_t pool = {0, 0});

// See MemPool::sleep and MemPool::wakeUp.
AllocatorSleep putToSleep(c10::DeviceIndex device, c10::MempoolId_t pool, bool keep, uint64_t& bytes);
AllocatorSleep wakeUp(c10::DeviceIndex device, c10::MempoolId_t pool);
[[noreturn]] void refuseAsleep();
bool isAsleep(const void* memory);
// Whoever hands a storage's memory to the chip calls this before: raises RuntimeError when its pool sleeps.
inline void checkAwake(const void* memory) {
  if (allocator_sleeping_pools.load(std::memory_order_relaxed) != 0 && isAsleep(memory)) [[unlikely]] {
    refuseAsleep();
  }
}

// With caching off, every allocation is the driver's, and goes back there as soon as no work uses it.
void enable(bool value);
bool isEnabled() noexcept;

// Called when memory has run out, before the error is raised: device, bytes asked for, bytes that this process may
// have, bytes that the driver has free.
using OutOfMemoryObserver = std::function<void(int64_t, int64_t, int64_t, int64_t)>;
void attachOutOfMemoryObserver(OutOfMemoryObserver observer);

c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device);
void resetAccumulatedStats(c10::DeviceIndex device);
void resetPeakStats(c10::DeviceIndex device);
// {free, total} bytes, as the driver counts.
std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device);
// Share of the device's memory that this process may reserve, in (0, 1]; 1 is the default.
void setMemoryFraction(double fraction, c10::DeviceIndex device);
double getMemoryFraction(c10::DeviceIndex device);

// Start and size of the allocation that holds `ptr`, or {nullptr, 0} when it is not ours.
std::pair<void*, size_t> getBaseAllocation(void* ptr);

} // namespace kunlun::CachingAllocator
