// Pinned host memory: torch's caching host allocator over the driver's host_malloc.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace kunlun {

at::HostAllocator* getHostAllocator();

// Whether `ptr` lies inside pinned memory, at its start or not. Never starts the device.
bool isPinnedPtr(const void* ptr);

} // namespace kunlun
