// The collectives table of the driver "xre".
#pragma once

#include "runtime/chip/collectives.h"

namespace kunlun::xre {

extern const kl_collectives kCollectives;

} // namespace kunlun::xre
