// Dtypes and reductions of the chip interface in those of the vendor's library of collectives.
#pragma once

#include <cstdint>

#include "runtime/xre/collectives/Bkcl.h"

namespace kunlun::xre {

// What one element travels as: `parts` elements of the vendor's type.
struct Carried {
  NativeType type;
  uint64_t parts;
};

// Of a dtype whose contents are moved and not looked at. The same on every rank.
Carried carriedForMove(int32_t dtype);

struct Reduced {
  Carried as;
  NativeOp op;
};

// Raises KL_ERROR_TYPE for what is not defined, as on every chip, and KL_ERROR_NOT_IMPLEMENTED for what the vendor's
// library cannot do.
Reduced carriedForReduction(int32_t dtype, const kl_reduction& reduction);

uint64_t bytesOf(NativeType type);
uint64_t bytesOf(int32_t dtype);

} // namespace kunlun::xre
