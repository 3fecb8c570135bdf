// Runs a function on the chip's own thread, in stream order, and waits for it.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

namespace kunlun::aten {

// Device memory may be dereferenced inside `function`, and what it allocates
// through torch's CPU allocator lies in device memory. An exception that it
// throws is rethrown here, with its type; warnings appear on this thread. A
// failure that the stream carries from earlier work is raised instead.
// `work` is the number of elements involved: large work gets all of the chip's
// cores (frame/Threads.h). `name` must outlive the work: static text.
void runOnChip(c10::Device device, const char* name, int64_t work, c10::function_ref<void()> function);

} // namespace kunlun::aten
