// Memory of the vendor's devices: allocation, classification, copies and fills.
#pragma once

#include <cstdint>

#include "runtime/chip/chip.h"
#include "runtime/xre/Library.h"

namespace kunlun::xre {

void* allocate(int device, uint64_t bytes, int32_t kind);
void release(int device, void* ptr);
void* allocateHost(uint64_t bytes);
void releaseHost(void* ptr);
// What the adapter itself has allocated.
void pointerInfo(const void* ptr, kl_pointer_info* out);

void copy(void* dst, const void* src, uint64_t bytes, int32_t kind, uint32_t flags, NativeStream stream);
void fill(void* dst, int32_t byte, uint64_t bytes, NativeStream stream);

} // namespace kunlun::xre
