// Words of device memory by which streams of several processes wait for each other.
#pragma once

#include <cstdint>

#include "runtime/chip/chip.h"

namespace kunlun::sim {

class Stream;

// Both enqueue their work, or report what the stream has to report and do nothing.
kl_result writeWord(void* address, uint32_t value, Stream& stream);
kl_result waitForWord(void* address, const kl_wait& wait, Stream& stream);

} // namespace kunlun::sim
