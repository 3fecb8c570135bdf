// Device memory of other processes: handles to it, and its mappings here.
#pragma once

#include <cstdint>

#include "runtime/chip/chip.h"

namespace kunlun::sim {

class Device;

// The bytes from which another process maps the allocation that starts at `ptr`.
void exportMemory(void* ptr, char handle[64]);
// Maps it; every further import of the same allocation gives the same address and counts.
void* importMemory(int device, const char handle[64]);
// Undoes one import.
void closeMemory(void* ptr);

// The device on which the range has been imported, NULL if it has not been. Costs one load where nothing is imported.
Device* importingDevice(const void* ptr, uint64_t bytes);
// Fills in everything but the type; false when the pointer is in no imported memory.
bool findImported(const void* ptr, kl_pointer_info* out);

} // namespace kunlun::sim
