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
      bool no_split = false);
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

  // {0, n} for a user, {n, 0} otherwise, as c10::MempoolId_t has it.
  static c10::MempoolId_t newId(bool is_user_created);

 private:
  const std::shared_ptr<PluggableAllocator> allocator_;
  const c10::MempoolId_t id_;
  const c10::DeviceIndex device_;
  AllocatorPoolOptions options_;
};

} // namespace kunlun
