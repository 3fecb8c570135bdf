// Stand-ins for the entries of the runtime table that a driver leaves NULL.
#pragma once

#include "runtime/chip/chip.h"

namespace kunlun::chip {

// Fills every NULL entry of `table` with a function that refuses, naming the driver and what it lacks, and takes the
// capabilities away that the missing entries carry. To be called once in a process.
void completeTable(kl_runtime_table& table, const char* driver);

} // namespace kunlun::chip
