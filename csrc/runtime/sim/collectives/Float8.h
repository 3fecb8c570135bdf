// Conversion of the 8-bit floating-point formats, for reductions.
#pragma once

#include "runtime/sim/collectives/ReduceKernels.h"

namespace kunlun::sim {

// NULL for other dtypes.
ReduceKernels::Load float8Load(int32_t dtype);
ReduceKernels::Store float8Store(int32_t dtype);

} // namespace kunlun::sim
