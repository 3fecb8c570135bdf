// Frames that the driver has no kernel for, executed by the host's kernels.
#pragma once

#include <c10/core/Device.h>

#include "runtime/chip/frame.h"

namespace kunlun::aten {

// On a host-addressable chip: enqueues a host call that runs ATen's CPU kernel
// over the device's memory, and returns. On any other: copies the arguments to
// the host, runs the kernel there and copies the outputs back, if the fallback
// policy (KUNLUN_FALLBACK) allows; else raises UnsupportedOperatorError.
void launchMissing(const kl_frame* frame, c10::Device device);

} // namespace kunlun::aten
