// PYTORCH_ALLOC_CONF: what torch leaves to the device.
#pragma once

namespace kunlun {

// Reads the variable. torch calls the device's parser for later changes only. Raises ValueError for what it refuses.
void parseAllocatorConfig();

} // namespace kunlun
