// The collectives table of the simulated chip.
#pragma once

#include "runtime/chip/collectives.h"

namespace kunlun::sim {

extern const kl_collectives kCollectives;

} // namespace kunlun::sim
