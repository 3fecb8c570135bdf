// Runs a function on the chip's own thread, in stream order, and waits for it.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>

#include "aten/boxed/HostMemory.h"

namespace kunlun::aten {

// Device memory may be dereferenced inside `function`, and what it allocates
// through torch's CPU allocator lies in device memory. An exception that it
// throws is rethrown here, with its type; warnings appear on this thread. A
// failure that the stream carries from earlier work is raised instead.
// `work` is the number of elements involved: large work gets all of the chip's
// cores (frame/Threads.h). `name` must outlive the work: static text.
// `spare`, if any, is memory for the function's first allocation of that size.
void runOnChip(
    c10::Device device,
    const char* name,
    int64_t work,
    c10::function_ref<void()> function,
    Spare* spare = nullptr);

// For the function, on the chip's thread: what it moves here is destroyed after
// the caller has been let go. Nothing of the caller's may be needed for that.
std::vector<c10::IValue>& afterwards();

} // namespace kunlun::aten
