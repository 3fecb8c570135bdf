// Waits of callers that may be given up: by Ctrl-C, through the check that the host installs.
#pragma once

#include <cstdint>

#include "runtime/sim/Progress.h"

namespace kunlun::sim {

// Returns non-zero when the calling thread is to stop waiting.
using InterruptCheck = int32_t (*)();

void setInterruptCheck(InterruptCheck check);

// Asks the check now and then; raises KL_ERROR_INTERRUPTED when it says so. For callers, who hold no lock.
void waitInterruptibly(Progress& progress, uint64_t target);

// The same without raising: false when interrupted.
bool waitUnlessInterrupted(Progress& progress, uint64_t target);

// Whether the calling thread is to stop waiting, for a wait that sleeps by other means.
bool isInterrupted();

} // namespace kunlun::sim
