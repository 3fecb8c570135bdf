// Runs a function as the chip, in stream order, and waits for it.
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
// cores (frame/Threads.h), and small work on an idle stream runs on the calling
// thread, where the chip allows that. `name` must outlive the work: static text.
// `set_aside`, if any, is asked for memory for the function's first allocation
// of that size where the chip's own thread is to run it.
void runOnChip(
    c10::Device device,
    const char* name,
    int64_t work,
    c10::function_ref<void()> function,
    c10::function_ref<Spare()> set_aside = nullptr);

// The same on the calling thread or not at all: returns false, with nothing done, if the stream is busy, the work is
// large or the chip does not allow it.
bool tryOnCaller(c10::Device device, const char* name, int64_t work, c10::function_ref<void()> function);

// For the function: what it moves here is destroyed after the caller has been
// let go. Nothing of the caller's may be needed for that.
std::vector<c10::IValue>& afterwards();

} // namespace kunlun::aten
