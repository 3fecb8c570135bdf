// The chip interface's frozen dtype numbers against ATen's, both ways.
#pragma once

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include "runtime/chip/frame.h"

namespace kunlun::frame {

// Throws TypeError for dtypes the interface has no number for (quantised, bits, sub-byte).
int32_t toChipDtype(c10::ScalarType dtype);
c10::ScalarType fromChipDtype(int32_t dtype);

int64_t toChipMemoryFormat(c10::MemoryFormat format);
c10::MemoryFormat fromChipMemoryFormat(int64_t format);

} // namespace kunlun::frame
