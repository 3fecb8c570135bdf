// The driver "xre": an adapter over the vendor's runtime library, which is opened at run time.
#pragma once

#include "runtime/chip/chip.h"

namespace kunlun::xre {

// Whether the vendor's kernel driver has made a device node. Opens nothing.
bool isPresent();

// Opens the vendor's runtime library and hands back the table; fills `error` when that cannot be done.
//
// A kl_stream of this driver is the vendor's own stream, so that a driver which extends this one with operators can
// hand it to the vendor's libraries. What the vendor's runtime cannot do stays NULL in the table: free memory, host
// calls in stream order, event timing, device reset and sharing between processes.
kl_result open(kl_chip* out, kl_error* error);

} // namespace kunlun::xre
