// A user's own allocator in the caching allocator's place, or behind a memory pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "runtime/allocator/AllocatorTypes.h"
#include "runtime/chip/chip.h"

namespace kunlun {

// Two functions from a user's shared library:
//   void* allocate(size_t bytes, int device, kl_stream stream)   NULL: out of memory
//   void free(void* ptr, size_t bytes, int device, kl_stream stream)
// In the caching allocator's place, they are called for every tensor, and are responsible for the order with the work
// that uses the memory. Behind a memory pool they are called for segments, whose addresses must be multiples of 512.
class PluggableAllocator {
 public:
  PluggableAllocator(uintptr_t allocate, uintptr_t free);

  const AllocatorMemory& functions() const {
    return functions_;
  }

  // Puts `functions` in the caching allocator's place for the rest of the process; raises once that has been used.
  static void install(const PluggableAllocator& allocator);
  // What has been installed, as torch sees it; NULL: nothing.
  static c10::DeviceAllocator* current() noexcept;
  static c10::DataPtr allocateOnStream(size_t bytes, c10::DeviceIndex device, kl_stream stream);
  // Raises NotImplementedError if one is installed, because it cannot do `what`.
  static void refuse(const char* what);

 private:
  AllocatorMemory functions_;
};

} // namespace kunlun
