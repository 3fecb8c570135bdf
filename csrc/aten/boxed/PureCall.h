// Boxed calls that cross to the chip's thread as plain data.
#pragma once

#include <atomic>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

namespace kunlun::aten {

// True for operators that only read strided tensors and numbers and return new tensors.
bool isPure(const c10::FunctionSchema& schema);

// For such operators. Tensor objects made by one thread and used by another
// cost more, in cache lines that change cores, than a small kernel does; here
// the arguments go over as a call frame and the results come back as plain data.
// Returns false, with the stack untouched, for arguments that a frame cannot
// carry (sparse tensors, quantised dtypes); and where the kernel answers with a
// sparse tensor, which no schema announces: `pure` is then cleared, so that it
// happens once per operator.
bool runPure(
    const c10::OperatorHandle& op,
    const char* name,
    c10::Device device,
    torch::jit::Stack* stack,
    std::atomic<bool>& pure);

} // namespace kunlun::aten
