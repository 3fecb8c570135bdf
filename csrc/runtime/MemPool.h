// Memory pools: allocations that are kept apart from all others.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/CachingDeviceAllocator.h>

#include "runtime/PluggableAllocator.h"
#include "runtime/allocator/AllocatorTypes.h"

namespace kunlun {

// Belongs to the device that is current when it is made, and has an id that no other pool of the process has. What is
// allocated from it stays valid when the pool is gone; its memory goes back to the driver then, as far as it is free.
class MemPool {
 public:
  explicit MemPool(
      std::shared_ptr<PluggableAllocator> allocator = nullptr,
      bool is_user_created = true,
      bool use_on_oom = false,
      bool no_split = false,
      bool can_sleep = false);
  ~MemPool();
  MemPool(const MemPool&) = delete;
  MemPool& operator=(const MemPool&) = delete;

  c10::MempoolId_t id() const {
    return id_;
  }
  c10::DeviceIndex device() const {
    return device_;
  }
  std::shared_ptr<PluggableAllocator> allocator() const {
    return allocator_;
  }
  // The pool itself and those that allocate from it.
  int useCount() const;

  // From begin to end, the calling thread's allocations on `device` come from the pool. Calls nest.
  void begin(c10::DeviceIndex device);
  void end(c10::DeviceIndex device);

  // For a pool made with `can_sleep`, on a chip with addresses apart from memory: gives the pool's memory back to the
  // device and keeps the addresses, so that every tensor is where it was after wakeUp. The contents are kept in pinned
  // host memory if `keep` is set, and lost otherwise. Returns the bytes given back. Nobody may allocate from the pool
  // while it sleeps, and what lies in it must not be touched (see CachingAllocator::checkAwake).
  uint64_t sleep(bool keep);
  // Raises torch.OutOfMemoryError when the device has not enough memory; the pool sleeps on then.
  void wakeUp();
  bool isAsleep() const;

  // {0, n} for a user, {n, 0} otherwise, as c10::MempoolId_t has it.
  static c10::MempoolId_t newId(bool is_user_created);

 private:
  const std::shared_ptr<PluggableAllocator> allocator_;
  const c10::MempoolId_t id_;
  const c10::DeviceIndex device_;
  AllocatorPoolOptions options_;
};

} // namespace kunlun
