// Pinned host memory: whole pages of their own, known by address.
#pragma once

#include <cstdint>

#include "runtime/chip/chip.h"

namespace kunlun::sim {

void* hostAllocate(uint64_t bytes);
void hostFree(void* ptr);
// Fills in everything but the type; false when no block holds the pointer.
bool hostFind(const void* ptr, kl_pointer_info* out);

} // namespace kunlun::sim
