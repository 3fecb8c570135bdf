// What the host offers to the simulated chip.
#pragma once

#include <cstdint>

namespace kunlun::sim {

// Bytes of memory that the process could still use, limits of its control groups included.
uint64_t availableHostMemory();

} // namespace kunlun::sim
