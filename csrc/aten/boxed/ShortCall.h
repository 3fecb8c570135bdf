// Small boxed calls on an idle stream, which their caller runs itself.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

namespace kunlun::aten {

enum class ShortCall {
  Done,
  NotNow, // the stream is busy, the work is large, or an argument is none of those below
  Special // the kernel answered with a sparse, quantised or nested tensor
};

// For operators of PureCall.h, whose tensors are dense ones of `device` and 0-dim CPU tensors, and which take no lists
// of tensors. No other thread sees the call, so no frame is made of it: the kernel gets CPU tensors over the arguments'
// memory, and its results' memory moves into tensors of the device. Unless Done, the stack is as it was.
ShortCall runShort(const c10::OperatorHandle& op, const char* name, c10::Device device, torch::jit::Stack* stack);

} // namespace kunlun::aten
