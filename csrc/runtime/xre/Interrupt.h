// Waits of the adapter's own that may be given up. Those of the vendor's libraries cannot be.
#pragma once

#include "runtime/chip/chip.h"

namespace kunlun::xre {

void setInterruptCheck(kl_interrupt_check check);

// Raises KL_ERROR_INTERRUPTED when the calling thread is to stop waiting. To be asked several times a second, without a
// lock.
void checkInterrupt(int device);

} // namespace kunlun::xre
