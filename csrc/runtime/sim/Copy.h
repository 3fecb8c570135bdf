// Copies and fills on a stream.
#pragma once

#include <cstdint>

#include "runtime/chip/chip.h"

namespace kunlun::sim {

class Stream;

kl_result copy(void* dst, const void* src, uint64_t bytes, int32_t kind, uint32_t flags, Stream& stream);
kl_result fill(void* dst, int32_t byte, uint64_t bytes, Stream& stream);

} // namespace kunlun::sim
