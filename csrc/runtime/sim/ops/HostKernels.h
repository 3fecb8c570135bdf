// The simulated chip's kernels, for the host of any chip.
#pragma once

#include "runtime/chip/frame.h"

namespace kunlun {

// Runs a frame whose memory the calling thread may dereference: with the
// simulated chip's kernel, else with torch's CPU operator of that schema.
// Throws what the kernel throws.
void runHostKernel(const kl_frame* frame);

} // namespace kunlun
