// Device memory for what CPU kernels allocate while they run on a chip thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "runtime/CachingAllocator.h"
#include "runtime/chip/chip.h"

namespace kunlun::aten {

// Replaces torch's CPU allocator by one that asks a thread-local switch first;
// without the switch it hands on to the allocator it replaced. Idempotent.
void installHostAllocator();
c10::Allocator* hostAllocator();
c10::Allocator* deviceAllocator();

// Memory that the caller of a host call sets aside for its first allocation of
// this size: the caller's core has the allocator's bookkeeping in its cache, the
// chip's thread would have to fetch it. What is not taken is the caller's again.
struct Spare {
  size_t nbytes = 0; // 0: there is none
  c10::DataPtr data;
};

// Turns the switch on for the calling thread, which must be executing a host
// call of `stream` that was enqueued when the stream's newest item was `sequence`.
// `spare` may be NULL. `route` is the caller's.
class DeviceMemoryScope {
 public:
  DeviceMemoryScope(
      c10::DeviceIndex device,
      kl_stream stream,
      uint64_t sequence,
      const CachingAllocator::Route& route,
      Spare* spare);
  ~DeviceMemoryScope();
  DeviceMemoryScope(const DeviceMemoryScope&) = delete;
  DeviceMemoryScope& operator=(const DeviceMemoryScope&) = delete;

 private:
  CachingAllocator::HostCallScope scope_;
};

// Relabels memory that a CPU kernel allocated as memory of `device`; copies it
// there where it came from elsewhere. `data` is left empty.
c10::DataPtr adopt(c10::DataPtr&& data, size_t nbytes, c10::Device device);

} // namespace kunlun::aten
